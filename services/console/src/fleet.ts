/** Where each GPU is on the heat map, and what is to be said of it at a moment. Pure. */
import { parse } from "./time";
import type { Finding, Heatmap, Job, Severity } from "./types";

export interface Place {
  readonly row: number;
  readonly column: number;
  readonly band: number;
  readonly slot: number;
  readonly x: number;
  readonly y: number;
}

export interface Column {
  readonly node: string;
  readonly rack: string | null;
  readonly x: number;
  readonly y: number;
}

export interface Layout {
  readonly places: readonly Place[];
  readonly columns: readonly Column[];
  readonly cellWidth: number;
  readonly cellHeight: number;
  readonly height: number;
  readonly labelled: "nodes" | "racks" | "none";
}

export const LEFT = 22;
const HEAD = 18;
const BETWEEN_BANDS = 8;
const RACK_GAP = 4;
/** Cells are told apart by a mark, and pointed at: narrower ones only where there are nodes without number. */
const [LEAST_WIDTH, LEAST_OF_MANY, MOST_WIDTH] = [14, 9, 72];
const [LEAST_HEIGHT, LEAST_HEIGHT_OF_MANY, MOST_HEIGHT] = [17, 10, 26];
const MANY = 400;

/** A column a node, a cell a GPU; nodes of a rack stand together, and what does not fit the width goes in a new band. */
export function layout(rows: Heatmap["rows"], width: number): Layout {
  const nodes: { node: string; rack: string | null; rows: number[] }[] = [];
  const place = new Map<string, number>();
  rows.forEach((row, number) => {
    let at = place.get(row.node);
    if (at === undefined) {
      at = nodes.length;
      place.set(row.node, at);
      nodes.push({ node: row.node, rack: row.rack, rows: [] });
    }
    nodes[at]?.rows.push(number);
  });
  const most = Math.max(1, ...nodes.map((one) => one.rows.length));
  const begins = nodes.map((one, number) => number > 0 && one.rack !== nodes[number - 1]?.rack);
  const racks = begins.filter(Boolean).length;
  const many = nodes.length > MANY;
  const least = many ? LEAST_OF_MANY : LEAST_WIDTH;
  const free = Math.max(width - LEFT, 60);
  // Bands of the same length, each with whole racks where a rack is no longer than a band.
  const bands = Math.max(1, Math.ceil((nodes.length * least + racks * RACK_GAP) / free));
  const rackSize = Math.ceil(nodes.length / (racks + 1));
  const perBand = Math.ceil(Math.ceil(nodes.length / bands) / rackSize) * rackSize;
  const fitting = Math.floor((free - Math.ceil(perBand / rackSize - 1) * RACK_GAP) / Math.max(perBand, 1));
  const cellWidth = Math.min(MOST_WIDTH, Math.max(LEAST_OF_MANY, fitting));
  const cellHeight = many ? LEAST_HEIGHT_OF_MANY : Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, cellWidth));
  const labelled = cellWidth >= 38 ? "nodes" : racks > 0 && (nodes.length / (racks + 1)) * cellWidth >= 34 ? "racks" : "none";
  const head = labelled === "none" ? 4 : HEAD;
  const bandHeight = head + most * cellHeight + BETWEEN_BANDS;
  const places: Place[] = [];
  const columns: Column[] = [];
  let x = LEFT;
  let band = 0;
  nodes.forEach((one, number) => {
    if (begins[number] === true) {
      x += RACK_GAP;
    }
    const next = begins.indexOf(true, number + 1);
    const rack = begins[number] === true ? (next === -1 ? nodes.length : next) - number : 1;
    const whole = rack * cellWidth <= free ? rack : 1;
    if (x + whole * cellWidth > width && number > 0) {
      x = LEFT;
      band += 1;
    }
    const y = band * bandHeight + head;
    columns.push({ node: one.node, rack: one.rack, x, y });
    one.rows.forEach((row, slot) => places.push({ row, column: number, band, slot, x, y: y + slot * cellHeight }));
    x += cellWidth;
  });
  return { places, columns, cellWidth, cellHeight, height: (band + 1) * bandHeight, labelled };
}

/** The bucket that a moment lies in. */
export function bucketAt(map: Pick<Heatmap, "bucket_ms" | "times">, at: number): number {
  return Math.min(map.times.length - 1, Math.max(0, Math.floor((at - (map.times[0] ?? 0)) / map.bucket_ms)));
}

export const STATES = {
  "-": { name: "no reading", colour: "ground" },
  ".": { name: "idle", colour: "cell-idle" },
  o: { name: "at work and well", colour: "cell-fine" },
  i: { name: "under a finding, information", colour: "cell-info" },
  t: { name: "under a finding, ticket", colour: "cell-warn" },
  p: { name: "under a finding, page", colour: "cell-page" },
} as const;
export type State = keyof typeof STATES;

export function stateOf(cell: string | undefined): State {
  return cell !== undefined && cell in STATES ? (cell as State) : "-";
}

/** How many GPUs are in each state in a bucket. */
export function census(map: Pick<Heatmap, "cells">, bucket: number): Record<State, number> {
  const counts: Record<State, number> = { "-": 0, ".": 0, o: 0, i: 0, t: 0, p: 0 };
  for (const cells of map.cells) {
    counts[stateOf(cells[bucket])] += 1;
  }
  return counts;
}

const LETTERS: Readonly<Record<Severity, State>> = { info: "i", ticket: "t", page: "p" };
const RANKS = "-.oitp";

/** Lay findings over what was read: of a GPU, or of all GPUs of a node, from detected to resolved, the worst on top. */
export function withFindings(map: Heatmap, findings: readonly Finding[]): Heatmap {
  const first = map.times[0] ?? 0;
  const cells = new Map<number, string[]>();
  for (const one of findings) {
    const { node, gpu } = one.entity;
    const from = Math.max(0, Math.floor((parse(one.detected_at) - first) / map.bucket_ms));
    const end = one.resolved_at === null ? map.times.length - 1 : Math.floor((parse(one.resolved_at) - first) / map.bucket_ms);
    const letter = LETTERS[one.severity];
    map.rows.forEach((row, number) => {
      if (node === undefined || row.node !== String(node) || (gpu !== undefined && row.gpu !== Number(gpu))) {
        return;
      }
      const own = cells.get(number) ?? Array.from(map.cells[number] ?? "");
      for (let bucket = from; bucket <= Math.min(end, own.length - 1); bucket += 1) {
        own[bucket] = RANKS.indexOf(own[bucket] ?? "-") < RANKS.indexOf(letter) ? letter : (own[bucket] ?? "-");
      }
      cells.set(number, own);
    });
  }
  return cells.size === 0 ? map : { ...map, cells: map.cells.map((row, number) => cells.get(number)?.join("") ?? row) };
}

/** The jobs that a GPU (or, without one, any GPU of the node) works for at a moment. */
export function jobsOn(jobs: readonly Job[], node: string, gpu: number | null, at: number): readonly Job[] {
  return jobs.filter((job) => {
    const mine = job.gpus?.[node];
    return (
      job.nodes.includes(node) &&
      (gpu === null || mine === undefined || mine.includes(gpu)) &&
      Date.parse(job.start) <= at &&
      (job.end === null || at < Date.parse(job.end))
    );
  });
}

export function largestFirst(jobs: readonly Job[]): readonly Job[] {
  return [...jobs].sort((a, b) => b.nodes.length - a.nodes.length);
}

/** Of jobs, the largest first: the one that was struck, whose steps tell something, or else the first. */
export function worthALook(jobs: readonly Job[], struck: string | undefined): Job | undefined {
  return jobs.find((one) => one.job_id === struck) ?? jobs[0];
}
