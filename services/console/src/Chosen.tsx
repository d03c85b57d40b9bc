/** Recordings of the library to choose from. */
import type { ComponentChildren } from "preact";
import type { RecordingSummary } from "./types";

interface Props {
  readonly title: string;
  readonly offered: readonly RecordingSummary[];
  readonly chosen: ReadonlySet<string>;
  readonly set: (chosen: ReadonlySet<string>) => void;
  /** What else is known of one. */
  readonly more?: (name: string) => ComponentChildren;
}

export function Recordings({ title, offered, chosen, set, more }: Props) {
  const toggle = (name: string) => set(chosen.has(name) ? new Set([...chosen].filter((one) => one !== name)) : new Set([...chosen, name]));
  return (
    <fieldset class="choose">
      <legend>{title}</legend>
      {offered.map(({ name, title: story }) => (
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
