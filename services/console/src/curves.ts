/** Points of curves out of scores and readings. Pure. */
import type { CurvePoint, Values } from "./types";

export interface Point {
  readonly x: number;
  readonly y: number;
  readonly says: string;
}

/** Recall to the right, precision up; where neither is known there is no point. */
export function precisionOverRecall(curve: readonly CurvePoint[]): readonly Point[] {
  return curve.flatMap(({ least_score, precision, recall, false_alarms }) =>
    precision === null || recall === null
      ? []
      : [{ x: recall, y: precision, says: `score ${least_score} or more: precision ${precision.toFixed(2)}, recall ${recall.toFixed(2)}, ${false_alarms} false alarm(s)` }],
  );
}

const SHORTEST_S = 0.1;

/** The part of delays that is no longer than each of them, at the decimal logarithm of its seconds. */
export function shareWithin(delays: readonly number[]): readonly Point[] {
  const sorted = [...delays].sort((a, b) => a - b);
  return sorted.map((delay, number) => ({
    x: Math.log10(Math.max(SHORTEST_S, delay)),
    y: (number + 1) / sorted.length,
    says: `${number + 1} of ${sorted.length} within ${delay.toFixed(1)} s`,
  }));
}

/** The places of readings with none within `bridged` places of them: no line shows these, so each is a point. */
export function isolated(values: Values, bridged: number): number[] {
  const there = values.flatMap((value, bucket) => (value === null ? [] : [bucket]));
  const far = (a: number | undefined, b: number | undefined) => a === undefined || b === undefined || b - a > bridged;
  return there.filter((bucket, place) => far(there[place - 1], bucket) && far(bucket, there[place + 1]));
}
