/** Which stretch of a live cluster is cut out around a finding. */
import { parse } from "./time";
import type { Finding } from "./types";

const AROUND_MS = 30 * 60_000;

interface Cut {
  readonly from: number;
  readonly to: number;
  readonly name: string;
}

/** From half an hour before a finding until half an hour after it, no later than what is `known`; its name holds both. */
export function around(finding: Pick<Finding, "fault" | "started_at" | "resolved_at">, known: number): Cut {
  const began = parse(finding.started_at);
  const over = finding.resolved_at === null ? known : parse(finding.resolved_at);
  const day = new Date(began).toISOString().replace(/[-:]/g, "").slice(0, 13).toLowerCase();
  return { from: began - AROUND_MS, to: Math.min(known, over + AROUND_MS), name: `${finding.fault.replaceAll("_", "-")}-${day}` };
}
