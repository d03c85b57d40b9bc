/** The stretch of time that all charts of a page show: in the address as `from` and `to`, so that a link holds it. */
import { replaceQuery, type Route } from "./route";
import { parse, rfc3339 } from "./time";

export interface Zoom {
  readonly from: number;
  readonly to: number;
  /** Nothing was chosen: all that there is, is shown. */
  readonly whole: boolean;
  readonly show: (from: number, to: number) => void;
  readonly reset: () => void;
  /** Closer to a moment by half, as far from it by twice, or on by half of what is shown. */
  readonly closer: () => void;
  readonly wider: () => void;
  readonly move: (halves: number) => void;
  /** What the keyboard does. */
  readonly keys: Readonly<Record<string, () => void>>;
}

/** Shorter stretches hold a reading or two. */
const LEAST_MS = 10_000;

/** What an address asks for, kept within two ends; null where it asks for nothing that is between them. */
export function asked(query: Route["query"], first: number, last: number): { readonly from: number; readonly to: number } | null {
  const from = Math.max(first, parse(query["from"] ?? ""));
  const to = Math.min(last, parse(query["to"] ?? ""));
  return to - from >= Math.min(LEAST_MS, last - first) && (from > first || to < last) ? { from, to } : null;
}

/** `first` and `last` bound it; `at` is what it closes in on. */
export function zoomOf(route: Route, first: number, last: number, at: number): Zoom {
  const chosen = asked(route.query, first, last);
  const { from, to } = chosen ?? { from: first, to: last };
  const reset = () => replaceQuery({ from: null, to: null });
  const show = (begin: number, end: number) => {
    const length = Math.min(last - first, Math.max(LEAST_MS, end - begin));
    const start = Math.min(last - length, Math.max(first, (begin + end - length) / 2));
    if (length >= last - first) {
      reset();
    } else {
      replaceQuery({ from: rfc3339(Math.round(start)), to: rfc3339(Math.round(start + length)) });
    }
  };
  const middle = at >= from && at <= to ? at : (from + to) / 2;
  const by = (factor: number) => show(middle - (middle - from) * factor, middle + (to - middle) * factor);
  const closer = () => by(0.5);
  const wider = () => by(2);
  const move = (halves: number) => {
    const on = Math.min(last - to, Math.max(first - from, (halves * (to - from)) / 2));
    show(from + on, to + on);
  };
  return { from, to, whole: chosen === null, show, reset, closer, wider, move, keys: { "+": closer, "=": closer, "-": wider, "0": reset } };
}
