/** What a page writes where nothing is open: no more than is known. Pure. */
import { moment, parse } from "./time";
import type { Run } from "./types";

/** Of a live cluster. What cannot be read may be anything. */
export function calmOf({ error, event_time }: Pick<Run, "error" | "event_time">): string {
  if (error === null) {
    return "Nothing is wrong there now.";
  }
  return event_time === null ? "Whether anything is wrong there is not known." : `Nothing was wrong there at ${moment(parse(event_time), true)}; whether anything is now is not known.`;
}

/** Of runs of which none that is done has found an incident: what those that go on have found so far. */
export function calmIn(going: readonly Pick<Run, "incidents">[]): string {
  const found = going.reduce((sum, { incidents }) => sum + incidents, 0);
  return going.length === 0 ? "In recordings: no run has found an incident." : `In recordings: no run that is done has found an incident; ${going.length} run(s) go on, with ${found} incident(s) so far.`;
}
