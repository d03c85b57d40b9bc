/** Forty files of many kinds, dropped together: one recording, what came of each file, and the five faults in them. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, PYTHON, READY, ROOT, serve, type Served } from "./server";

const WRITE = `
import sys
from pathlib import Path
from tests.heap_of_files import write_heap
from tests.heap_scenario import incident
folder = Path(sys.argv[1])
write_heap(incident(folder), folder / "files")
`;
const FAULTS = ["ecc_uncorrectable", "link_down", "node_down", "power_throttle", "thermal_throttle"];

interface Run {
  readonly id: string;
  readonly state: string;
}

interface Finding {
  readonly fault: string;
  readonly severity: string;
}

describe.skipIf(!READY)("a heap of files in a browser (needs Chromium, the built console and .venv)", () => {
  const folder = mkdtempSync(join(tmpdir(), "hindcast-heap-"));
  let served: Served;
  beforeAll(async () => {
    execFileSync(PYTHON, ["-c", WRITE, folder], { cwd: ROOT, env: { ...process.env, PYTHONPATH: ROOT } });
    served = await serve();
  });
  afterAll(async () => {
    await served.close();
    rmSync(folder, { recursive: true });
  });

  it("takes all of them at once, says what came of each, and finds what was wrong", async () => {
    const { page, base, wrong } = served;
    const files = readdirSync(join(folder, "files"), { recursive: true, withFileTypes: true }).filter((one) => one.isFile());
    expect(files.length).toBe(40);
    await page.goto(`${base}#/library`);
    await page.getByLabel("Import", { exact: true }).getByRole("combobox").selectOption("heap");
    await page.getByLabel("name of the recording").fill("morning");
    await page.getByLabel("title").fill("A bad morning at two clusters' worth of files");
    await page.getByLabel("timezone").fill("Europe/Zurich");
    await page.locator("input[type=file]").setInputFiles(files.map((one) => join(one.parentPath, one.name)));
    await page.getByText("morning is in the library.").waitFor();
    await page.getByRole("article", { name: "A bad morning at two clusters' worth of files" }).waitFor();
    const table = await page.getByLabel("What came of each file").innerText();
    for (const words of ["openmetrics", "promtool", "query-gpu", "line-protocol", "grafana", "loki", "journald", "sacct", "ipmitool", "notes.md"]) {
      expect(table.toLowerCase()).toContain(words);
    }
    expect(await inspected(page, "heap")).toEqual([]);
    const run = (await (await page.request.post(`${base}api/v1/runs`, { data: { recording: "morning" } })).json()) as Run;
    await expect
      .poll(async () => ((await (await page.request.get(`${base}api/v1/runs/${run.id}`)).json()) as Run).state)
      .toBe("done");
    const told = (await (await page.request.get(`${base}api/v1/runs/${run.id}/findings?limit=1000`)).json()) as { readonly items: readonly Finding[] };
    const alerts = told.items.filter((one) => one.severity !== "info");
    expect(alerts.map((one) => one.fault).sort()).toEqual(FAULTS);
    expect(wrong).toEqual([]);
  });
});
