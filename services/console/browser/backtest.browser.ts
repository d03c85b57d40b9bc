/** A backtest in the console: refused with its line, mended, cancelled, made, read, corrected and counted again. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, ROOT, serve, type Served } from "./server";

interface Label {
  readonly entity: { readonly node?: string };
  readonly onset: string;
  readonly end: string;
  readonly within_s: number;
  readonly distractor?: boolean;
}

const RECORDING = join(ROOT, "replay-data/small/vela-power-brake");
const LABELS = readFileSync(join(RECORDING, "labels.jsonl"), "utf8").trim().split("\n").map((line) => JSON.parse(line) as Label).filter((one) => one.distractor !== true);
const OPENED_S = 600;
const opened = ({ onset }: Label) => new Date(Date.parse(onset) + OPENED_S * 1000).toISOString();
/** A ticket of each label, ten minutes after its onset, and one that is about nothing that telemetry has. */
const TICKETS = [
  "id,created,resolved,host,summary",
  ...LABELS.map((one, number) => `OPS-${number + 1},${opened(one)},${one.end},${one.entity.node},power brake`),
  `BIOS,${LABELS.map(opened)[0]},,v001,please update the BIOS`,
].join("\n");
const WRONG = TICKETS.replace(/^BIOS,[^,]*/m, "BIOS,yesterday");
const SETTINGS = "power_throttle:\n  confirm_readings: 3\n";

describe.skipIf(!READY)("a backtest in a browser (needs Chromium, the built console and .venv)", () => {
  let served: Served;
  beforeAll(async () => {
    served = await serve();
  });
  afterAll(() => served.close());

  const narrow = async () => {
    const { page } = served;
    await page.setViewportSize({ width: 390, height: 844 });
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(390);
    expect(await inspected(page, `backtest-narrow-${new URL(page.url()).hash.length}`)).toEqual([]);
    await page.setViewportSize({ width: 1366, height: 820 });
  };
  const make = () => served.page.getByRole("button", { name: "Make the backtest" }).click();

  it("refuses wrong tickets and settings with their line and what to do", async () => {
    const { page, base, wrong } = served;
    await page.goto(`${base}#/library`);
    await page.getByRole("link", { name: "Backtest of vela-power-brake" }).click();
    const tickets = page.getByRole("textbox", { name: "Tickets as CSV" });
    await tickets.fill(WRONG);
    await page.getByLabel("detectors decide every").selectOption("30");
    await make();
    const refused = page.getByRole("alert");
    await refused.filter({ hasText: `tickets: line ${WRONG.split("\n").length}: 'yesterday' is not a time` }).filter({ hasText: "What to do: write it as" }).waitFor();
    const file = (text: string, encoding: "utf8" | "latin1") => ({ name: "stricter.yaml", mimeType: "text/yaml", buffer: Buffer.from(text, encoding) });
    await page.getByLabel("Files of detectors.yaml").setInputFiles(file("# für uns", "latin1"));
    await refused.filter({ hasText: "stricter.yaml is no text in UTF-8" }).waitFor();
    await page.getByLabel("Files of detectors.yaml").setInputFiles(file(SETTINGS.replace("confirm", "confrm"), "utf8"));
    await page.locator("input[type=file][accept='.csv']").setInputFiles({ name: "tickets.csv", mimeType: "text/csv", buffer: Buffer.from(TICKETS) });
    await expect.poll(() => tickets.inputValue()).toBe(TICKETS);
    await make();
    await refused.filter({ hasText: "configuration 'stricter', line 2: power_throttle.confrm_readings: no such setting; did you mean confirm_readings?" }).filter({ hasText: "What to do:" }).waitFor();
    expect(await inspected(page, "backtest-refused")).toEqual([]);
    await page.getByLabel("detectors.yaml of stricter").fill(SETTINGS);
    await narrow();
    expect(wrong).toEqual([]);
  });

  it("is cancelled while it waits, and what was filled in is there still", async () => {
    const { page, base, wrong } = served;
    const before = await (await fetch(`${base}api/v1/scores`, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" })).json() as { id: string };
    await make();
    await page.getByText("waits for its turn").waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByText("It was cancelled.").waitFor();
    expect((await fetch(`${base}api/v1/tasks/${before.id}/cancel`, { method: "POST" })).status).toBe(200);
    await page.getByRole("link", { name: "Backtests" }).click();
    await page.getByRole("region", { name: "Made before" }).getByText("cancelled").waitFor();
    expect(await page.getByRole("textbox", { name: "Tickets as CSV" }).inputValue()).toBe(TICKETS);
    expect(wrong).toEqual([]);
  });

  it("holds a recording against tickets, and counts again what a person corrects", async () => {
    const { page, wrong } = served;
    await make();
    const figures = page.getByRole("region", { name: "Would we have caught it?" });
    const figure = async (what: string) => (await figures.getByRole("row", { name: what }).locator("td").allInnerTexts()).map((text) => text.replace(/^\D+/, ""));
    await figures.waitFor();
    expect((await figures.locator("thead th").allInnerTexts()).slice(1)).toEqual(["defaults", "stricter"]);
    const all = String(LABELS.length);
    expect([await figure("to be caught"), await figure("✓"), await figure("before the ticket"), await figure("missed"), await figure("false alarms")]).toEqual([[all, all], [all, all], [all, all], ["0", "0"], ["0", "0"]]);
    const matches = page.getByRole("region", { name: "Matches" });
    for (const [number, label] of LABELS.entries()) {
      const cells = await matches.getByRole("row", { name: `OPS-${number + 1}` }).locator("td").allInnerTexts();
      const minutes = cells.slice(2, 4).map((text) => Number(/caught (\d+) min before/.exec(text)?.[1]));
      // The detector promises to speak within so many seconds of the onset; decisions are half a minute apart.
      minutes.forEach((one) => expect(one).toBeGreaterThanOrEqual(Math.floor((OPENED_S - label.within_s - 30) / 60)));
      cells.slice(2, 4).forEach((text) => expect(text).toContain(`power_throttle ${label.entity.node}`));
    }
    expect(await matches.getByRole("row", { name: "BIOS" }).innerText()).toContain("unclear");
    await page.frameLocator("iframe.report").getByText("please update the BIOS").first().waitFor();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download the matches" }).click()]);
    expect(download.suggestedFilename()).toMatch(/^backtest-[0-9a-f]+\.csv$/);
    expect(readFileSync(await download.path(), "utf8")).toMatch(/^defaults,OPS-1,.*,caught,"time, host, words"/m);
    expect(await inspected(page, "backtest")).toEqual([]);
    await narrow();
    const correct = page.getByLabel("Correct BIOS");
    await correct.fill("no such thing");
    await page.getByRole("button", { name: "Count again" }).click();
    await page.getByRole("alert").filter({ hasText: "ticket BIOS: 'no' is no fault" }).waitFor();
    await correct.fill("none");
    await page.getByText("What GPU-hours are counted by").click();
    await page.getByLabel("minutes between a job's checkpoints").fill("60");
    await page.getByRole("button", { name: "Count again" }).click();
    await page.getByText("Outside: 1. No machine of the cluster is named, or it was set apart by hand.").waitFor();
    expect(await page.getByRole("heading", { level: 1 }).innerText()).toBe("vela-power-brake against tickets: defaults, stricter: 1 corrected");
    await page.getByText("What GPU-hours are counted by").click();
    expect(await page.getByLabel("minutes between a job's checkpoints").inputValue()).toBe("60");
    expect(wrong).toEqual([]);
  });
});
