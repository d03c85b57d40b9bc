/** What pages write of runs, of what they found and of what is asked of them. */
import { describe, expect, it } from "vitest";
import { calmIn, calmOf } from "./calm";
import { lackOf } from "./changes";
import { largestFirst, worthALook } from "./fleet";
import { latestDone, latestOf } from "./latest";
import type { Job, Run } from "./types";

describe("the run of a recording that counts", () => {
  const run = (id: string, created: number, more: Partial<Run> = {}) => ({ id, recording: "a", detectors: {}, state: "done", replay: null, created_at: new Date(created).toISOString(), ...more }) as Run;
  const of = (...runs: readonly Run[]) => [latestOf(runs).get("a")?.id, latestDone(runs).map(({ id }) => id)];

  it("is the last with the detectors as they come, never one with others or a replay", () => {
    expect(of(run("first", 1), run("second", 2), run("changed", 3, { detectors: { straggler: { enabled: false } } }), run("live", 4, { replay: "r" }))).toEqual(["second", ["second"]]);
  });

  it("is one that is done, though another waits, goes on or was cancelled since", () => {
    expect(of(run("done", 1), run("waits", 2, { state: "queued" }), run("not", 3, { state: "cancelled" }))).toEqual(["done", ["done"]]);
    expect(of(run("not", 1, { state: "cancelled" }), run("waits", 2, { state: "queued" }))).toEqual(["waits", []]);
  });
});

describe("where nothing is open", () => {
  it("a cluster that cannot be read is not called well", () => {
    const event_time = "2026-11-27T08:03:52.000Z";
    expect(calmOf({ error: null, event_time })).toBe("Nothing is wrong there now.");
    expect(calmOf({ error: "it cannot be reached", event_time })).toBe("Nothing was wrong there at 2026-11-27 08:03:52 UTC; whether anything is now is not known.");
    expect(calmOf({ error: "it cannot be reached", event_time: null })).toBe("Whether anything is wrong there is not known.");
  });

  it("runs that go on stand with what they have found by now", () => {
    expect(calmIn([])).toBe("In recordings: no run has found an incident.");
    expect(calmIn([{ incidents: 2 }, { incidents: 0 }])).toContain("2 run(s) go on, with 2 incident(s) so far");
  });
});

describe("the job whose steps are shown", () => {
  const jobs = largestFirst([["small", 1], ["large", 3], ["struck", 2]].map(([job_id, nodes]) => ({ job_id, nodes: Array.from({ length: Number(nodes) }, (_, n) => `n${n}`) }) as unknown as Job));

  it("is the one that an incident struck, or else the largest", () => {
    expect([worthALook(jobs, "struck"), worthALook(jobs, "unknown"), worthALook(jobs, undefined), worthALook([], "struck")].map((one) => one?.job_id)).toEqual(["struck", "large", "large", undefined]);
  });
});

describe("a change of a setting", () => {
  const detectors = [{ name: "a", settings: [{ name: "readings", value: 2 }] }] as unknown as Parameters<typeof lackOf>[1];
  const lack = (setting: string, value: string) => lackOf([{ detector: "a", setting, value }], detectors);

  it("that is not whole, or not of its kind, is not taken for another", () => {
    expect([lack("", ""), lack("readings", " "), lack("readings", "abc"), lack("enabled", "no")]).toEqual(["Choose a setting of a.", "Say what a.readings is to be.", "a.readings is a number, such as 2.", "a.enabled is true or false."]);
  });

  it("that is whole lacks nothing, nor does an empty line", () => {
    expect([lack("readings", "3"), lack("enabled", "false"), lackOf([{ detector: "", setting: "", value: "" }], detectors)]).toEqual([null, null, null]);
  });
});
