/** Small pieces that every page is made of. */
import { createContext, type ComponentChildren } from "preact";
import { useContext, useState } from "preact/hooks";
import { ApiError, type Loaded } from "./api";
import { href } from "./route";
import { clock, moment, parse, rfc3339, severalDays } from "./time";
import type { RecordingSummary, Severity, Task } from "./types";
import { howFar, percent } from "./units";

const SEVERITIES: Readonly<Record<Severity, readonly [string, string, string]>> = {
  page: ["page", "✕", "page"],
  ticket: ["warn", "●", "ticket"],
  info: ["info", "○", "info"],
};

/** How grave, to sort by. */
export function weight(of: Severity): number {
  return ["info", "ticket", "page"].indexOf(of);
}

export function Sev({ of }: { readonly of: Severity }) {
  const [name, mark, word] = SEVERITIES[of];
  return (
    <span class={`sev ${name}`}>
      <span aria-hidden="true">{mark}</span> {word}
    </span>
  );
}

const DaysContext = createContext(false);

/** Moments of a recording: with their days where it is of several. */
export function Days({ of, children }: { readonly of: Pick<RecordingSummary, "start" | "end">; readonly children: ComponentChildren }) {
  return <DaysContext.Provider value={severalDays(parse(of.start), parse(of.end))}>{children}</DaysContext.Provider>;
}

export function Moment({ at, withDay = false }: { readonly at: number; readonly withDay?: boolean }) {
  const days = useContext(DaysContext);
  return (
    <time dateTime={rfc3339(at)} title={rfc3339(at)}>
      {moment(at, withDay || days)}
    </time>
  );
}

export function EventClock({ at }: { readonly at: number }) {
  return (
    <>
      <span class="clock" role="timer" aria-label="event time">
        {clock(at)}
      </span>
      <span class="soft small nowrap">{rfc3339(at).slice(0, 10)} UTC</span>
    </>
  );
}

/** A remedy for who asks by HTTP is none for who looks at a page. */
const BY_HTTP = /^GET \/api\//;

export function Trouble({ error }: { readonly error: Error }) {
  return (
    <div class="panel problem" role="alert">
      <strong>{error instanceof ApiError ? error.title : "This page has failed"}</strong>
      <p>{error.message}</p>
      {error instanceof ApiError && error.remedy !== "" && (
        <p>
          What to do: {BY_HTTP.test(error.remedy) ? <a href={href("library")}>see in the library what there is</a> : error.remedy}
        </p>
      )}
    </div>
  );
}

interface ProgressProps {
  readonly of: Task;
  readonly children?: ComponentChildren;
}

/** How far a task is and what it is doing. */
export function Progress({ of: task, children }: ProgressProps) {
  const far = howFar(task);
  return (
    <div class="row" role="status">
      {far === null ? (
        <progress aria-label="How far it is" />
      ) : (
        <>
          <progress max={1} value={far} aria-label="How far it is" /> {percent(far)}
        </>
      )}
      <span class="soft">{task.state === "queued" ? "waits for its turn" : task.doing}</span>
      {children}
    </div>
  );
}

/** What was loaded, or that it is on its way, or why it did not come. */
export function When<T>({ loaded, children }: { readonly loaded: Loaded<T>; readonly children: (data: T) => ComponentChildren }) {
  if (loaded.error !== null) {
    return <Trouble error={loaded.error} />;
  }
  return loaded.data === null ? <p class="soft">Loading…</p> : <>{children(loaded.data)}</>;
}

/** The beginning of a story, and all of it where that is asked for. */
export function Story({ text, first }: { readonly text: string; readonly first: string }) {
  const [whole, setWhole] = useState(false);
  return (
    <p style="margin-top:.4rem">
      {whole ? text : first}{" "}
      {!whole && first !== text && (
        <button type="button" class="small" onClick={() => setWhole(true)}>
          all of it
        </button>
      )}
    </p>
  );
}

export function Faults({ of: faults, none }: { readonly of: readonly string[]; readonly none: string }) {
  return faults.length === 0 ? (
    <span class="small soft">{none}</span>
  ) : (
    <>
      {faults.map((fault) => (
        <span class="tag" key={fault}>
          {fault}
        </span>
      ))}
    </>
  );
}
