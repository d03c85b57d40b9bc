/** A recording whose names and texts try to become markup or code, on every page that shows them. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { PYTHON, READY, ROOT, serve, type Served } from "./server";

const WRITE = `
import sys
from pathlib import Path
from tests.hostile import hostile_recording
hostile_recording(Path("replay-data/small/vela-power-brake"), Path(sys.argv[1]), node="v002", job_id="812")
`;
const NOTE = `<img src=x onerror="top.owned='note'"> [here](javascript:top.owned='note')`;

describe.skipIf(!READY)("hostile names and log lines in a browser (needs Chromium, the built console and .venv)", () => {
  const folder = mkdtempSync(join(tmpdir(), "hindcast-hostile-"));
  const dialogs: string[] = [];
  let served: Served;
  beforeAll(async () => {
    execFileSync(PYTHON, ["-c", WRITE, join(folder, "hostile")], { cwd: ROOT, env: { ...process.env, PYTHONPATH: ROOT } });
    served = await serve({ HINDCAST_API_LIBRARY: JSON.stringify([folder]) });
    served.page.on("dialog", (dialog) => {
      dialogs.push(dialog.message());
      void dialog.dismiss();
    });
  });
  afterAll(async () => {
    await served.close();
    rmSync(folder, { recursive: true });
  });

  /** What ran, or would if it were clicked, in the page and in what it frames. */
  async function taken(): Promise<readonly string[]> {
    const found = served.page.frames().map((frame) =>
      frame.evaluate(() => [
        ...(Object.hasOwn(globalThis, "owned") ? [`ran: ${String(Object.getOwnPropertyDescriptor(globalThis, "owned")?.value)}`] : []),
        ...[...document.querySelectorAll("img[src=x], script:not([src]), a[href^='javascript:' i], [onerror]")].map((one) => one.outerHTML),
      ]),
    );
    return [...(await Promise.all(found)).flat(), ...dialogs, ...served.wrong];
  }

  it("shows them as the text they are", async () => {
    const { page, base } = served;
    const shown = (text: string) => page.getByText(text).first().waitFor();
    await page.goto(`${base}#/library`);
    const article = page.locator("article", { hasText: "hostile" });
    await shown("top.owned='title'");
    expect(await taken(), "library").toEqual([]);
    await article.getByRole("link", { name: "Coverage" }).click();
    await page.locator("section[aria-label=Faults] tbody tr").first().waitFor();
    expect(await taken(), "coverage").toEqual([]);
    await page.goto(`${base}#/library`);
    await article.getByRole("button", { name: "Replay" }).click();
    await page.waitForSelector("section[aria-label='Score']");
    await page.locator("canvas.heat").click({ position: { x: 120, y: 60 } });
    await page.waitForSelector("section[aria-label^='Signals of v002'] .uplot");
    await page.keyboard.press("End");
    await shown("top.owned='log line'");
    expect(await taken(), "replay").toEqual([]);
    await page.locator("section[aria-label=Incidents] a").click();
    await page.waitForSelector("section[aria-label=Evidence] .uplot");
    const judgement = page.locator("section[aria-label='Your judgement']");
    await judgement.locator("textarea").fill(NOTE);
    await page.getByRole("button", { name: "✓ Right" }).click();
    await expect.poll(() => judgement.locator("[role=status]").textContent()).toContain(NOTE);
    expect(await taken(), "incident").toEqual([]);
    await page.keyboard.press("m");
    await page.getByRole("button", { name: "Make the postmortem" }).click();
    const report = page.frameLocator("iframe.report");
    await report.getByText("top.owned='log line'").first().waitFor();
    expect(await taken(), "postmortem").toEqual([]);
    const coming = page.waitForEvent("download");
    await page.getByRole("link", { name: "Download HTML" }).click();
    const file = join(folder, "postmortem.html");
    await (await coming).saveAs(file);
    await page.goto(`${base}#/`);
    await page.waitForSelector("main td a");
    expect(await taken(), "what was wrong").toEqual([]);
    await page.goto(`${base}#/score`);
    await page.waitForSelector("section[aria-label=Delays] svg path");
    expect(await taken(), "score").toEqual([]);
    const outside = served.wrong.length;
    await page.goto(pathToFileURL(file).href);
    await shown("top.owned='log line'");
    const asked = served.wrong.slice(outside).filter((one) => !one.startsWith("asked file:"));
    expect([...(await taken()).filter((one) => !one.startsWith("asked file:")), ...asked], "the file").toEqual([]);
  });
});
