/** The runs that count: the last one of each recording with the detectors as they come; and what is live. Pure. */
import type { Run } from "./types";

/** By recording: its last run with the detectors as they come, one that is done before any that is not. */
export function latestOf(runs: readonly Run[]): ReadonlyMap<string, Run> {
  const latest = new Map<string, Run>();
  for (const run of runs) {
    const known = latest.get(run.recording);
    const plain = Object.keys(run.detectors).length === 0 && run.replay === null;
    if (plain && (known === undefined || later(run, known))) {
      latest.set(run.recording, run);
    }
  }
  return latest;
}

function later(run: Run, known: Run): boolean {
  const [done, knownDone] = [run.state === "done", known.state === "done"];
  return done === knownDone ? known.created_at < run.created_at : done;
}

export function latestDone(runs: readonly Run[]): readonly Run[] {
  return [...latestOf(runs).values()].filter((run) => run.state === "done").sort((a, b) => a.recording.localeCompare(b.recording));
}

/** Replays through Kafka that go on now. */
export function live(runs: readonly Run[]): readonly Run[] {
  return runs.filter((run) => run.replay !== null && run.state === "running");
}
