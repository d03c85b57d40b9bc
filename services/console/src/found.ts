/** What a run has found so far, event by event. Pure. */
import type { ServerEvent } from "./api";
import type { Alert, Finding, Incident, Replay, Run } from "./types";

export interface Found {
  readonly run: Run | null;
  readonly findings: ReadonlyMap<string, Finding>;
  readonly incidents: ReadonlyMap<string, Incident>;
  readonly alerts: ReadonlyMap<string, Alert>;
  /** Of a replay by way of Kafka where it is; null where it was removed, or is none. */
  readonly replay: Replay | null;
}

export const NOTHING: Found = { run: null, findings: new Map(), incidents: new Map(), alerts: new Map(), replay: null };

/** What is known after some events more. Events that come twice change nothing. */
export function withEvents(before: Found, events: readonly ServerEvent[]): Found {
  let { run, replay } = before;
  const [findings, incidents, alerts] = [new Map(before.findings), new Map(before.incidents), new Map(before.alerts)];
  for (const { kind, body } of events) {
    switch (kind) {
      case "progress":
      case "over":
        run = body as Run;
        break;
      case "finding":
        findings.set((body as Finding).id, body as Finding);
        break;
      case "incident":
        incidents.set((body as Incident).id, body as Incident);
        break;
      case "joined":
        incidents.delete((body as { readonly id: string }).id);
        break;
      case "alert":
        alerts.set((body as Alert).id, body as Alert);
        break;
      case "replay": {
        const now = body as Replay | null;
        if (now !== null && replay !== null && now.run !== replay.run) {
          // Another generation: what was found in the one before does not hold for it.
          run = null;
          for (const known of [findings, incidents, alerts]) {
            known.clear();
          }
        }
        replay = now;
        break;
      }
    }
  }
  return { run, findings, incidents, alerts, replay };
}
