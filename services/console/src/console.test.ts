import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { arranged, clicked } from "./arranged";
import { apart, EMPTY, nameOf, requestOf, textOf } from "./backtestRequest";
import { settingsOf } from "./changes";
import { around } from "./cut";
import { parseEvent } from "./events";
import { isolated, precisionOverRecall, shareWithin } from "./curves";
import { bucketAt, census, jobsOn, layout, withFindings } from "./fleet";
import { ordered, windowOf, worstFirst } from "./incidents";
import { blocks } from "./markdownBlocks";
import { href, parseRoute } from "./route";
import { AS_WRITTEN, firstSentence, lastOfEach, madeOf, makeRequest } from "./samples";
import { withEvents, NOTHING } from "./found";
import { clock, span, ticks } from "./time";
import { words, type Finding, type Heatmap, type Incident, type Job, type Scenario, type Task } from "./types";
import { evidence, howFar, percent, quantity, shownAs, tick } from "./units";
import { asked } from "./zoom";

describe("time", () => {
  it("shows how long in the unit that one would use", () => {
    expect([1234, 45_000, 150_000, 11_100_000, 187_200_000, -45_000].map(span)).toEqual(["1.2 s", "45 s", "3 min", "3 h 05", "2 d 4 h", "−45 s"]);
  });

  it("ticks at round times, no more than asked for", () => {
    const from = Date.parse("2024-04-01T09:24:00Z");
    const found = ticks(from, from + 26 * 60_000, 6);
    expect(found.map((at) => clock(at))).toEqual(["09:25:00", "09:30:00", "09:35:00", "09:40:00", "09:45:00", "09:50:00"]);
  });
});

describe("units", () => {
  it("are those that people use, with three figures and no exponent", () => {
    const shown = [quantity(1.834e9, "bytes/s"), quantity(764e6, "4 octets/s"), quantity(50e9, "octets/s"), quantity(71_300, "MiB"), quantity(241_000, "bytes"), quantity(390.4, "W"), quantity(57.5, "°C")];
    expect(shown).toEqual(["1.83 GB/s", "24.4 Gb/s", "400 Gb/s", "69.6 GiB", "241 kB", "390 W", "57.5 °C"]);
    expect([quantity(0.04, "s"), quantity(229, "s"), quantity(4.6, "ms"), quantity(0.392, "ratio"), quantity(4.92e8, "ns/s"), quantity(1410, "MHz")]).toEqual(["40 ms", "229 s", "4.6 ms", "39.2 %", "49.2 %", "1,410 MHz"]);
    expect([1e-9, 1.5e21, 1e9].map((value) => quantity(value, "")).join()).not.toContain("e");
  });

  it("are the same for all of an axis, whose ticks are written in full", () => {
    const { unit, factor } = shownAs("bytes/s", 2.9e9);
    expect([0, 5e8, 2.5e9].map((value) => `${tick(value * factor)} ${unit}`)).toEqual(["0 GB/s", "0.5 GB/s", "2.5 GB/s"]);
    expect([97.5, 102.5].map(tick)).toEqual(["97.5", "102.5"]);
  });

  it("tell nothing, which was read, from what was not", () => {
    expect([quantity(0, "bytes/s"), quantity(0, "1/s"), quantity(0, "4 octets/s"), quantity(0, "s"), quantity(null, "bytes/s"), quantity(undefined, "")]).toEqual(["0 B/s", "0/s", "0 b/s", "0 s", "no data", "no data"]);
    expect([percent(0), percent(null)]).toEqual(["0 %", "–"]);
  });

  it("of how far a task is are none where it goes on after all that is counted", () => {
    expect([howFar({ state: "running", progress: 0.5 }), howFar({ state: "running", progress: 1 }), howFar({ state: "done", progress: 1 })]).toEqual([0.5, null, 1]);
  });

  it("of evidence are what its name says, wherever it says it", () => {
    expect([evidence("power_before_w", 376.65), evidence("pcie_peak_peers_gb_s", 21.04), evidence("power_violation_fraction_peers", 0.4479), evidence("compute_s_own_level", 4.61), evidence("sm_clock_mhz", 540), evidence("peers", 16)]).toEqual([
      "377 W", "21 GB/s", "44.8 %", "4.61 s", "540 MHz", "16",
    ]);
  });
});

describe("the range of time that charts show", () => {
  const [first, last] = [Date.parse("2024-04-01T09:24:00Z"), Date.parse("2024-04-01T09:50:00Z")];
  const of = (from: string, to: string) => asked({ from, to }, first, last);

  it("is what the address says, within what there is", () => {
    expect(of("2024-04-01T09:30:00Z", "2024-04-01T09:35:00Z")).toEqual({ from: first + 360_000, to: first + 660_000 });
    expect(of("2024-04-01T09:00:00Z", "2024-04-01T09:35:00Z")).toEqual({ from: first, to: first + 660_000 });
  });

  it("is all where the address says nothing that there is", () => {
    expect([asked({}, first, last), of("yesterday", "today"), of("2023-01-01T00:00:00Z", "2023-01-02T00:00:00Z"), of("2024-04-01T09:35:00Z", "2024-04-01T09:30:00Z"), of("2024-04-01T09:00:00Z", "2024-04-01T10:00:00Z")]).toEqual([null, null, null, null, null]);
  });
});

describe("addresses", () => {
  it("come back as they were made, whatever is in them", () => {
    const query = { t: "2024-04-01T09:30:16.267Z", gpu: "v002/3" };
    expect(parseRoute(href("run", ["a b/c", "é"], query))).toEqual({ page: "run", path: ["a b/c", "é"], query });
  });

  it("that were mistyped do not break the page", () => {
    expect(parseRoute("#/run/%zz")).toEqual({ page: "run", path: ["%zz"], query: {} });
    expect(parseRoute("")).toEqual({ page: "", path: [], query: {} });
  });
});

describe("what is cut out around a finding", () => {
  const began = Date.parse("2026-11-23T04:10:00Z");
  const finding = { fault: "power_throttle" as const, started_at: new Date(began).toISOString(), resolved_at: null };

  it("ends half an hour after it was over, and never beyond what is known", () => {
    const over = { ...finding, resolved_at: new Date(began + 600_000).toISOString() };
    expect(around(over, began + 7_200_000)).toEqual({ from: began - 1_800_000, to: began + 2_400_000, name: "power-throttle-20261123t0410" });
    expect(around(over, began + 900_000).to).toBe(began + 900_000);
    expect(around(finding, began + 7_200_000).to).toBe(began + 7_200_000);
  });
});

describe("the heat map", () => {
  const rows = Array.from({ length: 800 }, (_, n) => ({ node: `n${Math.floor(n / 8)}`, gpu: n % 8, rack: `r${Math.floor(n / 64)}` }));

  it("has a place of its own for each of 800 GPUs, within the width", () => {
    const plan = layout(rows, 1000);
    expect(new Set(plan.places.map(({ x, y }) => `${x} ${y}`)).size).toBe(800);
    expect(Math.max(...plan.places.map(({ x }) => x)) + plan.cellWidth).toBeLessThanOrEqual(1000);
    expect(Math.max(...plan.places.map(({ y }) => y)) + plan.cellHeight).toBeLessThanOrEqual(plan.height);
    expect(plan.columns.map(({ node }) => node)).toEqual([...new Set(rows.map(({ node }) => node))]);
  });

  it.each([860, 950, 2100])("keeps racks whole and cells wide enough for their marks, at %i px", (width) => {
    const rows = Array.from({ length: 768 }, (_, number) => ({ node: `v${Math.floor(number / 8)}`, gpu: number % 8, rack: `r${Math.floor(number / 48)}` }));
    const plan = layout(rows, width);
    expect(plan.cellWidth).toBeGreaterThanOrEqual(14);
    expect(Math.max(...plan.places.map(({ x }) => x)) + plan.cellWidth).toBeLessThanOrEqual(width);
    expect(new Set(plan.columns.map(({ rack, y }) => `${String(rack)} ${y}`)).size).toBe(16);
  });

  it("finds the bucket of a moment, the first and the last beyond its ends", () => {
    const map = { times: [1000, 1500, 2000], bucket_ms: 500 };
    expect([0, 1000, 1499, 1500, 2400, 9999].map((at) => bucketAt(map, at))).toEqual([0, 0, 0, 1, 2, 2]);
  });

  it("counts every GPU once", () => {
    expect(census({ cells: ["op", "oo", "-t", ".i"] }, 1)).toEqual({ "-": 0, ".": 0, o: 1, i: 1, t: 1, p: 1 });
  });

  it("lays findings over what was read: of a GPU or of a node, the worst on top, from detected to resolved", () => {
    const map: Heatmap = {
      recording: "r",
      run: null,
      from_ms: 0,
      to_ms: 4999,
      bucket_ms: 1000,
      times: [0, 1000, 2000, 3000, 4000],
      rows: ["a/0", "a/1", "b/0"].map((name) => ({ node: name.slice(0, 1), gpu: Number(name.slice(2)), rack: null })),
      cells: ["ooooo", "oo-..", "ooooo"],
    };
    const finding = (severity: Finding["severity"], entity: Finding["entity"], from: number, to: number | null) =>
      ({ severity, entity, detected_at: new Date(from).toISOString(), resolved_at: to === null ? null : new Date(to).toISOString() }) as Finding;
    const found = [finding("ticket", { node: "a" }, 1500, 3200), finding("page", { node: "a", gpu: 1 }, 2000, null), finding("page", { job_id: "9" }, 0, null)];
    expect(withFindings(map, found).cells).toEqual(["ottto", "otppp", "ooooo"]);
    expect(withFindings(map, [])).toBe(map);
    expect(map.cells[0]).toBe("ooooo");
  });

  it("knows whose a GPU is, by node, part of the node, and time", () => {
    const job = (job_id: string, start: string, end: string | null, gpus: Job["gpus"] = null): Job => ({ job_id, name: "", user: "", nodes: ["a"], gpus, start, end, state: "" });
    const jobs = [job("1", "2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z"), job("2", "2024-01-01T01:00:00Z", null, { a: [0, 1] })];
    const of = (gpu: number, at: string) => jobsOn(jobs, "a", gpu, Date.parse(at)).map((one) => one.job_id);
    expect([of(0, "2024-01-01T00:30:00Z"), of(0, "2024-01-01T01:00:00Z"), of(2, "2024-01-01T02:00:00Z")]).toEqual([["1"], ["2"], []]);
  });
});

describe("incidents", () => {
  it("lists causes before effects, and all links, even in a circle", () => {
    const links = [
      { cause: "b", effect: "c" },
      { cause: "seen:x", effect: "b" },
      { cause: "c", effect: "job:1" },
    ];
    expect(ordered(links).map((one) => one.cause)).toEqual(["seen:x", "b", "c"]);
    const circle = [
      { cause: "a", effect: "b" },
      { cause: "b", effect: "a" },
    ];
    expect(ordered(circle)).toHaveLength(2);
  });

  it("shows what is open and what is a page first, then what costs most", () => {
    const one = (state: "open" | "closed", severity: "page" | "info", gpu_hours_lost: number) =>
      ({ state, severity, started_at: "2024-01-01T00:00:00Z", impact: { gpu_hours_lost } }) as Incident;
    const made = [one("closed", "page", 9), one("open", "info", 1), one("open", "page", 1), one("open", "page", 5)];
    expect(made.sort(worstFirst).map((it) => `${it.state} ${it.severity} ${it.impact.gpu_hours_lost}`)).toEqual(["open page 5", "open page 1", "open info 1", "closed page 9"]);
  });

  it("shows some time on either side, but not beyond the recording", () => {
    expect(windowOf(1_000_000, 2_000_000, 0, 2_100_000)).toEqual({ from: 800_000, to: 2_100_000 });
    expect(windowOf(1_000_000, null, 900_000, 3_000_000)).toEqual({ from: 900_000, to: 3_000_000 });
  });

  it("calls parts by their names", () => {
    expect([{ gpu: 3, node: "v002" }, { node: "v002", nic: "mlx5_0" }, { job_id: "812" }].map(words)).toEqual(["v002 GPU 3", "v002, nic mlx5_0", "job 812"]);
  });
});

describe("what is found in a replay", () => {
  const finding = (id: string, state: string) => ({ kind: "finding", body: { id, state } });
  const replay = (run: string) => ({ kind: "replay", body: { run } });

  it("is kept by identity, the last word counts, and twice is once", () => {
    const events = [replay("g0"), finding("f", "firing"), { kind: "incident", body: { id: "i" } }, finding("f", "resolved"), { kind: "alert", body: { id: "a" } }];
    const found = withEvents(NOTHING, events);
    expect([...found.findings.values()]).toEqual([{ id: "f", state: "resolved" }]);
    expect(withEvents(found, events)).toEqual(found);
    expect(withEvents(found, [{ kind: "joined", body: { id: "i" } }]).incidents.size).toBe(0);
    expect(found.incidents.size).toBe(1);
  });

  it("begins anew with each generation, and ends when it is removed", () => {
    const before = withEvents(NOTHING, [replay("g0"), finding("f", "firing"), { kind: "alert", body: { id: "a" } }]);
    const after = withEvents(before, [replay("g1"), finding("g", "firing")]);
    expect([[...after.findings.keys()], after.alerts.size, after.run]).toEqual([["g"], 0, null]);
    expect(withEvents(after, [{ kind: "replay", body: null }]).replay).toBeNull();
  });
});

describe("curves", () => {
  it("have no point where nothing is known", () => {
    const point = (least_score: number, precision: number | null, recall: number | null) => ({ least_score, precision, recall, false_alarms: 0 });
    expect(precisionOverRecall([point(0, 0.5, 1), point(1, null, 0)]).map(({ x, y }) => [x, y])).toEqual([[1, 0.5]]);
  });

  it("have a point where a reading stands alone, as no line shows it", () => {
    expect(isolated([1, 2, null, null, null, 3, null, null, null, 4, null, 5], 2.5)).toEqual([5]);
    expect(isolated([null, 0, null], 2.5)).toEqual([1]);
  });

  it("show what part was found within which time, on a scale of tenfolds", () => {
    expect(shareWithin([100, 1, 0]).map(({ x, y }) => [x, Number(y.toFixed(2))])).toEqual([
      [-1, 0.33],
      [0, 0.67],
      [2, 1],
    ]);
  });
});

describe("what goes to and comes from the server", () => {
  it("reads an event as the standard has it", () => {
    expect(parseEvent(': ping\nid: 7\nevent: finding\ndata: {"a":\ndata: 1}')).toEqual({ kind: "finding", id: "7", data: '{"a":\n1}' });
  });

  it("sends numbers as numbers and leaves out what was not filled in", () => {
    const detectors = [{ name: "straggler", faults: [], reads: [], settings: [{ name: "k", value: 3, unit: "", source: "" }] }];
    const changes = [
      { detector: "straggler", setting: "k", value: "2.5" },
      { detector: "straggler", setting: "enabled", value: "false" },
      { detector: "", setting: "", value: "" },
    ];
    expect(settingsOf(changes, detectors)).toEqual({ straggler: { k: 2.5, enabled: false } });
  });

  it("reads runbooks: headings, steps over several lines, code", () => {
    expect(blocks("# A\ntext\nmore\n\n1. one\n   two\n2. three\n\n```\n# no heading\n```")).toEqual([
      { kind: "heading", lines: ["A"] },
      { kind: "text", lines: ["text more"] },
      { kind: "steps", lines: ["one two", "three"] },
      { kind: "code", lines: ["# no heading"] },
    ]);
  });
});

describe("colours", () => {
  const css = readFileSync(new URL("theme.css", import.meta.url), "utf8");
  const themes = [...css.matchAll(/data-theme="(dark|light)"\] \{([^}]*)\}/g)].map(([, name = "", body = ""]) => {
    const pairs = [...body.matchAll(/--([a-z-]+): (#[0-9a-f]{6})/g)].map(([, key = "", value = ""]) => [key, value] as const);
    return [name, Object.fromEntries<string>(pairs)] as const;
  });
  const luminance = (hex: string) => {
    const [r = 0, g = 0, b = 0] = [1, 3, 5].map((at) => {
      const part = parseInt(hex.slice(at, at + 2), 16) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a: string, b: string) => {
    const [low = 0, high = 0] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };

  it("are there for both themes", () => {
    expect(themes.map(([name]) => name)).toEqual(["dark", "light"]);
  });

  it.each(themes)("of text on every ground are 4.5 to 1 or more (WCAG AA), %s", (_, theme) => {
    for (const ground of ["ground", "panel", "raised"]) {
      for (const text of ["text", "soft", "accent", "page", "warn", "info", "good"]) {
        expect(contrast(theme[text] ?? "", theme[ground] ?? ""), `${text} on ${ground}`).toBeGreaterThanOrEqual(4.5);
      }
    }
    expect(contrast(theme["text"] ?? "", theme["accent-ground"] ?? "")).toBeGreaterThanOrEqual(4.5);
  });

  it.each(themes)("of marks in cells are 3 to 1 or more (WCAG 1.4.11), %s", (_, theme) => {
    for (const cell of ["cell-info", "cell-warn", "cell-page"]) {
      expect(contrast(theme["cell-ink"] ?? "", theme[cell] ?? ""), cell).toBeGreaterThanOrEqual(3);
    }
  });
});

describe("a table", () => {
  const rows = [
    { name: "straggler", delay: 30 },
    { name: "link_down", delay: null },
    { name: "power_throttle", delay: 4 },
  ];
  const columns = [
    { name: "fault", by: (row: (typeof rows)[number]) => row.name },
    { name: "delay", by: (row: (typeof rows)[number]) => row.delay, text: (row: (typeof rows)[number]) => (row.delay === null ? "never" : "") },
  ];
  const names = (found: typeof rows | readonly (typeof rows)[number][]) => found.map((one) => one.name);

  it("stands as it came until a column is clicked: then up, down, and as it came again", () => {
    expect(arranged(rows, columns, null, "")).toBe(rows);
    const up = clicked(null, "delay");
    const down = clicked(up, "delay");
    expect([up, down, clicked(down, "delay"), clicked(down, "fault")]).toEqual(["delay", "-delay", null, "fault"]);
  });

  it("sorts numbers by size and names by letter, and puts what is not known last either way", () => {
    expect(names(arranged(rows, columns, "fault", ""))).toEqual(["link_down", "power_throttle", "straggler"]);
    expect(names(arranged(rows, columns, "delay", ""))).toEqual(["power_throttle", "straggler", "link_down"]);
    expect(names(arranged(rows, columns, "-delay", ""))).toEqual(["straggler", "power_throttle", "link_down"]);
  });

  it("shows the rows that have all the words, in whichever column", () => {
    expect(names(arranged(rows, columns, null, "DOWN never"))).toEqual(["link_down"]);
    expect(names(arranged(rows, columns, null, "down 4"))).toEqual([]);
  });
});

describe("a backtest", () => {
  const filled = { ...EMPTY, recordings: ["autumn"], tickets: "id,created\n", configurations: [{ name: "stricter", text: "a: {}" }], rules: [{ name: "ours", text: "groups: []" }] };

  it("is asked for with what was filled in, and nothing else", () => {
    expect(requestOf({ ...EMPTY, recordings: ["autumn"] })).toEqual({ recordings: ["autumn"], tickets: null, timezone: "UTC", before: "2h", configurations: [], rules: [], grid_s: 5 });
    expect(requestOf(filled)).toMatchObject({ tickets: "id,created\n", configurations: [{ name: "defaults" }, { name: "stricter", yaml: "a: {}" }], rules: [{ name: "ours", rules: "groups: []" }] });
    expect(requestOf({ ...filled, usual: false, ownRules: true })).toMatchObject({ configurations: [{ name: "stricter" }], rules: [{ name: "hindcast rules" }, { name: "ours" }] });
  });

  it("of a server names its time, and no recordings", () => {
    const asked = requestOf({ ...filled, source: "thanos", from: "2026-03-01T00:00", to: "2026-04-01T00:00:00" });
    expect(asked).toMatchObject({ of: { source: "thanos", from: "2026-03-01T00:00Z", to: "2026-04-01T00:00:00Z", cluster: null } });
    expect(asked).not.toHaveProperty("recordings");
  });

  it("names files as the API takes names, each of its own", () => {
    expect(["stricter.yaml", "été (2).yml", "..yaml", "x".repeat(99)].map((file) => nameOf(file, []))).toEqual(["stricter", "t- -2-", "mine", "x".repeat(56)]);
    expect(nameOf("stricter.yaml", ["stricter", "stricter 2"])).toBe("stricter 3");
  });

  it("reads files of UTF-8, and says so of others", async () => {
    expect(await textOf(new File(["\ufeffid,été"], "a.csv"))).toBe("id,été");
    await expect(textOf(new File([new Uint8Array([0xe9, 0x2c])], "b.csv"))).rejects.toThrow("b.csv is no text in UTF-8");
  });

  it("says on which side of its ticket an alert was", () => {
    expect([-90, 0, 7200].map(apart)).toEqual(["90 s before", "at once", "2 h 00 after"]);
  });
});

describe("sample incidents", () => {
  const scenario = { name: "vela-power-brake", recording: "vela-power-brake" } as Scenario;
  const task = (recording: string | null) => ({ asked: { scenario: scenario.name }, result: recording === null ? null : { recording } }) as unknown as Task;

  it("have what was made of them as they are written, and last, as long as it is there", () => {
    const last = lastOfEach([task("vela-power-brake-seed-7"), task("vela-power-brake-seed-6")]).get(scenario.name);
    const there = new Set(["vela-power-brake", "vela-power-brake-seed-7", "vela-power-brake-seed-6"]);
    expect(madeOf(scenario, last, there)).toEqual(["vela-power-brake", "vela-power-brake-seed-7"]);
    expect(madeOf(scenario, last, new Set(["vela-power-brake"]))).toEqual(["vela-power-brake"]);
    expect(madeOf(scenario, task("vela-power-brake"), there)).toEqual(["vela-power-brake"]);
    expect(madeOf({ ...scenario, recording: null }, task(null), there)).toEqual([]);
    expect(madeOf({ ...scenario, recording: null }, undefined, there)).toEqual([]);
  });

  it("are asked for by what was typed, and no more", () => {
    expect(makeRequest(AS_WRITTEN)).toEqual({});
    expect(makeRequest({ seed: "0", scale: "0.05", world: "", overwrite: true })).toEqual({ seed: 0, scale: 0.05, overwrite: true });
  });

  it("have one sentence of their story first", () => {
    expect(firstSentence("It moves 3.4 GB/s instead of 22. Nothing crashes.")).toBe("It moves 3.4 GB/s instead of 22.");
    expect(firstSentence("The one and only.")).toBe("The one and only.");
    expect(firstSentence("no end")).toBe("no end");
  });
});
