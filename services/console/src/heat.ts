/** The heat map of a recording: first the minutes around the moment that is looked at, then all of it. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ask, path } from "./api";
import { withFindings } from "./fleet";
import { rfc3339 } from "./time";
import type { Finding, Heatmap } from "./types";

const POINTS = 720;
const NEAR_MS = 120_000;
const NEAR_POINTS = 24;

export interface Heat {
  /** Null until there is one that knows of this moment. */
  readonly map: Heatmap | null;
  /** Whether all of the recording is there, or cannot be had: what is less urgent may be loaded now. */
  readonly settled: boolean;
  readonly error: Error | null;
}

/** `at`: the moment that is looked at; null before it is known, when nothing is loaded. */
export function useHeat(recording: string | null, at: number | null, findings: readonly Finding[]): Heat {
  const [near, setNear] = useState<Heatmap | null>(null);
  const [whole, setWhole] = useState<Heatmap | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const first = useRef(at);
  first.current = at;
  const known = at !== null;
  useEffect(() => {
    const moment = first.current;
    if (recording === null || moment === null) {
      return undefined;
    }
    let current = true;
    const url = `${path("recordings", recording)}/heatmap`;
    const around = { from: rfc3339(moment - NEAR_MS), to: rfc3339(moment + NEAR_MS), points: NEAR_POINTS };
    setNear(null);
    setWhole(null);
    setError(null);
    ask<Heatmap>(url, around)
      .then(
        (map) => current && setNear(map),
        () => undefined, // the whole one has the same trouble, and says so
      )
      .then(() => (current ? ask<Heatmap>(url, { points: POINTS }) : null))
      .then(
        (map) => current && setWhole(map),
        (reason: unknown) => current && setError(reason as Error),
      );
    return () => {
      current = false;
    };
  }, [recording, known]);
  const covered = near !== null && at !== null && at >= near.from_ms && at <= near.to_ms;
  const plain = whole ?? (covered ? near : null);
  const map = useMemo(() => (plain === null ? null : withFindings(plain, findings)), [plain, findings]);
  return { map, settled: whole !== null || error !== null, error };
}
