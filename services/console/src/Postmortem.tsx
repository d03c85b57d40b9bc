/** Postmortems: made of an incident, looked at here, and taken away as one file. */
import { useState } from "preact/hooks";
import { ask, path, useLoaded } from "./api";
import { Made, One, useStart } from "./Made";
import { Operators } from "./Me";
import { Report } from "./Report";
import { href } from "./route";
import type { RecordingSummary, Task } from "./types";
import { Trouble } from "./ui";

interface Props {
  readonly id: string | null;
  readonly query: Readonly<Record<string, string>>;
}

export function PostmortemPage({ id, query }: Props) {
  return id === null ? <Overview query={query} /> : (
    <One id={id} page="postmortem" name="Postmortems" title={(task) => task.result?.title ?? "Postmortem"}>
      {(task) => <Finished task={task} />}
    </One>
  );
}

function Overview({ query }: Pick<Props, "query">) {
  return (
    <>
      <h1>Postmortem</h1>
      <Operators>
        <Form run={query["run"] ?? null} incident={query["incident"] ?? null} title={query["title"] ?? null} />
      </Operators>
      <Made page="postmortem" kind="postmortem" subject={(one) => (one.result === null ? subject(one) : `${one.result.title ?? ""}, ${one.result.recording ?? ""}`)} />
    </>
  );
}

interface FormProps {
  readonly run: string | null;
  readonly incident: string | null;
  readonly title: string | null;
}

function Form({ run, incident, title }: FormProps) {
  const recordings = useLoaded(run === null ? "recordings" : null, () => ask<readonly RecordingSummary[]>("recordings"));
  const [recording, setRecording] = useState("");
  const [price, setPrice] = useState("");
  const [rules, setRules] = useState(false);
  const [whatIf, setWhatIf] = useState(true);
  const { start, error, busy } = useStart("postmortem");
  const of = run === null ? { recording } : { run, incident };
  const asked = { ...of, price: price === "" ? null : Number(price), rules, what_if: whatIf };
  return (
    <form class="panel" onSubmit={(event) => start(event, "postmortems", asked)} aria-label="Make a postmortem">
      {run === null ? (
        <label class="row">
          <span class="soft">Of the costliest incident of</span>
          <select required value={recording} onChange={(event) => setRecording(event.currentTarget.value)}>
            <option value="">recording…</option>
            {(recordings.data ?? []).map((one) => (
              <option key={one.name} value={one.name}>
                {one.title}
              </option>
            ))}
          </select>
        </label>
      ) : (
        <p>
          Of <strong>{title ?? `the costliest incident of run ${run}`}</strong>
        </p>
      )}
      <div class="row choices">
        <label>
          <span class="soft">USD per GPU-hour </span>
          <input type="number" min="0" max="1000000" step="any" value={price} placeholder="none" onInput={(event) => setPrice(event.currentTarget.value)} />
        </label>
        <label>
          <input type="checkbox" checked={whatIf} onChange={(event) => setWhatIf(event.currentTarget.checked)} /> what would have caught it sooner (takes longest)
        </label>
        <label>
          <input type="checkbox" checked={rules} onChange={(event) => setRules(event.currentTarget.checked)} /> what the alert rules say
        </label>
        <button type="submit" class="main" disabled={busy}>
          Make the postmortem
        </button>
      </div>
      {error !== null && <Trouble error={error} />}
    </form>
  );
}

function Finished({ task }: { readonly task: Task }) {
  return (
    <Report url={path("postmortems", task.id, "report")} forms={FORMS} name={`postmortem-${task.result?.recording ?? "report"}-${task.result?.incident ?? task.id}`} title={task.result?.title ?? "Postmortem"}>
      {typeof task.asked["run"] === "string" && task.result?.incident != null && <a href={href("incident", [task.asked["run"], task.result.incident])}>The incident</a>}
    </Report>
  );
}

const FORMS = [
  ["html", "HTML", "html"],
  ["md", "Markdown", "md"],
] as const;

/** What a postmortem that is not done yet will be of. */
function subject({ asked }: Task): string {
  const [recording, run] = [asked["recording"], asked["run"]];
  return typeof recording === "string" ? recording : typeof run === "string" ? `run ${run}` : "postmortem";
}
