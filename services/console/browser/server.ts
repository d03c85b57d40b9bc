/** An API of its own with the small recordings, and a browser that looks at it and notes what it should not do. */
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium, type Browser, type Page } from "playwright-core";
import { expect, vi } from "vitest";
import { PATIENCE_MS } from "./patience";

export const ROOT = resolve(import.meta.dirname, "../../..");
export const PYTHON = process.env["HINDCAST_PYTHON"] ?? join(ROOT, ".venv/bin/python");
const BROWSER = [process.env["CHROMIUM"], "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(
  (path) => path !== undefined && existsSync(path),
);
/** Where screenshots are kept, if anywhere. */
const SHOTS = process.env["HINDCAST_SHOTS"];
/** Whether there is all that is needed: Chromium, the console as it was built, and Python's environment. */
export const READY = BROWSER !== undefined && existsSync(join(ROOT, "services/api/static/index.html")) && existsSync(PYTHON);
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

function freePort(): Promise<number> {
  return new Promise((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => done(typeof address === "object" && address !== null ? address.port : 0));
    });
  });
}

export interface Served {
  readonly base: string;
  readonly page: Page;
  /** What the page did that it should not: errors, requests to elsewhere, answers of 500 and more. */
  readonly wrong: readonly string[];
  readonly close: () => Promise<void>;
}

export async function serve(env: Readonly<Record<string, string>> = {}): Promise<Served> {
  const data = mkdtempSync(join(tmpdir(), "hindcast-console-"));
  const port = await freePort();
  const base = `http://127.0.0.1:${port}/`;
  const server = spawn(PYTHON, ["-m", "services.api"], {
    cwd: ROOT,
    stdio: ["ignore", "inherit", "inherit"],
    env: {
      ...process.env,
      PYTHONPATH: ROOT,
      HINDCAST_API_PORT: String(port),
      HINDCAST_API_DATA_DIR: data,
      HINDCAST_API_LIBRARY: JSON.stringify([join(ROOT, "replay-data/small")]),
      // Nothing listens there, whatever runs on this machine.
      HINDCAST_API_REPLAY_URL: "http://127.0.0.1:1",
      ...env,
    },
  });
  let browser: Browser | undefined;
  const close = async () => {
    await browser?.close();
    await ended(server);
    rmSync(data, { recursive: true });
  };
  try {
    await vi.waitFor(async () => expect((await fetch(`${base}readyz`)).status).toBe(200), { timeout: PATIENCE_MS, interval: 250 });
    browser = await launch();
    const page = await browser.newPage({ viewport: { width: 1366, height: 820 }, colorScheme: "dark" });
    page.setDefaultTimeout(PATIENCE_MS);
    const wrong: string[] = [];
    page.on("pageerror", (error) => wrong.push(error.message));
    page.on("console", (message) => message.type() === "error" && !message.text().startsWith("Failed to load resource") && wrong.push(message.text()));
    page.on("request", (request) => !request.url().startsWith(base) && !/^(blob|data|about):/.test(request.url()) && wrong.push(`asked ${request.url()}`));
    page.on("response", (response) => response.status() >= 500 && response.status() !== 503 && wrong.push(`${response.status()} ${response.url()}`));
    return { base, page, wrong, close };
  } catch (error) {
    await close();
    throw error;
  }
}

export function launch(): Promise<Browser> {
  return chromium.launch({ ...(BROWSER === undefined ? {} : { executablePath: BROWSER }), args: ["--no-sandbox"] });
}

/** End a process, and wait until it has. */
export function ended(child: ChildProcess): Promise<void> {
  return new Promise((done) => {
    if (child.exitCode !== null || child.signalCode !== null) {
      done();
    } else {
      child.once("exit", () => done());
      child.kill();
    }
  });
}

interface Violation {
  readonly id: string;
  readonly nodes: readonly { readonly html: string; readonly failureSummary?: string }[];
}

/** Go through the page from top to end, as what is not near is not drawn, and back. */
async function scrolled(page: Page): Promise<void> {
  await page.evaluate(async () => {
    const frame = () => new Promise((done) => setTimeout(done, 50));
    for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight) {
      scrollTo(0, y);
      await frame();
    }
    while (document.querySelector("[aria-busy=true]") !== null) {
      await frame();
    }
    scrollTo(0, 0);
  });
}

/** Open all that is folded away on a page. */
export async function unfoldAll(page: Page): Promise<void> {
  const folded = page.locator("main details:not([open]) > summary");
  for (let left = await folded.count(); left > 0; left -= 1) {
    await folded.first().click(); // which is then no longer among them
    await expect.poll(() => folded.count()).toBeLessThan(left);
  }
}

/** What breaks WCAG 2.1 A or AA on a page, in either theme; keeps a picture of both where that is asked for. */
export async function inspected(page: Page, name: string): Promise<readonly string[]> {
  const found: string[] = [];
  await page.evaluate(AXE);
  for (const theme of ["dark", "light"]) {
    if ((await page.locator("html").getAttribute("data-theme")) !== theme) {
      await page.getByRole("button", { name: theme === "dark" ? "Dark" : "Light" }).dispatchEvent("click");
    }
    // What is not about colours is the same in both.
    const rules = theme === "dark" ? ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] : { type: "rule", values: ["color-contrast"] };
    const violations = await page.evaluate(async (runOnly) => {
      const { axe } = globalThis as unknown as { axe: { run: (what: unknown) => Promise<{ violations: Violation[] }> } };
      return (await axe.run({ runOnly, iframes: false })).violations;
    }, rules);
    found.push(...violations.flatMap((one) => one.nodes.map((node) => `${name}, ${theme}, ${one.id}: ${node.html} ${node.failureSummary ?? ""}`)));
    if (SHOTS !== undefined) {
      await scrolled(page);
      await page.screenshot({ path: join(SHOTS, `${name}-${theme}.png`), fullPage: true });
    }
  }
  return found;
}
