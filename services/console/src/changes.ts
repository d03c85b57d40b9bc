/** What the form of a comparison says, as detectors.yaml would. */
import type { Detector, DetectorSettings } from "./types";

export interface Change {
  readonly detector: string;
  readonly setting: string;
  readonly value: string;
}

/** Numbers and truths are told by what the default is; what was not filled in is left out. */
export function settingsOf(changes: readonly Change[], detectors: readonly Pick<Detector, "name" | "settings">[]): DetectorSettings {
  const settings: Record<string, Record<string, number | string | boolean>> = {};
  for (const { detector, setting, value } of changes) {
    const usual = setting === "enabled" ? true : detectors.find((one) => one.name === detector)?.settings.find((one) => one.name === setting)?.value;
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
