/** What the form of a comparison says, as detectors.yaml would. */
import type { Detector, DetectorSettings } from "./types";

export interface Change {
  readonly detector: string;
  readonly setting: string;
  readonly value: string;
}

type Known = readonly Pick<Detector, "name" | "settings">[];

function usualOf({ detector, setting }: Change, detectors: Known): unknown {
  return setting === "enabled" ? true : detectors.find((one) => one.name === detector)?.settings.find((one) => one.name === setting)?.value;
}

/** What is still missing of the first change that is not whole, or wrong with it; null: all can be taken. */
export function lackOf(changes: readonly Change[], detectors: Known): string | null {
  for (const change of changes) {
    const { detector, setting, value } = change;
    const [usual, name] = [usualOf(change, detectors), `${detector}.${setting}`];
    if (detector === "") {
      continue;
    }
    if (setting === "") {
      return `Choose a setting of ${detector}.`;
    }
    if (value.trim() === "") {
      return `Say what ${name} is to be.`;
    }
    if (typeof usual === "number" && !Number.isFinite(Number(value))) {
      return `${name} is a number, such as ${usual}.`;
    }
    if (typeof usual === "boolean" && value !== "true" && value !== "false") {
      return `${name} is true or false.`;
    }
  }
  return null;
}

/** Numbers and truths are told by what the default is; what was not filled in is left out. */
export function settingsOf(changes: readonly Change[], detectors: Known): DetectorSettings {
  const settings: Record<string, Record<string, number | string | boolean>> = {};
  for (const change of changes) {
    const { detector, setting, value } = change;
    const usual = usualOf(change, detectors);
    const typed = typeof usual === "number" ? Number(value) : typeof usual === "boolean" ? value === "true" : value;
    if (detector !== "" && setting !== "" && value !== "") {
      settings[detector] = { ...settings[detector], [setting]: typed };
    }
  }
  return settings;
}

/** Settings as words. */
export function shown(settings: DetectorSettings): string {
  const parts = Object.entries(settings).flatMap(([detector, own]) => Object.entries(own).map(([name, value]) => `${detector}.${name} = ${typeof value === "object" ? JSON.stringify(value) : String(value)}`));
  return parts.length === 0 ? "as they come" : parts.join(", ");
}
