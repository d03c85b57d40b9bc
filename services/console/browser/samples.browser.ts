/** A new installation: it leads to the sample incidents; one is made, opened and replayed; what cannot be made is refused. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, serve, type Served } from "./server";

const TITLE = "A spine switch dies, and the seven others run full";
const MADE = "sakuraone-spine-loss-scale-0-02";

describe.skipIf(!READY)("sample incidents in a browser (needs Chromium, the built console and .venv)", () => {
  let served: Served;
  beforeAll(async () => {
    served = await serve({ HINDCAST_API_LIBRARY: "[]" });
  });
  afterAll(() => served.close());

  const samples = () => served.page.getByRole("region", { name: "Sample incidents" });
  const one = () => samples().getByRole("group", { name: TITLE });

  it("are where the first page of a new installation leads", async () => {
    const { page, base, wrong } = served;
    await page.goto(base);
    await page.getByRole("link", { name: "sample incidents" }).click();
    await one().waitFor();
    const row = samples().locator("tbody tr", { has: page.getByRole("group", { name: TITLE }) });
    expect(await row.innerText()).toMatch(/One of eight spines fails.*2 h 00|120 min/s);
    for (const words of ["100", "800", "link_down", "SAKURAONE", "about"]) {
      expect(await row.innerText()).toContain(words);
    }
    expect(await samples().locator("tbody tr").count()).toBeGreaterThan(30);
    await samples().getByRole("button", { name: "GPUs" }).click();
    const gpus = (await samples().locator("td[data-name=GPUs]").allInnerTexts()).map((text) => parseInt(text, 10));
    expect(gpus).toEqual(gpus.toSorted((a, b) => a - b));
    expect(await inspected(page, "samples")).toEqual([]);
    await samples().getByRole("searchbox").fill("sakuraone-spine-loss");
    await expect.poll(() => samples().locator("tbody tr").count()).toBe(1);
    expect(wrong).toEqual([]);
  });

  it("say why one cannot be made", async () => {
    const { page, wrong } = served;
    await one().getByRole("button", { name: "Options…" }).click();
    await one().getByLabel("scale").fill("0.001");
    await one().getByRole("button", { name: "Make", exact: true }).click();
    const refused = one().getByRole("alert");
    await refused.filter({ hasText: "scale 0.001 is out of range" }).filter({ hasText: "What to do: give 0.02 to 10" }).waitFor();
    expect(await inspected(page, "samples-refused")).toEqual([]);
    expect(wrong).toEqual([]);
  });

  it("are cancelled while they are made", async () => {
    const { wrong } = served;
    await one().getByLabel("scale").fill("10");
    await one().getByRole("button", { name: "Make", exact: true }).click();
    await one().getByRole("status").getByRole("button", { name: "Cancel" }).click();
    await one().getByRole("button", { name: "Make", exact: true }).waitFor();
    expect(await one().getByRole("alert").count()).toBe(0);
    expect(wrong).toEqual([]);
  });

  it("are made, opened and replayed", async () => {
    const { page, wrong } = served;
    await one().getByLabel("scale").fill("0.02");
    await one().getByRole("button", { name: "Make", exact: true }).click();
    await one().getByText(`In the library: ${MADE}`).waitFor();
    await page.locator("section[aria-label=Recordings] article").waitFor();
    expect(await inspected(page, "samples-made")).toEqual([]);
    await one().getByRole("button", { name: "Make", exact: true }).click();
    await one().getByRole("alert").filter({ hasText: `there is a recording ${MADE}` }).waitFor();
    await one().getByRole("link", { name: `Open ${MADE}` }).click();
    const labels = page.getByRole("region", { name: "Labels" });
    await labels.waitFor();
    expect(await labels.innerText()).toContain("link_down");
    expect(await page.getByRole("article", { name: TITLE }).count()).toBe(1);
    expect(await inspected(page, "recording")).toEqual([]);
    await page.goBack();
    await one().getByRole("button", { name: `Replay ${MADE}` }).click();
    await page.waitForSelector("section[aria-label='Score']");
    expect(wrong).toEqual([]);
  });
});
