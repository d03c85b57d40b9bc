/** Names for parts of what the API answers (openapi.ts). Times are RFC 3339, but epoch milliseconds in columns. */

import type { Finding, Label, Run, Series } from "./openapi";

export type * from "./openapi";

export type Entity = Finding["entity"];
export type DetectorSettings = Run["detectors"];
export type Values = Series["mean"];
export type Mark = Label["mark"];

export interface Page<Item> {
  readonly items: readonly Item[];
  readonly next: string | null;
  readonly total: number;
}

export function words(entity: Entity): string {
  const { node, gpu, ...rest } = entity;
  const place = node === undefined ? [] : [gpu === undefined ? String(node) : `${node} GPU ${gpu}`];
  const others = Object.entries(rest).map(([name, value]) => (name === "job_id" ? `job ${value}` : `${name} ${value}`));
  return [...place, ...others].join(", ");
}
