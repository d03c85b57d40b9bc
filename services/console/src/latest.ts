/** The runs that count: the last one of each recording that is done, with the detectors as they come; and what is live. */
import { all, ask } from "./api";
import type { RecordingSummary, Run } from "./types";

/** All runs of recordings that are still there: of the others nothing can be shown. */
export async function loadRuns(): Promise<readonly Run[]> {
  const [runs, recordings] = await Promise.all([all<Run>("runs"), ask<readonly RecordingSummary[]>("recordings")]);
  const there = new Set(recordings.map((one) => one.name));
  return runs.filter((run) => there.has(run.recording));
}

export function latestDone(runs: readonly Run[]): readonly Run[] {
  const latest = new Map<string, Run>();
  for (const run of runs) {
    const known = latest.get(run.recording);
    const plain = Object.keys(run.detectors).length === 0 && run.replay === null;
    if (plain && run.state === "done" && (known === undefined || known.created_at < run.created_at)) {
      latest.set(run.recording, run);
    }
  }
  return [...latest.values()].sort((a, b) => a.recording.localeCompare(b.recording));
}

/** Replays through Kafka that go on now. */
export function live(runs: readonly Run[]): readonly Run[] {
  return runs.filter((run) => run.replay !== null && run.state === "running");
}
