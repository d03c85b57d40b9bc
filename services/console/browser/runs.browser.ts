/** What a run's page says of how it was run and how it ended: with which settings, in which order, up to where. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, serve, type Served } from "./server";

describe.skipIf(!READY)("runs in the console (needs Chromium, the built console and .venv)", () => {
  let served: Served;
  beforeAll(async () => {
    served = await serve();
  });
  afterAll(() => served.close());

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
    const plain = await start("vela-power-brake");
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
});
