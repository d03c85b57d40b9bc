/** The recordings: what happened in them, how long they are, what was found; import by dropping an archive. */
import { useState } from "preact/hooks";
import { all, ask, path, send, useLoaded } from "./api";
import { Import } from "./Import";
import { Operators } from "./Me";
import { LIVE_SPEEDS } from "./playhead";
import { shown } from "./changes";
import { go, href, useRoute } from "./route";
import { Table, type Column } from "./Table";
import { parse, span } from "./time";
import type { RecordingSummary, Replay, Run } from "./types";
import { Moment, Trouble, When } from "./ui";
import { quantity } from "./units";

interface Shelf {
  readonly recordings: readonly RecordingSummary[];
  /** The last one of each recording with the detectors as they come. */
  readonly latest: ReadonlyMap<string, Run>;
  readonly runs: readonly Run[];
}

async function load(): Promise<Shelf> {
  const [recordings, runs] = await Promise.all([ask<readonly RecordingSummary[]>("recordings"), all<Run>("runs")]);
  const latest = new Map<string, Run>();
  for (const run of runs) {
    const known = latest.get(run.recording);
    if (run.replay === null && Object.keys(run.detectors).length === 0 && (known === undefined || known.created_at < run.created_at)) {
      latest.set(run.recording, run);
    }
  }
  return { recordings, latest, runs };
}

/** Start the detectors over a recording and go where it can be watched. */
export async function start(recording: string): Promise<void> {
  const run = await send<Run>("runs", { recording });
  go(href("run", [run.id]));
}

export function Library() {
  const { query } = useRoute();
  const shelf = useLoaded("library", load);
  // Asked for by itself: without the real servers there are none, and nothing else waits for them.
  const replays = useLoaded("replays", () => ask<readonly Replay[]>("replays"));
  const [error, setError] = useState<Error | null>(null);
  const begin = (name: string) => {
    setError(null);
    start(name).catch((reason: unknown) => setError(reason as Error));
  };
  return (
    <>
      <h1>Library</h1>
      <Operators>
        <Import onDone={shelf.again} />
      </Operators>
      {error !== null && <Trouble error={error} />}
      {replays.data !== null && replays.data.length > 0 && (
        <section class="panel" aria-label="Live replays">
          <h2>Live replays</h2>
          <Table id="replays" rows={replays.data} columns={REPLAYS} keyOf={({ name }) => name} />
        </section>
      )}
      <When loaded={shelf}>
        {({ recordings, latest, runs }) =>
          recordings.length === 0 ? (
            <p>
              No recordings yet. Drop one above, or make one with <code>hindcast make</code>.
            </p>
          ) : (
            <>
              <section class="panel" aria-label="Recordings">
                <Table id="recordings" rows={recordings} columns={recordingColumns(latest, begin, shelf.again)} keyOf={({ name }) => name} />
              </section>
              {runs.length > 0 && (
                <section class="panel" aria-label="Runs">
                  <details open={Object.keys(query).some((name) => name.endsWith("-runs"))}>
                    <summary>All runs of the detectors: {runs.length}</summary>
                    <Table id="runs" rows={runs} columns={RUNS} keyOf={({ id }) => id} most={MOST} />
                    {runs.length > MOST && <p class="small soft">At most {MOST} are shown: name what you look for above them.</p>}
                  </details>
                </section>
              )}
            </>
          )
        }
      </When>
    </>
  );
}

const MOST = 200;

function recordingColumns(latest: Shelf["latest"], onRun: (name: string) => void, onGone: () => void): readonly Column<RecordingSummary>[] {
  return [
    {
      name: "recording",
      by: (one) => one.title,
      text: ({ title, name, summary }) => `${title} ${name} ${summary}`,
      cell: (one) => <Recording one={one} run={latest.get(one.name) ?? null} onRun={() => onRun(one.name)} onGone={onGone} />,
    },
    {
      name: "cluster",
      by: ({ cluster }) => cluster.name,
      text: ({ cluster }) => `${cluster.name} ${cluster.gpu_model}`,
      cell: ({ cluster }) => (
        <>
          {cluster.name}
          <div class="small soft">
            {cluster.nodes} nodes, {cluster.gpus} × {cluster.gpu_model}
          </div>
        </>
      ),
    },
    { name: "began", by: ({ start }) => start, cell: ({ start }) => <Moment at={parse(start)} withDay /> },
    { name: "length", num: true, by: ({ duration_s }) => duration_s, text: () => "", cell: ({ duration_s }) => span(duration_s * 1000) },
    { name: "size", num: true, by: ({ size_bytes }) => size_bytes, text: () => "", cell: ({ size_bytes }) => quantity(size_bytes, "bytes") },
    { name: "origin", by: ({ origin }) => origin },
    {
      name: "faults",
      by: ({ faults }) => faults.join(" "),
      cell: ({ faults }) =>
        faults.length === 0 ? (
          <span class="small soft">none labelled</span>
        ) : (
          faults.map((fault) => (
            <span class="tag" key={fault}>
              {fault}
            </span>
          ))
        ),
    },
    { name: "found", num: true, by: ({ name }) => latest.get(name)?.findings ?? null, text: () => "", cell: ({ name }) => <Found run={latest.get(name)} /> },
  ];
}

/** What the last run came to: not run is not nothing found. */
function Found({ run }: { readonly run: Run | undefined }) {
  return run === undefined ? (
    <span class="soft">not run</span>
  ) : (
    <a class="small" href={href("run", [run.id])}>
      {run.state === "done" ? `${run.findings} finding(s), ${run.incidents} incident(s)` : run.state}
    </a>
  );
}

const RUNS: readonly Column<Run>[] = [
  { name: "recording", by: ({ recording }) => recording, cell: ({ id, recording }) => <a href={href("run", [id])}>{recording}</a> },
  { name: "asked for", by: ({ created_at }) => created_at, cell: ({ created_at }) => <Moment at={parse(created_at)} withDay /> },
  { name: "state", by: ({ state }) => state },
  { name: "detectors", by: ({ detectors }) => shown(detectors) },
  { name: "findings", num: true, by: ({ findings }) => findings, text: () => "" },
  { name: "incidents", num: true, by: ({ incidents }) => incidents, text: () => "" },
];

const REPLAYS: readonly Column<Replay>[] = [
  { name: "replay", by: ({ name }) => name, cell: ({ name }) => <a href={href("replay", [name])}>{name}</a> },
  { name: "recording", by: ({ recording }) => recording },
  { name: "state", by: ({ state }) => state },
  { name: "speed", by: ({ speed }) => (speed === "max" ? Infinity : speed), text: () => "", cell: ({ speed }) => (speed === "max" ? "as fast as it goes" : `${speed}×`) },
  { name: "at", by: ({ event_time }) => event_time, cell: ({ event_time }) => <Moment at={parse(event_time)} withDay /> },
];

interface RecordingProps {
  readonly one: RecordingSummary;
  readonly run: Run | null;
  readonly onRun: () => void;
  readonly onGone: () => void;
}

function Recording({ one, run, onRun, onGone }: RecordingProps) {
  const [whole, setWhole] = useState(false);
  const [live, setLive] = useState(false);
  const [leaving, setLeaving] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const remove = () => {
    setLeaving(false);
    ask(path("recordings", one.name), {}, { method: "DELETE" }).then(onGone, (reason: unknown) => setError(reason as Error));
  };
  return (
    <article aria-label={one.title}>
      <h2>{run === null ? one.title : <a href={href("run", [run.id])}>{one.title}</a>}</h2>
      <div class="small soft mono">{one.name}</div>
      <div class="row actions">
          <a class="small" href={href("coverage", [one.name])} aria-label={`Coverage of ${one.name}`}>
            Coverage
          </a>
          <a class="small" href={href("rules", [], { recording: one.name })} aria-label={`Rules over ${one.name}`}>
            Rules
          </a>
          <a class="small" href={href("backtest", [], { recording: one.name })} aria-label={`Backtest of ${one.name}`}>
            Backtest
          </a>
          <Operators>
            <button type="button" class={run === null ? "main" : ""} onClick={onRun}>
              {run === null ? "Replay" : "Run again"}
            </button>
            <button type="button" aria-expanded={live} onClick={() => setLive(!live)}>
              Live…
            </button>
            {!one.read_only && (
              <button type="button" aria-expanded={leaving} onClick={() => setLeaving(!leaving)}>
                Delete…
              </button>
            )}
          </Operators>
      </div>
      {leaving && (
        <div class="inset row">
          <span>Its files are deleted for good.</span>
          <button type="button" class="main" onClick={remove}>
            Delete {one.name}
          </button>
          <button type="button" onClick={() => setLeaving(false)}>
            Keep it
          </button>
        </div>
      )}
      {error !== null && <Trouble error={error} />}
      {live && <StartLive recording={one.name} />}
      <p style="margin-top:.4rem">
        {whole || one.summary.length < 260 ? one.summary : `${one.summary.slice(0, 240)}… `}
        {!whole && one.summary.length >= 260 && (
          <button type="button" class="small" onClick={() => setWhole(true)}>
            all of it
          </button>
        )}
      </p>
    </article>
  );
}

const SHIFTS: readonly (readonly [Replay["shift"], string])[] = [
  ["now", "it ends now"],
  ["start-now", "it begins now (speed 1)"],
  ["keep", "when it was"],
];

/** Start a replay through Kafka and the services behind it, where it is alerted as live telemetry would be. */
function StartLive({ recording }: { readonly recording: string }) {
  const [speed, setSpeed] = useState("60");
  const [shift, setShift] = useState<Replay["shift"]>("now");
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const begin = () => {
    setError(null);
    setBusy(true);
    send<Replay>("replays", { recording, shift, speed: speed === "max" ? speed : Number(speed) })
      .then(
        (made) => go(href("replay", [made.name])),
        (reason: unknown) => setError(reason as Error),
      )
      .finally(() => setBusy(false));
  };
  return (
    <div class="inset">
      <div class="row">
        <span class="soft">Through the real services:</span>
        <label>
          <span class="soft">speed </span>
          <select value={speed} onChange={(event) => setSpeed(event.currentTarget.value)}>
            {LIVE_SPEEDS.map((one) => (
              <option key={one} value={String(one)}>
                {one === "max" ? "as fast as it goes" : `${one}×`}
              </option>
            ))}
          </select>
        </label>
        <label>
          <span class="soft">lands so that </span>
          <select
            value={shift}
            onChange={(event) => {
              const chosen = event.currentTarget.value as Replay["shift"];
              setShift(chosen);
              setSpeed(chosen === "start-now" ? "1" : speed);
            }}
          >
            {SHIFTS.map(([one, words]) => (
              <option key={one} value={one}>
                {words}
              </option>
            ))}
          </select>
        </label>
        <button type="button" class="main" disabled={busy} onClick={begin}>
          Start live
        </button>
      </div>
      {error !== null && <Trouble error={error} />}
    </div>
  );
}
