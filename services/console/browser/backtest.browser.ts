/** A backtest asked for in the console, its figures and report, and a match corrected in its row. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, serve, type Served } from "./server";

const TICKETS = `id,created,resolved,host,summary
OPS-1,2024-04-01 09:40,2024-04-01 09:45,v002,power brake
OPS-2,2024-04-01 09:40,,v001,please update the BIOS
`;

describe.skipIf(!READY)("a backtest in a browser (needs Chromium, the built console and .venv)", () => {
  let served: Served | undefined;
  beforeAll(async () => {
    served = await serve();
  });
  afterAll(() => served?.close());

  it("holds a recording against tickets, and counts again what a person corrects", async () => {
    const { page, base, wrong } = served as Served;
    await page.goto(`${base}#/library`);
    await page.getByRole("link", { name: "Backtest of vela-power-brake" }).click();
    await page.getByRole("textbox", { name: "Tickets as CSV" }).fill(TICKETS);
    await page.getByLabel("detectors decide every").selectOption("30");
    expect(await inspected(page, "backtest-form")).toEqual([]);
    await page.getByRole("button", { name: "Make the backtest" }).click();
    const figures = page.getByRole("region", { name: "Would we have caught it?" }).locator("tbody tr");
    await figures.waitFor();
    expect((await figures.innerText()).split(/\s+/).slice(0, 6)).toEqual(["defaults", "1", "1", "0", "1", "0"]);
    expect(await inspected(page, "backtest")).toEqual([]);
    await page.getByLabel("Correct OPS-2").fill("none");
    await page.getByRole("button", { name: "Count again" }).click();
    await expect.poll(async () => (await figures.innerText()).split(/\s+/).slice(3, 6)).toEqual(["0", "0", "1"]);
    await page.setViewportSize({ width: 390, height: 844 });
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(390);
    expect(wrong).toEqual([]);
  });
});
