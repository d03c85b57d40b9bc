/** The console driven as a person would, in Chromium, on the small recordings and a server of its own. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, serve, unfoldAll, type Served } from "./server";

/** Presses the key that pauses, and what the clock then shows, each text once. */
async function clocksOfAPause(): Promise<string[]> {
  const seen = new Set<string>();
  const look = () => document.querySelector(".deck [aria-label=Play]") && seen.add(document.querySelector(".clock")?.textContent ?? "");
  const watched = new MutationObserver(look);
  watched.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true }));
  for (let frames = 0; frames < 10; frames += 1) {
    await new Promise(requestAnimationFrame);
  }
  watched.disconnect();
  return [...seen];
}

describe.skipIf(!READY)("the console in a browser (needs Chromium, the built console and .venv)", () => {
  let served: Served;
  beforeAll(async () => {
    served = await serve();
  });
  afterAll(() => served.close());

  const clock = () => served.page.locator(".clock").textContent();
  const findings = () => served.page.locator("section[aria-label=Findings] tbody tr").count();
  const shown = async () => [await clock(), await findings()];

  it("replays an incident: play, pause, seek, speed, the finding, the GPU", async () => {
    const { page, base, wrong } = served;
    await page.goto(`${base}#/library`);
    const article = page.locator("article", { hasText: "vela-power-brake" });
    await article.getByRole("button", { name: "Live…" }).click();
    expect(await inspected(page, "library")).toEqual([]);
    await article.getByRole("button", { name: "Replay" }).click();
    await page.waitForSelector("section[aria-label='Score']");
    await expect.poll(shown).toEqual(["09:30:16", 1]);
    await page.keyboard.press("Home");
    await expect.poll(shown).toEqual(["09:24:00", 0]);
    for (let times = 0; times < 5; times += 1) {
      const before = await clock();
      await page.keyboard.press("Space");
      await expect.poll(clock).not.toBe(before);
      const paused = await page.evaluate(clocksOfAPause);
      expect(paused, "a pause holds from the moment at which it is shown").toEqual([paused[0]]);
    }
    const stands = await clock();
    await page.locator(".deck select").selectOption("300");
    await page.keyboard.press("]");
    await expect.poll(() => page.locator(".deck select").inputValue()).toBe("1800");
    expect(await clock()).toBe(stands);
    await page.keyboard.press("Home");
    await page.keyboard.press("n");
    await expect.poll(shown).toEqual(["09:30:16", 1]);
    const line = await page.locator(".timeline").boundingBox();
    await page.mouse.click((line?.x ?? 0) + (line?.width ?? 0) / 2, (line?.y ?? 0) + 30);
    await expect.poll(clock).toMatch(/^09:3[67]:/);
    await expect.poll(() => page.url()).toContain("t=2024-04-01T09%3A3");
    await page.locator("canvas.heat").click({ position: { x: 120, y: 60 } });
    await page.waitForSelector("section[aria-label^='Signals of v002'] .uplot");
    expect(await inspected(page, "replay")).toEqual([]);
    const [linked, at] = [page.url(), await clock()];
    await page.goto("about:blank");
    await page.goto(linked);
    await page.waitForSelector("section[aria-label^='Signals of v002'] .uplot");
    await expect.poll(clock, { message: "a link leads to its moment" }).toBe(at);
    expect(wrong).toEqual([]);
  });

  it("shows all that a run found, though its state is answered last", async () => {
    const { page, base, wrong } = served;
    const started = await page.request.post(`${base}api/v1/runs`, { data: { recording: "vela-power-brake" } });
    const { id } = (await started.json()) as { id: string };
    const state = async () => ((await (await page.request.get(`${base}api/v1/runs/${id}`)).json()) as { state: string }).state;
    await page.route(`**/api/v1/runs/${id}`, async (route) => {
      await expect.poll(state).toBe("done");
      await route.continue();
    });
    await page.goto(`${base}#/run/${id}`);
    await expect.poll(shown).toEqual(["09:30:16", 1]);
    await page.unrouteAll();
    expect(wrong).toEqual([]);
  });

  it("opens the incident, judges it, and makes its postmortem", async () => {
    const { page, base, wrong } = served;
    await page.locator("section[aria-label=Incidents] a").click();
    await page.waitForSelector("section[aria-label=Evidence] .uplot");
    expect(await page.locator("section[aria-label='Root cause'] li.root").first().textContent()).toContain("power_throttle, v002");
    const judgement = page.locator("section[aria-label='Your judgement']");
    const judged = judgement.locator("[role=status]");
    await judgement.locator("textarea").fill("the SEL names the supply");
    await page.getByRole("button", { name: "✓ Right" }).click();
    await expect.poll(() => judged.allTextContents()).toEqual([expect.stringMatching(/^right the SEL names the supply/)]);
    await page.getByRole("button", { name: "✕ Wrong" }).click();
    await expect.poll(() => judged.allTextContents()).toEqual([expect.stringContaining("wrong")]);
    await judgement.locator("textarea").fill("it was the supply's cable");
    await page.getByRole("button", { name: "Save the note" }).click();
    await expect.poll(() => judged.allTextContents()).toEqual([expect.stringMatching(/^wrong it was the supply's cable/)]);
    await page.keyboard.press("r");
    expect(await page.locator("section[aria-label=Runbook] .runbook").first().textContent()).toContain("power_throttle");
    expect(await inspected(page, "incident")).toEqual([]);
    await page.keyboard.press("m");
    await page.getByLabel("USD per GPU-hour").fill("2.5");
    await page.getByLabel("what would have caught it sooner").uncheck();
    expect(await inspected(page, "postmortem-form")).toEqual([]);
    await page.getByRole("button", { name: "Make the postmortem" }).click();
    const report = page.frameLocator("iframe.report");
    await report.locator("h1").first().waitFor();
    await expect.poll(() => report.locator("body").textContent()).toContain("v002");
    const coming = page.waitForEvent("download");
    await page.getByRole("link", { name: "Download Markdown" }).click();
    expect((await coming).suggestedFilename()).toMatch(/^postmortem-vela-power-brake-.*\.md$/);
    expect(await inspected(page, "postmortem")).toEqual([]);
    await page.goto(`${base}#/`);
    await page.waitForSelector("main td a");
    expect(await inspected(page, "wrong")).toEqual([]);
    await page.goto(`${base}#/score`);
    await page.waitForSelector("section[aria-label=Delays] svg path");
    expect(await inspected(page, "score")).toEqual([]);
    expect(wrong).toEqual([]);
  });

  it("compares two configurations, and what was found before with what is found now", async () => {
    const { page, base, wrong } = served;
    await page.goto(`${base}#/postmortem`);
    await page.getByRole("link", { name: "Postmortem: power_throttle on v002, vela-power-brake" }).waitFor();
    await page.goto(`${base}#/compare`);
    await page.locator("select[aria-label=detector]").selectOption("power_throttle");
    await page.locator("select[aria-label=setting]").selectOption("enabled");
    await page.locator("input[aria-label=value]").fill("no");
    await page.getByText("power_throttle.enabled is true or false.").waitFor();
    expect(await page.getByRole("button", { name: "Compare", exact: true }).isDisabled()).toBe(true);
    await page.locator("input[aria-label=value]").fill("false");
    await page.getByText("First choose a recording.").waitFor();
    await page.locator("fieldset label", { hasText: "vela-power-brake" }).locator("input").check();
    expect(await inspected(page, "compare-form")).toEqual([]);
    await page.getByRole("button", { name: "Compare", exact: true }).click();
    await page.waitForSelector("td .sev");
    expect(await page.locator("td .sev").first().textContent()).toContain("missed");
    expect(await inspected(page, "compare")).toEqual([]);
    await page.goto(`${base}#/compare`);
    await page.getByLabel("the last run of each recording").check();
    const offered = page.locator("fieldset label");
    await expect.poll(() => offered.count(), { message: "of the others there is no run" }).toBe(1);
    expect(await offered.textContent()).toMatch(/vela-power-brake hindcast \d+\.\d+/);
    await offered.locator("input").check();
    await page.getByRole("button", { name: "Compare", exact: true }).click();
    await page.getByText("No difference: both find the same at the same times.").waitFor();
    expect(wrong).toEqual([]);
  });

  it("scores the library and draws its curve", async () => {
    const { page, base, wrong } = served;
    await page.goto(`${base}#/score`);
    await page.getByRole("button", { name: "Score the library" }).click();
    await page.waitForSelector("section[aria-label=Curve] circle");
    expect(await page.locator("section[aria-label='By fault'] tbody tr", { hasText: "power_throttle" }).count()).toBe(1);
    expect(await inspected(page, "score-library")).toEqual([]);
    expect(wrong).toEqual([]);
  });

  it("says what to do where the real servers do not run", async () => {
    const { page, base } = served;
    await page.goto(`${base}#/library`);
    const article = page.locator("article", { hasText: "vela-power-brake" });
    await article.getByRole("button", { name: "Live…" }).click();
    await article.getByRole("button", { name: "Start live" }).click();
    expect(await article.getByRole("alert").textContent()).toContain("hindcast stack up");
  });

  it("says what the telemetry can show, and what to add", async () => {
    const { page, base, wrong } = served;
    await page.goto(`${base}#/library`);
    await page.locator("article", { hasText: "sakuraone-job-hang" }).getByRole("link", { name: "Coverage" }).click();
    const faults = page.locator("section[aria-label=Faults] tbody tr");
    await faults.first().waitFor();
    await expect.poll(() => faults.count()).toBe(19);
    expect(await page.locator("section[aria-label=Faults] tr", { hasText: "job_hang" }).textContent()).toContain("yes");
    await page.getByRole("button", { name: "fault", exact: true }).click();
    await expect.poll(() => page.locator("th[aria-sort=ascending]").textContent()).toContain("fault");
    const names = await faults.locator("td:first-child").allTextContents();
    expect(names).toEqual([...names].sort());
    await page.getByLabel("Rows with").fill("job hang");
    await expect.poll(() => faults.locator("td:first-child").allTextContents()).toEqual(["job_hang"]);
    expect(await inspected(page, "coverage")).toEqual([]);
    expect(wrong).toEqual([]);
  });

  it("holds every page on a phone: nothing is out of reach at the side", async () => {
    const { page, base } = served;
    await page.setViewportSize({ width: 390, height: 844 });
    const items = async (address: string) => ((await (await page.request.get(`${base}api/v1/${address}`)).json()) as { items: { id: string; incidents: number }[] }).items;
    const run = (await items("runs")).find((one) => one.incidents > 0)?.id;
    const [incident] = await items(`runs/${run}/incidents`);
    const [score] = await items("tasks?kind=score");
    const pages = ["", "#/library", "#/library/vela-power-brake", `#/run/${run}?gpu=v002%2F3`, `#/incident/${run}/${incident?.id}`, "#/compare", "#/rules", "#/backtest", "#/score", `#/score/${score?.id}`, "#/postmortem", "#/coverage/vela-power-brake"];
    for (const address of pages) {
      await page.goto("about:blank"); // only then is it loaded anew, and idle when all is there
      await page.goto(`${base}${address}`);
      await page.locator("main h1, main h2").first().waitFor();
      await page.waitForLoadState("networkidle"); // what is loaded may be wider than what waits for it
      await unfoldAll(page);
      expect([address, await page.evaluate(() => document.documentElement.scrollWidth)]).toEqual([address, 390]);
      const sideways = () => [...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth && one.querySelector("table") !== null).map((one) => one.textContent);
      expect([address, await page.evaluate(sideways)], "nor does a table move sideways on its own").toEqual([address, []]);
    }
    await page.setViewportSize({ width: 1366, height: 820 });
  });
});
