/** What is read off a page: charts zoomed together, units, what is no data, tables by address, dates with their zone. */
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { PATIENCE_MS } from "./patience";
import { inspected, PYTHON, READY, ROOT, serve, unfoldAll, type Served } from "./server";

const POOR = `
import sys
from pathlib import Path
from services.recording.degrade import degrade_recording
from services.recording.reader import Recording
degrade_recording(Recording.open(Path(sys.argv[1])), Path(sys.argv[2]), ["default-fields", "steps"], name="poor")
`;
const SMALL = join(ROOT, "replay-data/small");

describe.skipIf(!READY)("what is read off a page (needs Chromium, the built console and .venv)", () => {
  const folder = mkdtempSync(join(tmpdir(), "hindcast-reading-"));
  let served: Served;
  const runs: Record<string, string> = {};
  let incident = "";
  beforeAll(async () => {
    for (const name of ["vela-power-brake", "sakuraone-job-hang"]) {
      cpSync(join(SMALL, name), join(folder, name), { recursive: true });
    }
    execFileSync(PYTHON, ["-c", POOR, join(SMALL, "vela-power-brake"), join(folder, "poor")], { cwd: ROOT, env: { ...process.env, PYTHONPATH: ROOT } });
    served = await serve({ HINDCAST_API_LIBRARY: JSON.stringify([folder]) });
    const api = served.page.request;
    const asked = async <T>(address: string) => (await (await api.get(`${served.base}api/v1/${address}`)).json()) as T;
    for (const recording of ["vela-power-brake", "sakuraone-job-hang", "poor"]) {
      const { id } = (await (await api.post(`${served.base}api/v1/runs`, { data: { recording } })).json()) as { id: string };
      runs[recording] = id;
      await vi.waitFor(async () => expect((await asked<{ state: string }>(`runs/${id}`)).state).toBe("done"), { timeout: PATIENCE_MS, interval: 250 });
    }
    const { items } = await asked<{ items: { id: string }[] }>(`runs/${runs["vela-power-brake"]}/incidents`);
    incident = `#/incident/${runs["vela-power-brake"]}/${items[0]?.id}`;
  });
  afterAll(async () => {
    await served.close();
    rmSync(folder, { recursive: true });
  });

  /** Anew, as from a link: not as a step from the page before. */
  const open = async (address: string) => {
    await served.page.goto("about:blank");
    await served.page.goto(`${served.base}${address}`);
  };
  const deck = (recording: string, query = "") => `#/run/${runs[recording]}${query}`;
  const address = (name: string) => new URLSearchParams(new URL(served.page.url()).hash.split("?")[1]).get(name);
  const shown = () => served.page.getByRole("group", { name: "Time shown in the charts" }).getByRole("status").allTextContents();
  const chart = (title: string) => served.page.locator("figure.chart", { hasText: title }).first();
  /** Drawn across a chart, between two shares of its width. */
  const drag = async (title: string, from: number, to: number) => {
    const over = chart(title).locator(".u-over");
    await over.hover(); // as often as it takes: a chart is drawn anew when more of it has come
    const { x, y, width, height } = (await over.boundingBox()) ?? { x: 0, y: 0, width: 0, height: 0 };
    await served.page.mouse.move(x + from * width, y + height / 2);
    await served.page.mouse.down();
    await served.page.mouse.move(x + ((from + to) / 2) * width, y + height / 2);
    await served.page.mouse.move(x + to * width, y + height / 2);
    await served.page.mouse.up();
  };

  it("all charts of a page show the range that was dragged across one, a link holds it, and a double click takes it back", async () => {
    const { page, wrong } = served;
    await open(deck("vela-power-brake", "?gpu=v002%2F3"));
    await chart("SM clock").locator(".u-over").waitFor();
    const moment = () => page.locator(".clock").textContent();
    const before = await moment();
    await expect.poll(shown).toEqual(["09:24:00 UTC to 09:50:00 UTC", "09:24:00 UTC to 09:50:00 UTC"]);
    await page.waitForLoadState("networkidle"); // what is asked for from here on is of the range that is dragged
    const series: URLSearchParams[] = [];
    page.on("request", (request) => request.url().includes("/series?") && series.push(new URL(request.url()).searchParams));
    await drag("SM clock", 0.25, 0.5);
    // A quarter of 26 minutes.
    await expect.poll(shown).toEqual([expect.stringMatching(/^09:30:[2-3]\d UTC to 09:3[67]:[05]\d UTC$/), expect.anything()]);
    expect(new Set(await shown()).size).toBe(1);
    expect(await moment(), "a drag is no click").toBe(before);
    await expect.poll(() => new Set(series.map((one) => one.get("field"))).size, { message: "each chart in view asks for more of it" }).toBeGreaterThan(2);
    expect(new Set(series.map((one) => `${one.get("from")} ${one.get("to")}`))).toEqual(new Set([`${address("from")} ${address("to")}`]));
    await page.locator(".timeline rect.shown").waitFor();
    const linked = await shown();
    await open(new URL(page.url()).hash);
    await expect.poll(shown).toEqual(linked);
    await chart("SM clock").locator(".u-over").dblclick();
    await expect.poll(shown).toEqual(["09:24:00 UTC to 09:50:00 UTC", "09:24:00 UTC to 09:50:00 UTC"]);
    expect([address("from"), address("to")]).toEqual([null, null]);
    await page.keyboard.press("Home");
    await expect.poll(moment).toBe("09:24:00");
    await chart("SM clock").locator(".u-over").click();
    await expect.poll(moment, { message: "a click still goes there" }).toMatch(/^09:3[67]:/);
    expect(wrong).toEqual([]);
  });

  it("the keyboard zooms as well: keys, and buttons that say what they do", async () => {
    const { page, wrong } = served;
    await open(incident);
    await chart("Power").locator(".u-over").waitFor();
    const [whole] = await shown();
    await page.keyboard.press("+");
    await expect.poll(() => address("from")).not.toBeNull();
    const [closer] = await shown();
    expect(closer).not.toBe(whole);
    const later = page.getByRole("button", { name: "Later ▸" });
    await later.focus();
    await page.keyboard.press("Enter");
    await expect.poll(async () => (await shown())[0]).not.toBe(closer);
    expect(await page.getByRole("button", { name: "Whole range" }).isEnabled()).toBe(true);
    await page.keyboard.press("0");
    await expect.poll(shown).toEqual([whole]);
    expect(await page.getByRole("button", { name: "Wider" }).isDisabled()).toBe(true);
    const dragged = async () => {
      await drag("Power", 0.05, 0.3);
      return address("to");
    };
    await expect.poll(dragged, { message: "again, where it was drawn anew under the mouse" }).not.toBeNull();
    await expect.poll(() => page.locator("section[aria-label=Logs] li").count(), { message: "the logs are of the same minutes" }).toBeLessThan(4);
    expect(await inspected(page, "incident-zoomed")).toEqual([]);
    expect(wrong).toEqual([]);
  });

  it("units are those that people use, in captions, axes and tables", async () => {
    const { page, wrong } = served;
    await open(deck("vela-power-brake", "?gpu=v002%2F3"));
    for (const [title, says] of [["PCIe received", /^PCIe received GB\/s v002\/3 [\d.]+ GB\/s/], ["Memory used", /^Memory used GiB v002\/3 69\.\d GiB/], ["Tensor pipes", /^Tensor pipes active % .*\d %/], ["Held back for heat", /% v002\/3 0 %/]] as const) {
      await chart(title).scrollIntoViewIfNeeded();
      await expect.poll(async () => (await chart(title).locator("h3").textContent())?.trim(), { message: title }).toMatch(says);
    }
    expect(await page.locator("main").innerText()).not.toMatch(/bytes|ns\/s|\bratio\b|\d[eE][+-]?\d/);
    await open(incident);
    await chart("Port received").scrollIntoViewIfNeeded();
    await expect.poll(() => chart("Port received").locator("h3").textContent()).toMatch(/Gb\/s v002\/mlx5_0 [\d.]+ Gb\/s/);
    const figures = page.locator("section[aria-label=Figures] tr");
    expect(await figures.filter({ hasText: /^power_w/ }).innerText()).toMatch(/150 W$/);
    expect(await figures.filter({ hasText: /^sm_clock_mhz/ }).innerText()).toMatch(/540 MHz$/);
    expect(await figures.filter({ hasText: /^power_violation_fraction_peers/ }).innerText()).toMatch(/44\.8 %$/);
    expect(wrong).toEqual([]);
  });

  it("what was not read is no zero, and what is empty says why", async () => {
    const { page, wrong } = served;
    await open(deck("poor", "?gpu=v002%2F3"));
    await page.getByRole("note").filter({ hasText: "no job reported its steps" }).waitFor();
    const lacked = page.getByRole("note").filter({ hasText: "No data in this recording of" });
    expect(await lacked.textContent()).toMatch(/Tensor pipes active|Held back for heat/);
    await expect.poll(() => page.locator("figure.chart").count()).toBeGreaterThan(3);
    expect(await page.locator("figure.chart", { hasText: "Held back for heat" }).count(), "no frame without a line").toBe(0);
    await open(`${incident}?from=2024-04-01T09:35:01Z&to=2024-04-01T09:35:12Z`);
    const note = page.getByRole("note").filter({ hasText: "Port received" });
    await note.waitFor();
    expect(await note.textContent()).toMatch(/no data.*shorter than it takes to read one.*every 30 s/);
    await open(deck("sakuraone-job-hang", "?t=2025-01-19T03:30:00.000Z&gpu=sk001%2F0"));
    await page.locator("section[aria-label='Steps of a job']").scrollIntoViewIfNeeded();
    await expect.poll(() => chart("Step time").locator(".readout").textContent(), { message: "no step is no step of 0 s" }).toContain("no data");
    await chart("Tensor pipes").scrollIntoViewIfNeeded();
    await expect.poll(() => chart("Tensor pipes").locator(".readout").textContent(), { message: "pipes that stand still were read" }).toMatch(/sk001\/0 0 %/);
    await open(incident);
    await expect.poll(() => page.locator("section[aria-label=Impact] td[data-name=stood]").allTextContents(), { message: "a job that did not stand stood for no time" }).toEqual(["0.0 s"]);
    expect(wrong).toEqual([]);
  });

  it("every table is sorted and filtered by what the address says, and says so to a screen reader", async () => {
    const { page, wrong } = served;
    const tables: readonly (readonly [page: string, region: string, id: string, column: string, unfold?: string])[] = [
      ["#/", "main section.panel", "incidents", "GPUs"],
      ["#/library", "section[aria-label=Recordings]", "recordings", "length"],
      ["#/library", "section[aria-label=Runs]", "runs", "findings", "All runs of the detectors"],
      [deck("vela-power-brake"), "section[aria-label=Findings]", "findings", "found"],
      [deck("vela-power-brake"), "section[aria-label=Incidents]", "incidents", "began"],
      [deck("vela-power-brake"), "section[aria-label=Fleet]", "machines", "machine", "As a table"],
      ["#/coverage/vela-power-brake", "section[aria-label=Faults]", "faults", "fault"],
      ["#/score", "section[aria-label=Runs]", "runs", "recording"],
    ];
    for (const [at, region, id, column, unfold] of tables) {
      await open(at);
      const panel = page.locator(region).filter({ has: page.locator("table, summary") }).first();
      const unfolded = async () => {
        if (unfold !== undefined && (await panel.locator("details").getAttribute("open")) === null) {
          await panel.locator("summary", { hasText: unfold }).click();
        }
        await panel.locator("tbody tr").first().waitFor();
      };
      await unfolded();
      const header = panel.getByRole("columnheader", { name: column, exact: true });
      const name = panel.getByRole("button", { name: column, exact: true });
      const cells = async () => panel.locator(`td[data-name="${column}"]`).allInnerTexts();
      await name.click();
      await expect.poll(() => header.getAttribute("aria-sort"), { message: `${at} ${id}` }).toBe("ascending");
      expect(address(`sort-${id}`)).toBe(column);
      const up = await cells();
      await name.click();
      await expect.poll(() => header.getAttribute("aria-sort")).toBe("descending");
      expect(address(`sort-${id}`)).toBe(`-${column}`);
      expect(await cells(), `${at} ${id}`).toEqual(up.toReversed());
      await open(new URL(page.url()).hash);
      await unfolded();
      await expect.poll(() => header.getAttribute("aria-sort"), { message: `${id} by a link` }).toBe("descending");
      expect(await cells()).toEqual(up.toReversed());
    }
    await open("#/library?find-recordings=power+brakes");
    await expect.poll(() => page.locator("article h2").allTextContents()).toEqual([expect.stringContaining("power card"), expect.stringContaining("power card")]);
    await page.getByLabel("Rows with").fill("poor");
    await expect.poll(() => page.locator("article").count()).toBe(1);
    expect(address("find-recordings")).toBe("poor");
    await page.getByLabel("Rows with").fill("nothing like it");
    await page.getByText("none of 3 rows has these words").waitFor();
    expect(await inspected(page, "library-filtered")).toEqual([]);
    expect(wrong).toEqual([]);
  });

  it("a time that stands alone names its zone", async () => {
    const { page } = served;
    for (const at of ["#/", "#/library", deck("vela-power-brake", "?gpu=v002%2F3"), incident, "#/compare", "#/score"]) {
      await open(at);
      await page.locator("main h1, main h2").first().waitFor();
      await page.waitForLoadState("networkidle");
      await unfoldAll(page);
      const without = await page.evaluate(() => {
        const found = [...document.querySelectorAll("main time")].map((one) => one.textContent).filter((text) => !text.endsWith(" UTC"));
        const walk = document.createTreeWalker(document.querySelector("main") as Node, NodeFilter.SHOW_TEXT);
        for (let node = walk.nextNode(); node !== null; node = walk.nextNode()) {
          const text = node.textContent ?? "";
          // What machines wrote stands as they wrote it.
          if (/\d{4}-\d\d-\d\d[ T]\d\d:\d\d/.test(text) && !/UTC|\dZ/.test(text) && node.parentElement?.closest(".mono, .figures, .small") === null) {
            found.push(text);
          }
        }
        return found;
      });
      expect([at, without]).toEqual([at, []]);
    }
    await open(deck("vela-power-brake", "?gpu=v002%2F3"));
    await chart("Power").locator(".u-over").waitFor();
    expect(await chart("Power").locator(".zone").textContent()).toBe("UTC");
    expect(await page.locator(".timeline text").first().textContent()).toMatch(/^\d\d:\d\d:\d\d UTC$/);
  });
});
