/** Figures in the units that people use: GB/s, Gb/s, GiB, W, °C, ms, %. What is not known is never shown as nothing. */

/** In which unit something is shown, and what its values are multiplied by for that. */
export interface Shown {
  readonly unit: string;
  readonly factor: number;
}

/** From what size on (of the value as it was read), what it is called, and what it is multiplied by. */
type Step = readonly [least: number, unit: string, factor: number];

function prefixed(unit: string, of: number, steps: readonly (readonly [size: number, prefix: string])[]): readonly Step[] {
  return steps.map(([size, prefix]) => [size / of, `${prefix}${unit}`, of / size]);
}

const DECIMAL = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
] as const;

/** What a source reads in, by the name it has in signals.ts; anything else is shown as it is. Lengths: from that of 100 minutes. */
const UNITS: Readonly<Record<string, readonly Step[]>> = {
  bytes: prefixed("B", 1, DECIMAL),
  "bytes/s": prefixed("B/s", 1, DECIMAL),
  // Links are sold, and spoken of, in bits: SAI counts octets, InfiniBand words of four.
  "octets/s": prefixed("b/s", 8, DECIMAL),
  "4 octets/s": prefixed("b/s", 32, DECIMAL),
  MiB: [
    [1024 * 1024, "TiB", 1 / 1024 / 1024],
    [1024, "GiB", 1 / 1024],
    [0, "MiB", 1],
  ],
  W: [
    [10_000, "kW", 1e-3],
    [0, "W", 1],
  ],
  ms: [
    [10_000, "s", 1e-3],
    [0, "ms", 1],
  ],
  s: [
    [6000, "h", 1 / 3600],
    [600, "min", 1 / 60],
    [1, "s", 1],
    [1e-3, "ms", 1e3],
    [0, "µs", 1e6],
  ],
  // Nanoseconds of each second: a share of the time.
  "ns/s": [[0, "%", 1e-7]],
  ratio: [[0, "%", 100]],
  "1/s": [
    [0.1, "/s", 1],
    [0.1 / 60, "/min", 60],
    [0, "/h", 3600],
  ],
};

/** How values up to `most` of what is read in `unit` are shown. */
export function shownAs(unit: string, most: number): Shown {
  const steps = UNITS[unit] ?? [];
  // Of nothing every unit is right: the plain one, which is the one of the factor nearest to 1.
  const found = most === 0 ? steps.find(([, , factor]) => factor >= 1) : steps.find(([least]) => Math.abs(most) >= least);
  const [, name, factor] = found ?? steps.at(-1) ?? [0, unit, 1];
  return { unit: name, factor };
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const THREE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const EVERY = new Intl.NumberFormat("en", { maximumFractionDigits: 9 });

/** Three figures, or all of a whole number's: 1,410, 57.5, 0.0042; never 1.2e9. */
export function figure(value: number): string {
  return (Math.abs(value) >= 1000 ? WHOLE : THREE).format(value);
}

/** A round number of an axis, in full: 97.5 and 102.5 are no 103. */
export function tick(value: number): string {
  return EVERY.format(value);
}

export function withUnit(value: number, unit: string): string {
  return `${figure(value)}${unit === "" || unit.startsWith("/") ? "" : " "}${unit}`;
}

export const NO_DATA = "no data";

/** 1.83 GB/s, 390 W, 57.5 °C; what was not read: no data. */
export function quantity(value: number | null | undefined, unit: string): string {
  if (value === null || value === undefined || Number.isNaN(value)) {
    return NO_DATA;
  }
  const { unit: name, factor } = shownAs(unit, value);
  return withUnit(value * factor, name);
}

/** What the ends of names in a finding's evidence say of their unit, wherever in the name they stand (power_w_before). */
const ENDS: readonly (readonly [end: string, unit: string])[] = [
  ["gb_s", "GB/s"],
  ["mb_per_s", "MB/s"],
  ["per_min", "/min"],
  ["per_h", "/h"],
  ["per_s", "1/s"],
  ["percent", "%"],
  ["fraction", "ratio"],
  ["share", "ratio"],
  ["gbps", "Gb/s"],
  ["mhz", "MHz"],
  ["ms", "ms"],
  ["w", "W"],
  ["c", "°C"],
  ["s", "s"],
];

/** A figure of a finding's evidence with the unit that its name ends in. */
export function evidence(name: string, value: number): string {
  const [, unit = ""] = ENDS.find(([end]) => new RegExp(`_${end}(_|$)`).test(name)) ?? [];
  return quantity(value, unit);
}

/** A share of 1 as whole percents; null where there was nothing to have a share of. */
export function percent(value: number | null): string {
  return value === null ? "–" : quantity(Math.round(100 * value), "%");
}

/** How far a task is; null where all that is counted is done and it still goes on, as the trials of a postmortem do. */
export function howFar({ state, progress }: { readonly state: string; readonly progress: number }): number | null {
  return state === "running" && progress >= 1 ? null : progress;
}

export function seconds(value: number | null): string {
  return value === null ? "–" : quantity(value, "s");
}

/** A figure that may not be known: unknown is never shown as nothing. */
export function known(value: number | null, show: (value: number) => string): string {
  return value === null ? "unknown" : show(value);
}
