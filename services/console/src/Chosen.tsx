/** Recordings of the library to choose from. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { RecordingSummary } from "./types";

interface Props {
  readonly title: string;
  readonly offered: readonly RecordingSummary[];
  readonly chosen: ReadonlySet<string>;
  readonly set: (chosen: ReadonlySet<string>) => void;
  /** What else is known of one. */
  readonly more?: (name: string) => ComponentChildren;
}

/** Fewer are taken in at a glance. */
const FILTERED_FROM = 6;

export function Recordings({ title, offered, chosen, set, more }: Props) {
  const [wanted, setWanted] = useState("");
  const toggle = (name: string) => set(chosen.has(name) ? new Set([...chosen].filter((one) => one !== name)) : new Set([...chosen, name]));
  const shown = offered.filter(({ name, title: story }) => `${name} ${story}`.toLowerCase().includes(wanted.trim().toLowerCase()));
  const names = shown.map(({ name }) => name);
  return (
    <fieldset class="choose">
      <legend>{title}</legend>
      {offered.length >= FILTERED_FROM && (
        <div class="row small" style="margin-bottom:.4rem">
          <label>
            <span class="soft">Those with </span>
            <input type="search" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
          </label>
          <button type="button" onClick={() => set(new Set([...chosen, ...names]))}>
            Choose these {shown.length}
          </button>
          <button type="button" onClick={() => set(new Set([...chosen].filter((one) => !names.includes(one))))}>
            None of them
          </button>
          <span class="soft" role="status">
            {chosen.size} chosen
          </span>
        </div>
      )}
      {shown.map(({ name, title: story }) => (
        <label key={name} class="row">
          <input type="checkbox" checked={chosen.has(name)} onChange={() => toggle(name)} />
          <span>
            {story} <span class="soft small mono">{name}</span>
            {more?.(name)}
          </span>
        </label>
      ))}
    </fieldset>
  );
}
