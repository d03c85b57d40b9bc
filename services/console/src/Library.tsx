/** The recordings: what happened in them, how long they are, what was found; import by dropping an archive. */
import { useState } from "preact/hooks";
import { all, ask, path, send, useLoaded } from "./api";
import { go, href } from "./route";
import { span } from "./time";
import type { RecordingSummary, Run } from "./types";
import { bytes, Trouble, When } from "./ui";

interface Shelf {
  readonly recordings: readonly RecordingSummary[];
  readonly runs: ReadonlyMap<string, Run>;
}

async function load(): Promise<Shelf> {
  const [recordings, runs] = await Promise.all([ask<readonly RecordingSummary[]>("recordings"), all<Run>("runs")]);
  const latest = new Map<string, Run>();
  for (const run of runs) {
    const known = latest.get(run.recording);
    if (Object.keys(run.detectors).length === 0 && (known === undefined || known.created_at < run.created_at)) {
      latest.set(run.recording, run);
    }
  }
  return { recordings, runs: latest };
}

/** Start the detectors over a recording and go where it can be watched. */
export async function start(recording: string): Promise<void> {
  const run = await send<Run>("runs", { recording });
  go(href("run", [run.id]));
}

export function Library() {
  const shelf = useLoaded("library", load);
  const [wanted, setWanted] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const begin = (name: string) => {
    setError(null);
    start(name).catch((reason: unknown) => setError(reason as Error));
  };
  return (
    <>
      <div class="row spread" style="margin-bottom:.6rem">
        <h1>Library</h1>
        <label>
          <span class="soft">Find </span>
          <input type="search" value={wanted} placeholder="fault, cluster, story" onInput={(event) => setWanted(event.currentTarget.value)} />
        </label>
      </div>
      <Import onDone={shelf.again} />
      {error !== null && <Trouble error={error} />}
      <When loaded={shelf}>
        {({ recordings, runs }) => (
          <>
            {recordings.length === 0 && (
              <p>
                No recordings yet. Drop one above, or make one with <code>hindcast make-recording</code>.
              </p>
            )}
            {recordings
              .filter((one) => JSON.stringify([one.name, one.title, one.summary, one.faults, one.cluster]).toLowerCase().includes(wanted.toLowerCase()))
              .map((one) => (
                <Recording key={one.name} one={one} run={runs.get(one.name) ?? null} onRun={() => begin(one.name)} />
              ))}
          </>
        )}
      </When>
    </>
  );
}

function Recording({ one, run, onRun }: { readonly one: RecordingSummary; readonly run: Run | null; readonly onRun: () => void }) {
  const [whole, setWhole] = useState(false);
  return (
    <article class="panel" aria-label={one.title}>
      <div class="row spread" style="align-items:flex-start;flex-wrap:nowrap">
        <div>
          <h2>{run === null ? one.title : <a href={href("run", [run.id])}>{one.title}</a>}</h2>
          <div class="small soft">
            <span class="mono">{one.name}</span> · {one.cluster.name}, {one.cluster.nodes} nodes, {one.cluster.gpus} × {one.cluster.gpu_model} ·{" "}
            {one.start.slice(0, 10)} · {span(one.duration_s * 1000)} · {bytes(one.size_bytes)} · {one.origin}
          </div>
        </div>
        <div class="row nowrap" style="flex-wrap:nowrap">
          {run !== null && (
            <a class="small" href={href("run", [run.id])}>
              {run.state === "done" ? `${run.findings} findings, ${run.incidents} incidents` : run.state}
            </a>
          )}
          <button type="button" class={run === null ? "main" : ""} onClick={onRun}>
            {run === null ? "Replay" : "Run again"}
          </button>
        </div>
      </div>
      <p style="margin-top:.4rem">
        {whole || one.summary.length < 260 ? one.summary : `${one.summary.slice(0, 240)}… `}
        {!whole && one.summary.length >= 260 && (
          <button type="button" class="small" onClick={() => setWhole(true)}>
            all of it
          </button>
        )}
      </p>
      <div>
        {one.faults.length === 0 ? (
          <span class="small soft">no fault labelled</span>
        ) : (
          one.faults.map((fault) => (
            <span class="tag" key={fault}>
              {fault}
            </span>
          ))
        )}
      </div>
    </article>
  );
}

function Import({ onDone }: { readonly onDone: () => void }) {
  const [over, setOver] = useState(false);
  const [busy, setBusy] = useState<string | null>(null);
  const [told, setTold] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const take = (file: File | null | undefined) => {
    if (file === null || file === undefined || busy !== null) {
      return;
    }
    setBusy(file.name);
    setError(null);
    setTold(null);
    upload(file)
      .then(
        (made) => {
          setTold(`${made.name} is in the library.`);
          onDone();
        },
        (reason: unknown) => setError(reason as Error),
      )
      .finally(() => setBusy(null));
  };
  return (
    <>
      <div
        class={over ? "drop over" : "drop"}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          take(event.dataTransfer?.files[0]);
        }}
      >
        <label class="row">
          <span>{busy === null ? "Drop a recording here (.zip or .tar.gz), or choose one:" : `Importing ${busy}…`}</span>
          <input type="file" accept=".tar,.gz,.tgz,.zip" disabled={busy !== null} onChange={(event) => take(event.currentTarget.files?.[0])} />
        </label>
        <span role="status">{told}</span>
      </div>
      {error !== null && <Trouble error={error} />}
    </>
  );
}

function upload(file: File): Promise<RecordingSummary> {
  return ask<RecordingSummary>(path("recordings"), {}, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
}
