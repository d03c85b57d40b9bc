/** Postmortems: made of an incident, looked at here, and taken away as one file. */
import { useEffect, useState } from "preact/hooks";
import { ask, file, path, send, useLoaded } from "./api";
import { Operators } from "./Me";
import { go, href } from "./route";
import { goingOn, useTask } from "./tasks";
import type { Page, RecordingSummary, Task } from "./types";
import { Progress, Trouble, When } from "./ui";

interface Props {
  readonly id: string | null;
  readonly query: Readonly<Record<string, string>>;
}

export function PostmortemPage({ id, query }: Props) {
  return id === null ? <Overview query={query} /> : <Report id={id} />;
}

function Overview({ query }: Pick<Props, "query">) {
  const made = useLoaded("postmortems", () => ask<Page<Task>>("tasks", { kind: "postmortem", limit: 100 }));
  return (
    <>
      <h1>Postmortem</h1>
      <Operators>
        <Form run={query["run"] ?? null} incident={query["incident"] ?? null} title={query["title"] ?? null} />
      </Operators>
      <When loaded={made}>
        {({ items }) =>
          items.length === 0 ? (
            <p class="soft">None has been made yet.</p>
          ) : (
            <section class="panel" aria-label="Made before">
              <h2>Made before</h2>
              <ul class="feed">
                {items.map((one) => (
                  <li key={one.id}>
                    <a href={href("postmortem", [one.id])}>{one.result?.title ?? subject(one)}</a>{" "}
                    <span class="soft small">
                      {one.state}, {one.created_at.slice(0, 16).replace("T", " ")}
                    </span>
                  </li>
                ))}
              </ul>
            </section>
          )
        }
      </When>
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
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const begin = (event: Event) => {
    event.preventDefault();
    setError(null);
    setBusy(true);
    const of = run === null ? { recording } : { run, incident };
    send<Task>("postmortems", { ...of, price: price === "" ? null : Number(price), rules, what_if: whatIf })
      .then(
        (task) => go(href("postmortem", [task.id])),
        (reason: unknown) => setError(reason as Error),
      )
      .finally(() => setBusy(false));
  };
  return (
    <form class="panel" onSubmit={begin} aria-label="Make a postmortem">
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

function Report({ id }: { readonly id: string }) {
  const loaded = useTask(id);
  const [error, setError] = useState<Error | null>(null);
  const cancel = () => send<Task>(path("tasks", id, "cancel"), {}).then(loaded.again, (reason: unknown) => setError(reason as Error));
  return (
    <>
      <p class="small">
        <a href={href("postmortem")}>◂ Postmortems</a>
      </p>
      {error !== null && <Trouble error={error} />}
      <When loaded={loaded}>
        {(task) => (
          <>
            <h1>{task.result?.title ?? "Postmortem"}</h1>
            {goingOn(task.state) && (
              <Progress of={task}>
                <Operators>
                  <button type="button" onClick={() => void cancel()}>
                    Cancel
                  </button>
                </Operators>
              </Progress>
            )}
            {task.state === "failed" && <p class="sev page">It has failed: {task.error}</p>}
            {task.state === "cancelled" && <p>It was cancelled.</p>}
            {task.state === "done" && <Finished task={task} />}
          </>
        )}
      </When>
    </>
  );
}

/** The report stands in a frame that may run nothing; the same file is what is taken away. */
function Finished({ task }: { readonly task: Task }) {
  const files = useLoaded(task.id, async () => {
    const [html, md] = await Promise.all(["html", "md"].map((form) => file(`${path("postmortems", task.id)}/report`, { form })));
    const [htmlUrl, mdUrl] = [html, md].map((blob) => URL.createObjectURL(blob ?? new Blob()));
    return { htmlUrl: htmlUrl ?? "", mdUrl: mdUrl ?? "", text: (await html?.text()) ?? "" };
  });
  const { htmlUrl, mdUrl } = files.data ?? {};
  useEffect(
    () => () => {
      for (const url of [htmlUrl, mdUrl]) {
        URL.revokeObjectURL(url ?? "");
      }
    },
    [htmlUrl, mdUrl],
  );
  const name = `postmortem-${task.result?.recording ?? "report"}-${task.result?.incident ?? task.id}`;
  return (
    <When loaded={files}>
      {({ text, htmlUrl: html, mdUrl: md }) => (
        <>
          <div class="row" style="margin:.4rem 0 .8rem">
            <a class="button main" href={html} download={`${name}.html`}>
              Download HTML
            </a>
            <a class="button" href={md} download={`${name}.md`}>
              Download Markdown
            </a>
            {typeof task.asked["run"] === "string" && task.result?.incident != null && (
              <a href={href("incident", [task.asked["run"], task.result.incident])}>The incident</a>
            )}
            <span class="soft small">One file, opens offline, prints well.</span>
          </div>
          <iframe class="report" title={task.result?.title ?? "Postmortem"} sandbox="" srcdoc={text} />
        </>
      )}
    </When>
  );
}

/** What a postmortem that is not done yet will be of. */
function subject({ asked }: Task): string {
  const [recording, run] = [asked["recording"], asked["run"]];
  return typeof recording === "string" ? recording : typeof run === "string" ? `run ${run}` : "postmortem";
}
