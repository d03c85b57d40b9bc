/** A run or a replay with what was found in it so far, kept up to date while it goes on. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { all, ask, follow, path, type ApiError, type ServerEvent } from "./api";
import { withEvents, NOTHING, type Found } from "./found";
import { parse } from "./time";
import type { Alert, Finding, Incident, RecordingSummary, Replay, Run } from "./types";

export interface Watched {
  readonly run: Run | null;
  readonly replay: Replay | null;
  /** In order of their detection. */
  readonly findings: readonly Finding[];
  /** As they opened. */
  readonly incidents: readonly Incident[];
  readonly alerts: readonly Alert[];
  /** Why nothing comes any more: what is shown is old. */
  readonly lost: ApiError | null;
  /** Whether all that was found before is here. */
  readonly loaded: boolean;
  readonly error: Error | null;
}

/** Events that come in one go are taken in one go: a run that is looked at late sends hundreds at once. */
const GATHER_MS = 50;

type Take = (change: (before: Found) => Found) => void;
type Load = (take: Take, lost: (why: ApiError | null) => void, signal: AbortSignal) => Promise<void>;

function useFound(key: string, load: Load): Watched {
  const [found, setFound] = useState(NOTHING);
  const [lost, setLost] = useState<ApiError | null>(null);
  const [loaded, setLoaded] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    const stop = new AbortController();
    const take: Take = (change) => {
      if (!stop.signal.aborted) {
        setFound(change);
        setLoaded(true);
      }
    };
    latest.current(take, (why) => !stop.signal.aborted && setLost(why), stop.signal).catch((reason: unknown) => {
      if (!stop.signal.aborted) {
        setError(reason as Error);
      }
    });
    return () => stop.abort();
  }, [key]);
  const findings = useMemo(() => [...found.findings.values()].sort((a, b) => parse(a.detected_at) - parse(b.detected_at)), [found.findings]);
  const incidents = useMemo(() => [...found.incidents.values()].sort((a, b) => parse(a.opened_at) - parse(b.opened_at)), [found.incidents]);
  const alerts = useMemo(() => [...found.alerts.values()].sort((a, b) => parse(a.said_at) - parse(b.said_at)), [found.alerts]);
  return { run: found.run, replay: found.replay, findings, incidents, alerts, lost, loaded, error };
}

async function following(url: string, take: Take, lost: (why: ApiError | null) => void, signal: AbortSignal): Promise<void> {
  let waiting: ServerEvent[] = [];
  const flush = () => {
    const events = waiting;
    waiting = [];
    take((before) => withEvents(before, events));
  };
  await follow(
    url,
    (event) => {
      if (waiting.length === 0) {
        setTimeout(flush, GATHER_MS);
      }
      waiting.push(event);
    },
    lost,
    signal,
  );
  flush();
}

/** The run is asked for first: what is read of one that was over by then is all that it found. */
async function everything(id: string): Promise<Found> {
  const run = await ask<Run>(path("runs", id));
  const [findings, incidents] = await Promise.all([
    all<Finding>(`${path("runs", id)}/findings`),
    all<Incident>(`${path("runs", id)}/incidents`),
  ]);
  const byId = <T extends { readonly id: string }>(list: readonly T[]) => new Map(list.map((one) => [one.id, one]));
  return { ...NOTHING, run, findings: byId(findings), incidents: byId(incidents) };
}

/** All runs of recordings that are still there: of the others nothing can be shown. */
export async function loadRuns(): Promise<readonly Run[]> {
  const [runs, recordings] = await Promise.all([all<Run>("runs"), ask<readonly RecordingSummary[]>("recordings")]);
  const there = new Set(recordings.map((one) => one.name));
  return runs.filter((run) => there.has(run.recording));
}

export function goesOn(run: Run | null): boolean {
  return run?.state === "queued" || run?.state === "running";
}

/** A run: read once when it is over, followed while it goes on, and read again at its end, when it is judged. */
export function useRun(id: string): Watched {
  return useFound(id, async (take, lost, signal) => {
    const first = await everything(id);
    take(() => first);
    if (goesOn(first.run)) {
      await following(`${path("runs", id)}/events`, take, lost, signal);
      if (!signal.aborted) {
        const last = await everything(id);
        take(({ alerts }) => ({ ...last, alerts }));
      }
    }
  });
}

/** A replay by way of Kafka, over all its seeks. */
export function useReplay(name: string): Watched {
  return useFound(name, (take, lost, signal) => following(`${path("replays", name)}/events`, take, lost, signal));
}
