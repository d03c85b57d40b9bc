/** Alert rules pasted into the console: refused with their line, mended, and shown beside what the detectors found. */
import { existsSync, readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, serve, type Served } from "./server";

const SERVERS = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "hindcast/servers");
const EVALUATOR = existsSync(SERVERS) && readdirSync(SERVERS).some((name) => name.startsWith("evaluator-"));
const RULES = `groups:
  - name: mine
    rules:
      - alert: DrawsLittle
        expr: avg by (Hostname) (DCGM_FI_DEV_POWER_USAGE) < < 190
        for: 10s
`;

describe.skipIf(!READY || !EVALUATOR)("alert rules in a browser (needs Chromium, the built console, .venv and the evaluator)", () => {
  let served: Served | undefined;
  beforeAll(async () => {
    served = await serve();
  });
  afterAll(() => served?.close());

  it("evaluates what is pasted over a recording, once it is right", async () => {
    const { page, base, wrong } = served as Served;
    await page.goto(`${base}#/library`);
    await page.getByRole("link", { name: "Rules over vela-power-brake" }).click();
    const rules = page.getByLabel("Rules as YAML");
    await page.locator("form select").first().selectOption("mine, below");
    await rules.fill(RULES);
    await page.getByRole("button", { name: "See what they fire" }).click();
    await page.getByRole("alert").filter({ hasText: "rules.yaml, line 5" }).waitFor();
    expect(await inspected(page, "rules-refused")).toEqual([]);
    await rules.fill(RULES.replace("< <", "<"));
    await page.getByRole("button", { name: "See what they fire" }).click();
    const labels = page.locator("section[aria-label=vela-power-brake] tr", { hasText: "power_throttle" });
    await labels.first().waitFor();
    expect(await labels.first().innerText()).toMatch(/due within 90 s[^]*DrawsLittle[^]*v002[^]*power_throttle/);
    expect(await inspected(page, "rules")).toEqual([]);
    await page.setViewportSize({ width: 390, height: 844 });
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(390);
    expect(wrong).toEqual([]);
  });
});
