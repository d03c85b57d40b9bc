/** Sample incidents: what was made of them, and how another is asked for. */
import type { Scenario, Task } from "./types";

/** The last task of each scenario; tasks come the latest first. */
export function lastOfEach(tasks: readonly Task[]): ReadonlyMap<string, Task> {
  const last = new Map<string, Task>();
  for (const task of tasks) {
    const scenario = String(task.asked["scenario"]);
    if (!last.has(scenario)) {
      last.set(scenario, task);
    }
  }
  return last;
}

/** The recordings that there are of a scenario: as it is written, and what was made of it last. */
export function madeOf(scenario: Scenario, last: Task | undefined, there: ReadonlySet<string>): readonly string[] {
  const names = [scenario.recording, last?.result?.recording].filter((name) => typeof name === "string");
  return [...new Set(names)].filter((name) => there.has(name));
}

/** The first sentence of a story. */
export function firstSentence(story: string): string {
  return /^.*?[.!?](?=\s+[A-Z]|$)/s.exec(story)?.[0] ?? story;
}

/** As it is typed; empty: as the scenario has it. */
export interface Wanted {
  readonly seed: string;
  readonly scale: string;
  readonly world: string;
  readonly overwrite: boolean;
}

export const AS_WRITTEN: Wanted = { seed: "", scale: "", world: "", overwrite: false };

export function makeRequest({ overwrite, ...numbers }: Wanted): Readonly<Record<string, number | boolean>> {
  const given = Object.entries(numbers).filter(([, text]) => text !== "");
  return { ...Object.fromEntries(given.map(([name, text]) => [name, Number(text)])), ...(overwrite && { overwrite }) };
}
