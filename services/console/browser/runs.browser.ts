/** What the pages of a run and of its recording say: with which settings, up to where, on which day, by whose word. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, ROOT, serve, type Served } from "./server";

describe.skipIf(!READY)("runs in the console (needs Chromium, the built console and .venv)", () => {
  const folder = mkdtempSync(join(tmpdir(), "hindcast-console-"));
  let served: Served;
  /** Of the detectors as they come, over the recording with a fault. */
  let plain = "";
  beforeAll(async () => {
    for (const name of ["vela-power-brake", "vela-healthy"]) {
      cpSync(join(ROOT, "replay-data/small", name), join(folder, name), { recursive: true });
    }
    // Two days longer than its telemetry, and labelled by nobody.
    for (const [name, change] of [["two-days", (header: string) => header.replace(/^end: .*$/m, "end: 2024-04-03T09:50:00Z")], ["unlabelled", (header: string) => header]] as const) {
      cpSync(join(folder, "vela-power-brake"), join(folder, name), { recursive: true });
      const header = join(folder, name, "recording.yaml");
      writeFileSync(header, change(readFileSync(header, "utf8")).replace("name: vela-power-brake", `name: ${name}`));
    }
    writeFileSync(join(folder, "unlabelled", "labels.jsonl"), "");
    served = await serve({ HINDCAST_API_LIBRARY: JSON.stringify([folder]) });
  });
  afterAll(async () => {
    await served.close();
    rmSync(folder, { recursive: true });
  });

  interface Run {
    readonly id: string;
    readonly state: string;
  }
  const start = async (recording: string, detectors = {}) =>
    ((await (await served.page.request.post(`${served.base}api/v1/runs`, { data: { recording, detectors } })).json()) as Run).id;
  const state = async (run: string) => ((await (await served.page.request.get(`${served.base}api/v1/runs/${run}`)).json()) as Run).state;
  const note = (text: string) => served.page.getByRole("note").filter({ hasText: text });

  it("waits for the one before it, and can be cancelled, which its page says", async () => {
    const { page, base, wrong } = served;
    const [first, second] = [await start("vela-healthy"), await start("vela-power-brake")];
    await page.goto(`${base}#/run/${second}`);
    await page.getByText("waits for its turn").waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByText("The run was cancelled. What came after 2024-04-01 09:24:00 UTC was not looked at.").waitFor();
    expect(await inspected(page, "cancelled")).toEqual([]);
    await page.request.post(`${base}api/v1/runs/${first}/cancel`, { data: {} });
    expect(wrong).toEqual([]);
  });

  it("of other settings says so, and is not what its recording leads to", async () => {
    const { page, base, wrong } = served;
    plain = await start("vela-power-brake");
    const changed = await start("vela-power-brake", { power_throttle: { enabled: false } });
    await expect.poll(() => state(changed)).toBe("done");
    await page.goto(`${base}#/run/${changed}`);
    await note("Not the detectors as they come: power_throttle.enabled = false.").waitFor();
    expect(await inspected(page, "changed")).toEqual([]);
    await page.goto(`${base}#/library/vela-power-brake`);
    await page.locator("article h2 a").click();
    await expect.poll(() => page.url()).toContain(`#/run/${plain}`);
    await page.waitForSelector("section[aria-label='Score']");
    expect(await note("Not the detectors as they come").count()).toBe(0);
    expect(wrong).toEqual([]);
  });
  it("of thousands of incidents shows some, and its findings are not far below them", async () => {
    const { page, base, wrong } = served;
    await page.route(`**/api/v1/runs/${plain}/incidents?*`, async (route) => {
      const answer = (await (await route.fetch()).json()) as { items: { id: string }[] };
      const items = Array.from({ length: 4000 }, (_, number) => ({ ...answer.items[0], id: String(number) }));
      await route.fulfill({ json: { ...answer, items, total: items.length } });
    });
    await page.goto("about:blank"); // what is shown already is not asked for again
    await page.goto(`${base}#/run/${plain}`);
    await page.getByText("At most 50 are shown").waitFor();
    expect(await page.locator("section[aria-label=Incidents] tbody tr").count()).toBe(50);
    await page.unrouteAll({ behavior: "wait" });
    expect(wrong).toEqual([]);
  });

  it("belongs to a recording whose page lists what was wrong first, with its day, or that nobody has labelled it", async () => {
    const { page, base, wrong } = served;
    const labels = page.getByRole("region", { name: "Labels" });
    await page.goto(`${base}#/library/vela-power-brake`);
    await labels.locator("tbody tr").first().waitFor();
    expect(await labels.locator("tbody tr").first().innerText()).toMatch(/power_throttle.*09:30:00 UTC/s);
    await page.goto(`${base}#/library/two-days`);
    await expect.poll(() => labels.locator("tbody tr").first().innerText()).toMatch(/power_throttle.*2024-04-01 09:30:00 UTC/s);
    await page.goto(`${base}#/library/unlabelled`);
    await labels.getByText("Nobody has labelled it").waitFor();
    expect(await inspected(page, "unlabelled")).toEqual([]);
    expect(wrong).toEqual([]);
  });
});
