/** A live replay through Kafka, the detect service and Alertmanager, steered in the browser. */
import { spawn, type ChildProcess } from "node:child_process";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { PATIENCE_MS } from "./patience";
import { ended, inspected, PYTHON, READY, ROOT, serve, type Served } from "./server";

interface Servers {
  readonly kafka: string;
  readonly alertmanager: string;
  readonly replay: string;
  readonly cluster: string;
}

const NOT_BUILT = 77;

/** Start the servers; null where they have not been built (`make servers`). */
function start(child: ChildProcess): Promise<Servers | null> {
  return new Promise((done, failed) => {
    let told = "";
    child.stdout?.on("data", (text: Buffer) => {
      told += text.toString();
      if (told.includes("\n")) {
        done(JSON.parse(told) as Servers);
      }
    });
    child.once("exit", (code) => (code === NOT_BUILT ? done(null) : failed(new Error(`the servers ended with ${String(code)}`))));
  });
}

describe.skipIf(!READY)("a live replay in a browser (needs the real servers, too)", () => {
  let served: Served | undefined;
  let stack: ChildProcess | undefined;
  let cluster = "";
  beforeAll(async () => {
    stack = spawn(PYTHON, [join(import.meta.dirname, "stack.py")], { cwd: ROOT, stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, PYTHONPATH: ROOT } });
    const at = await start(stack);
    if (at !== null) {
      cluster = at.cluster;
      served = await serve({ HINDCAST_API_REPLAY_URL: at.replay, HINDCAST_API_ALERTMANAGER_URL: at.alertmanager, HINDCAST_KAFKA_BOOTSTRAP: at.kafka });
    }
  });
  afterAll(async () => {
    await served?.close();
    if (stack !== undefined) {
      await ended(stack);
    }
  });

  it("is started, paused, sped up, alerted, sought and stopped", async (test) => {
    if (served === undefined) {
      test.skip("the servers are not built: make servers");
      return;
    }
    const { page, base, wrong } = served;
    const deck = page.locator("section[aria-label='Tape deck']");
    const state = deck.locator("[role=status]");
    const findings = page.locator("section[aria-label=Findings] tbody tr");
    await page.goto(`${base}#/library`);
    const article = page.locator("article", { hasText: "vela-power-brake" });
    await article.getByRole("button", { name: "Live…" }).click();
    await article.locator("label", { hasText: /^speed/ }).locator("select").selectOption("1");
    await article.getByRole("button", { name: "Start live" }).click();
    await page.waitForURL(/#\/replay\/vela-power-brake/);
    await deck.getByRole("button", { name: "Pause" }).click();
    await expect.poll(() => state.textContent()).toBe("paused");
    await page.waitForSelector("canvas.heat");
    const stands = await page.locator(".clock").textContent();
    expect(await findings.count()).toBe(0);
    await deck.locator("select").selectOption("300");
    await expect.poll(() => deck.locator("select").inputValue()).toBe("300");
    await page.keyboard.press("[");
    await expect.poll(() => deck.locator("select").inputValue()).toBe("60");
    // Slow enough that it still goes on when all that follows was looked at.
    await page.keyboard.press("[");
    await expect.poll(() => deck.locator("select").inputValue()).toBe("10");
    expect(await page.locator(".clock").textContent()).toBe(stands);
    await deck.getByRole("button", { name: "Resume" }).click();
    await expect.poll(() => state.textContent()).toBe("running");
    const line = await page.locator(".timeline").boundingBox();
    const beforeTheFault = () => page.mouse.click((line?.x ?? 0) + (line?.width ?? 0) / 5, (line?.y ?? 0) + 30);
    await beforeTheFault();
    await deck.getByText("generation 1").waitFor();
    await findings.first().waitFor();
    expect(await findings.first().textContent()).toContain("power_throttle");
    await page.locator("section[aria-label='Alerts sent'] li", { hasText: "PowerThrottle" }).waitFor();
    expect(await inspected(page, "live")).toEqual([]);
    await page.keyboard.press("Home");
    await deck.getByText("generation 2").waitFor();
    await expect.poll(() => findings.count()).toBe(0);
    await beforeTheFault();
    await deck.getByText("generation 3").waitFor();
    await findings.first().waitFor();
    await page.locator("section[aria-label=Incidents] a").first().click();
    await page.locator("section[aria-label='Alerts sent'] li").waitFor();
    await page.getByRole("link", { name: "Live replay vela-power-brake" }).click();
    await deck.getByRole("button", { name: "Stop" }).click();
    await expect.poll(() => state.textContent()).toContain("stopped");
    expect(wrong).toEqual([]);
  });

  it("a finding of a live cluster is acknowledged, silenced and closed", async (test) => {
    const page = await served?.page.context().browser()?.newPage({ colorScheme: "dark" });
    if (page === undefined) {
      test.skip("the servers are not built: make servers");
      return;
    }
    page.setDefaultTimeout(PATIENCE_MS);
    await page.goto(cluster);
    const row = page.locator("tr", { hasText: "power_throttle" });
    await row.getByText("Do something about it").click();
    const act = async (what: string, note: string) => {
      await row.locator("section[aria-label='What you do about it'] textarea").fill(note);
      await row.getByRole("button", { name: what, exact: true }).click();
    };
    await act("Acknowledge", "I look at it");
    await row.getByText("acknowledged by local").waitFor();
    await act("Silence its alert", "its PSU is swapped");
    expect(await row.getByRole("link", { name: /^until/ }).getAttribute("href")).toContain("/#/silences/");
    expect(await inspected(page, "cluster")).toEqual([]);
    await act("Close", "a known supply");
    await page.locator("summary", { hasText: "Over:" }).click();
    await expect.poll(() => row.textContent()).toMatch(/closed by local.*a known supply/);
    await page.close();
  });
});
