/**
 * How fast the deck of a run is, of a server that runs already: HINDCAST_SPEED='http://127.0.0.1:8490/#/run/ID'.
 * Prints when the fleet was there, what the page computed for it, and what a move of the time line costs.
 */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Browser, CDPSession, Page } from "playwright-core";
import { launch, READY } from "./server";

const ADDRESS = process.env["HINDCAST_SPEED"];
const MOVES = 120;

async function taskMs(session: CDPSession): Promise<number> {
  const { metrics } = await session.send("Performance.getMetrics");
  return 1000 * (metrics.find(({ name }) => name === "TaskDuration")?.value ?? NaN);
}

describe.skipIf(!READY || ADDRESS === undefined)("speed", () => {
  let browser: Browser;
  let page: Page;
  beforeAll(async () => {
    browser = await launch();
    page = await browser.newPage({ viewport: { width: 1366, height: 820 } });
    // What a browser does only once is no part of it.
    await page.goto(new URL("#/library", ADDRESS).href);
    await page.waitForSelector("article");
    await page.goto("about:blank");
  });
  afterAll(() => browser.close());

  it("of the first view and of scrubbing", async () => {
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable");
    await page.goto(ADDRESS ?? "", { waitUntil: "commit" });
    await page.waitForFunction(() => document.querySelector(".legend")?.textContent.includes("well"), null, { polling: "raf" });
    const viewMs = await page.evaluate(() => performance.now());
    const viewTaskMs = await taskMs(session);
    await page.waitForSelector(".uplot");
    await page.evaluate(() => {
      const seen: number[] = [];
      Object.assign(globalThis, { longTasks: seen });
      new PerformanceObserver((list) => seen.push(...list.getEntries().map((one) => one.duration))).observe({ type: "longtask" });
    });
    const line = await page.locator(".timeline").boundingBox();
    const [left, width, y] = [line?.x ?? 0, line?.width ?? 0, (line?.y ?? 0) + 30];
    const before = await taskMs(session);
    await page.mouse.move(left, y);
    await page.mouse.down();
    for (let move = 0; move < MOVES; move += 1) {
      await page.mouse.move(left + (move * width) / MOVES, y);
    }
    await page.mouse.up();
    const moveTaskMs = ((await taskMs(session)) - before) / MOVES;
    const longTasks = await page.evaluate(() => (globalThis as unknown as { longTasks: number[] }).longTasks);
    const told = { viewMs, viewTaskMs, moveTaskMs, longestTaskMs: Math.max(0, ...longTasks), longTasks: longTasks.length };
    console.log(JSON.stringify(told));
    expect(viewTaskMs).toBeGreaterThan(0);
  });
});
