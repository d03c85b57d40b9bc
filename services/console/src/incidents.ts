/** Order of incidents, of what is in one, and where its evidence is. Pure. */
import type { Signal } from "./signals";
import { parse } from "./time";
import type { Entity, Incident, Severity } from "./types";

const RANKS: Readonly<Record<Severity, number>> = { page: 0, ticket: 1, info: 2 };

/** Open before closed, pages before tickets, the costliest first. */
export function worstFirst(a: Incident, b: Incident): number {
  return (
    Number(a.state === "closed") - Number(b.state === "closed") ||
    RANKS[a.severity] - RANKS[b.severity] ||
    (b.impact.gpu_hours_lost ?? 0) - (a.impact.gpu_hours_lost ?? 0) ||
    parse(b.started_at) - parse(a.started_at)
  );
}

const LEAST_ROOM_MS = 180_000;

/** What is shown of time: the incident with a fifth of its length, but three minutes at least, on either side. */
export function windowOf(started: number, closed: number | null, from: number, to: number): { from: number; to: number } {
  const end = closed ?? to;
  const room = Math.max(LEAST_ROOM_MS, (end - started) / 5);
  return { from: Math.max(from, started - room), to: Math.min(to, end + room) };
}

/** The chain from the root on, in the order in which causes come before effects. */
export function ordered<L extends { readonly cause: string; readonly effect: string }>(links: readonly L[]): readonly L[] {
  const effects = new Set(links.map((one) => one.effect));
  const left = new Set(links);
  const out: L[] = [];
  let front = new Set(links.map((one) => one.cause).filter((end) => !effects.has(end)));
  while (left.size > 0) {
    const next = [...left].filter((one) => front.has(one.cause));
    const taken = next.length > 0 ? next : [...left];
    taken.forEach((one) => left.delete(one));
    out.push(...taken);
    front = new Set(taken.map((one) => one.effect));
  }
  return out;
}

/** Which entities of a stream tell of the culprit: null where none does. */
export function entitiesFor(kind: string, signal: Signal, entity: Entity, job: string | null, nodes: readonly string[]): readonly string[] | null {
  const { node, gpu, nic, switch: switched, port } = entity;
  switch (kind) {
    case "steps":
      return job === null ? null : [signal.field === "step_time_s" ? `${job}/0` : job];
    case "dcgm":
      return node === undefined ? (nodes[0] === undefined ? null : [nodes[0]]) : [gpu === undefined ? String(node) : `${node}/${gpu}`];
    case "nic":
      return node === undefined ? null : [nic === undefined ? String(node) : `${node}/${nic}`];
    case "switch":
      return switched === undefined ? null : [port === undefined ? String(switched) : `${switched}/${port}`];
    case "storage":
      return node === undefined ? (entity["mount"] === undefined ? null : []) : [String(node)];
    default:
      return null;
  }
}
