/** What people say of a finding or an incident: right or wrong, and why. */
import { useContext, useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import { MeContext, useMayChange } from "./Me";
import { parse } from "./time";
import type { Label, Mark } from "./types";
import { Moment, Trouble, When } from "./ui";

const MARKS: readonly (readonly [Mark, string])[] = [
  ["right", "✓ Right"],
  ["wrong", "✕ Wrong"],
  ["unsure", "? Unsure"],
];

interface Props {
  readonly run: string;
  readonly of: { readonly finding: string } | { readonly incident: string };
}

export function Judge({ run, of }: Props) {
  const about = (one: Label) => ("finding" in of ? one.finding === of.finding : one.incident === of.incident);
  const me = useContext(MeContext);
  const may = useMayChange();
  const labels = useLoaded(`${run} ${Object.values(of).join()}`, async () => (await ask<readonly Label[]>("labels", { run })).filter(about));
  const [note, setNote] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const mine = labels.data?.find((one) => one.author === me?.name) ?? null;
  const done = (made: Promise<unknown>) => {
    setError(null);
    made.then(
      () => {
        setNote(null);
        labels.again();
      },
      (reason: unknown) => setError(reason as Error),
    );
  };
  const why = note ?? mine?.note ?? "";
  const mark = (what: Mark) =>
    done(mine === null ? send<Label>("labels", { run, ...of, mark: what, note: why }) : send<Label>(path("labels", mine.id), { mark: what, note: why }, "PATCH"));
  return (
    <section class="panel" aria-label="Your judgement">
      <h2>Is it right?</h2>
      {may && (
        <>
          <label>
            <span class="soft small">Why, for those who read it later</span>
            <textarea rows={2} style="width:100%" value={why} maxLength={4000} onInput={(event) => setNote(event.currentTarget.value)} />
          </label>
          <div class="row" style="margin-top:.4rem">
            {MARKS.map(([what, text]) => (
              <button type="button" key={what} aria-pressed={mine?.mark === what} onClick={() => mark(what)}>
                {text}
              </button>
            ))}
            {mine !== null && note !== null && (
              <button type="button" class="main" onClick={() => mark(mine.mark)}>
                Save the note
              </button>
            )}
            {mine !== null && (
              <button type="button" onClick={() => done(ask(path("labels", mine.id), {}, { method: "DELETE" }))}>
                Take back
              </button>
            )}
          </div>
        </>
      )}
      {error !== null && <Trouble error={error} />}
      <When loaded={labels}>
        {(made) =>
          made.map((one) => (
            <p key={one.id} class="small" role="status">
              <span class={`sev ${one.mark === "right" ? "good" : one.mark === "wrong" ? "page" : "warn"}`}>{one.mark}</span> {one.note}{" "}
              <span class="soft">
                {one.author}, <Moment at={parse(one.updated_at)} withDay />
              </span>
            </p>
          ))
        }
      </When>
    </section>
  );
}
