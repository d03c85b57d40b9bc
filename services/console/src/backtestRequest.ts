/** What the form of a backtest says, as the API takes it, and how far an alert is from its ticket. */
import { span } from "./time";

/** A file's text under a name. */
export interface Named {
  readonly name: string;
  readonly text: string;
}

export interface Draft {
  /** Empty: of recordings. */
  readonly source: string;
  readonly from: string;
  readonly to: string;
  readonly cluster: string;
  readonly recordings: readonly string[];
  readonly tickets: string;
  readonly timezone: string;
  readonly before: string;
  /** Whether the detectors as they come are looked at beside the configurations. */
  readonly usual: boolean;
  readonly configurations: readonly Named[];
  readonly ownRules: boolean;
  readonly rules: readonly Named[];
  readonly grid: string;
}

export const EMPTY: Draft = {
  source: "",
  from: "",
  to: "",
  cluster: "",
  recordings: [],
  tickets: "",
  timezone: "UTC",
  before: "2h",
  usual: true,
  configurations: [],
  ownRules: false,
  rules: [],
  grid: "5",
};

export function requestOf(draft: Draft) {
  const { source, from, to, cluster, tickets, timezone, before } = draft;
  const usual = draft.usual && draft.configurations.length > 0 ? [{ name: "defaults" }] : [];
  const own = draft.ownRules ? [{ name: "hindcast rules" }] : [];
  return {
    ...(source === "" ? { recordings: draft.recordings } : { of: { source, from: `${from}Z`, to: `${to}Z`, cluster: cluster === "" ? null : cluster } }),
    tickets: tickets.trim() === "" ? null : tickets,
    timezone,
    before,
    configurations: [...usual, ...draft.configurations.map(({ name, text }) => ({ name, yaml: text }))],
    rules: [...own, ...draft.rules.map(({ name, text }) => ({ name, rules: text }))],
    grid_s: Number(draft.grid),
  };
}

/** A name for what a file says: the file's own, of letters that names have, and none of `taken`. */
export function nameOf(file: string, taken: readonly string[]): string {
  const plain = file.replace(/\.[a-z]+$/i, "").replace(/[^A-Za-z0-9 ._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 56) || "mine";
  for (let number = 1; ; number += 1) {
    const name = number === 1 ? plain : `${plain} ${number}`;
    if (!taken.includes(name)) {
      return name;
    }
  }
}

/** The text of a file; an Error where it is none in UTF-8, as what is damaged in reading is damaged silently. */
export async function textOf(file: File): Promise<string> {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is no text in UTF-8: save it as such (a spreadsheet calls it "CSV UTF-8")`);
  }
}

/** How long before or after its ticket an alert came. */
export function apart(seconds: number): string {
  return seconds === 0 ? "at once" : `${span(Math.abs(seconds) * 1000)} ${seconds < 0 ? "before" : "after"}`;
}
