/** What is done about an open finding of a live cluster: acknowledge it, silence its alert, close it; each says why. */
import { useState } from "preact/hooks";
import { path, send } from "./api";
import { parse } from "./time";
import type { Action, Finding } from "./types";
import { Moment, Trouble } from "./ui";

/** By whom, when and why; of a silence until when, with its page in Alertmanager. */
export function Actions({ actions }: { readonly actions: readonly Action[] }) {
  return (
    <>
      {actions.map((one) => (
        <p key={`${one.kind} ${one.at}`} class="small" role="status">
          <strong>{one.kind}</strong> by {one.author}, <Moment at={parse(one.at)} withDay />: {one.note}
          {one.until !== null && one.link !== null && (
            <>
              {" "}
              <a href={one.link} rel="noreferrer">
                until <Moment at={parse(one.until)} withDay />
              </a>
            </>
          )}
        </p>
      ))}
    </>
  );
}

const SPANS: readonly (readonly [number, string])[] = [
  [3600, "1 hour"],
  [4 * 3600, "4 hours"],
  [86_400, "1 day"],
  [7 * 86_400, "1 week"],
];

interface Props {
  readonly finding: Finding;
  /** Called when something was done: the finding is another now. */
  readonly onDone: () => void;
}

export function Handle({ finding, onDone }: Props) {
  const [note, setNote] = useState("");
  const [seconds, setSeconds] = useState(4 * 3600);
  const [error, setError] = useState<Error | null>(null);
  const act = (what: string, more: Readonly<Record<string, number>> = {}) => {
    setError(null);
    send<Finding>(path("runs", finding.run, "findings", finding.id, what), { note, ...more }).then(
      () => {
        setNote("");
        onDone();
      },
      (reason: unknown) => setError(reason as Error),
    );
  };
  const silent = note.trim() === "";
  return (
    <section class="panel" aria-label="What you do about it">
      <h2>What do you do about it?</h2>
      <label>
        <span class="soft small">Why (needed): everybody sees it with your name</span>
        <textarea rows={2} style="width:100%" value={note} maxLength={4000} onInput={(event) => setNote(event.currentTarget.value)} />
      </label>
      <div class="row" style="margin-top:.4rem">
        <button type="button" disabled={silent} onClick={() => act("acknowledge")}>
          Acknowledge
        </button>
        <button type="button" disabled={silent} onClick={() => act("silence", { for_s: seconds })}>
          Silence its alert
        </button>
        <select aria-label="for how long" value={seconds} onChange={(event) => setSeconds(Number(event.currentTarget.value))}>
          {SPANS.map(([span, words]) => (
            <option key={span} value={span}>
              {words}
            </option>
          ))}
        </select>
        <button type="button" disabled={silent} title="its alert is resolved, and it is not reported again" onClick={() => act("close")}>
          Close
        </button>
      </div>
      {error !== null && <Trouble error={error} />}
    </section>
  );
}
