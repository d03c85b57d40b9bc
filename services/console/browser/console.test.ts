/** The console driven as a person would, in Chromium, on the small recordings and a server of its own. */
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium, type Browser, type Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";

const ROOT = resolve(import.meta.dirname, "../../..");
const BROWSER = [process.env["CHROMIUM"], "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(
  (path) => path !== undefined && existsSync(path),
);
const PYTHON = process.env["HINDCAST_PYTHON"] ?? join(ROOT, ".venv/bin/python");
const BUILT = existsSync(join(ROOT, "services/api/static/index.html"));
/** Where screenshots are kept, if anywhere. */
const SHOTS = process.env["HINDCAST_SHOTS"];

function freePort(): Promise<number> {
  return new Promise((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => done(typeof address === "object" && address !== null ? address.port : 0));
    });
  });
}

describe.skipIf(BROWSER === undefined || !BUILT || !existsSync(PYTHON))("the console in a browser (needs Chromium, the built console and .venv)", () => {
  const data = mkdtempSync(join(tmpdir(), "hindcast-console-"));
  const wrong: string[] = [];
  let server: ChildProcess | undefined;
  let browser: Browser | undefined;
  let page: Page;
  let base = "";

  beforeAll(async () => {
    const port = await freePort();
    base = `http://127.0.0.1:${port}/`;
    server = spawn(PYTHON, ["-m", "services.api"], {
      cwd: ROOT,
      stdio: "inherit",
      env: {
        ...process.env,
        PYTHONPATH: ROOT,
        HINDCAST_API_PORT: String(port),
        HINDCAST_API_DATA_DIR: data,
        HINDCAST_API_LIBRARY: JSON.stringify([join(ROOT, "replay-data/small")]),
      },
    });
    await vi.waitFor(async () => expect((await fetch(`${base}readyz`)).status).toBe(200), { timeout: 60_000, interval: 250 });
    browser = await chromium.launch({ ...(BROWSER === undefined ? {} : { executablePath: BROWSER }), args: ["--no-sandbox"] });
    page = await browser.newPage({ viewport: { width: 1366, height: 820 }, colorScheme: "dark" });
    page.on("pageerror", (error) => wrong.push(error.message));
    page.on("request", (request) => !request.url().startsWith(base) && wrong.push(`asked ${request.url()}`));
    page.on("response", (response) => response.status() >= 500 && wrong.push(`${response.status()} ${response.url()}`));
  });

  afterAll(async () => {
    await browser?.close();
    const gone = new Promise((done) => server?.once("exit", done));
    server?.kill();
    await gone;
    rmSync(data, { recursive: true });
  });

  const clock = () => page.locator(".clock").textContent();
  const findings = () => page.locator("section[aria-label=Findings] li").count();
  const shot = async (name: string) => {
    if (SHOTS !== undefined) {
      await page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
    }
  };

  it("replays an incident: play, pause, seek, speed, the finding, the GPU, the incident, a label", async () => {
    await page.goto(`${base}#/library`);
    await page.locator("article", { hasText: "vela-power-brake" }).getByRole("button", { name: "Replay" }).click();
    await page.waitForSelector("section[aria-label='Score']", { timeout: 90_000 });
    expect(await clock()).toBe("09:30:16");
    expect(await findings()).toBe(1);
    await page.keyboard.press("Home");
    expect([await clock(), await findings()]).toEqual(["09:24:00", 0]);
    await page.locator(".deck select").selectOption("300");
    await page.keyboard.press("Space");
    await expect.poll(clock).not.toBe("09:24:00");
    await page.keyboard.press("Space");
    const stands = await clock();
    await page.keyboard.press("Home");
    await page.keyboard.press("n");
    expect([await clock(), await findings()]).toEqual(["09:30:16", 1]);
    expect(stands).not.toBe("09:24:00");
    const line = await page.locator(".timeline").boundingBox();
    await page.mouse.click((line?.x ?? 0) + (line?.width ?? 0) / 2, (line?.y ?? 0) + 30);
    expect(await clock()).toMatch(/^09:3[67]:/);
    await expect.poll(() => page.url()).toContain("t=2024-04-01T09%3A3");
    await page.locator("canvas.heat").click({ position: { x: 120, y: 60 } });
    await page.waitForSelector("section[aria-label^='Signals of v002'] .uplot");
    await shot("replay");
    await page.locator("section[aria-label=Incidents] a").click();
    await page.waitForSelector("section[aria-label=Evidence] .uplot");
    expect(await page.locator("section[aria-label='Root cause'] li.root").first().textContent()).toContain("power_throttle, v002");
    await page.getByRole("button", { name: "Right" }).click();
    await page.waitForSelector("section[aria-label='Your judgement'] [role=status]");
    await shot("incident");
    await page.goto(`${base}#/`);
    await page.waitForSelector("main td a");
    await shot("wrong");
    expect(wrong).toEqual([]);
  });

  it("compares two configurations", async () => {
    await page.goto(`${base}#/compare`);
    await page.locator("select[aria-label=detector]").selectOption("power_throttle");
    await page.locator("select[aria-label=setting]").selectOption("enabled");
    await page.locator("input[aria-label=value]").fill("false");
    await page.locator("fieldset label", { hasText: "vela-power-brake" }).locator("input").check();
    await page.getByRole("button", { name: "Compare", exact: true }).click();
    await page.waitForSelector("td .sev", { timeout: 110_000 });
    expect(await page.locator("td .sev").first().textContent()).toContain("missed");
    await shot("compare");
    expect(wrong).toEqual([]);
  });
});
