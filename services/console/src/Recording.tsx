/** A recording: its story, what can be done with it, and, on a page of its own, what is in it. */
import { useState } from "preact/hooks";
import { all, ask, path, send, useLoaded } from "./api";
import { latestOf } from "./latest";
import { Operators } from "./Me";
import { LIVE_SPEEDS } from "./playhead";
import { go, href } from "./route";
import { Table, type Column } from "./Table";
import { moment, parse, span } from "./time";
import { words, type Job, type RecordingDetail, type RecordingSummary, type Replay, type Run, type Truth } from "./types";
import { Days, Moment, Story, Trouble, When } from "./ui";
import { quantity } from "./units";

/** Start the detectors over a recording and go where it can be watched. */
export async function start(recording: string): Promise<void> {
  const run = await send<Run>("runs", { recording });
  go(href("run", [run.id]));
}

interface RecordingProps {
  readonly one: RecordingSummary;
  readonly run: Run | null;
  readonly onRun: () => void;
  readonly onGone: () => void;
  /** On its own page: all of its story. */
  readonly alone?: boolean;
}

export function Recording({ one, run, onRun, onGone, alone = false }: RecordingProps) {
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
          {!alone && (
            <a class="small" href={href("library", [one.name])} aria-label={`Open ${one.name}`}>
              Open
            </a>
          )}
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
      <Story text={one.summary} first={alone || one.summary.length < 260 ? one.summary : `${one.summary.slice(0, 240)}…`} />
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

const TRUTHS: readonly Column<Truth>[] = [
  { name: "fault", by: ({ fault }) => fault, cell: ({ fault, distractor }) => (distractor ? <span class="soft">looks wrong, is not</span> : fault) },
  { name: "where", by: ({ entity }) => words(entity) },
  { name: "began", by: ({ onset }) => onset, cell: ({ onset }) => <Moment at={parse(onset)} /> },
  { name: "ended", by: ({ end }) => end, cell: ({ end }) => <Moment at={parse(end)} /> },
  { name: "what it was", by: ({ note, cause }) => note ?? cause },
];

const JOBS: readonly Column<Job>[] = [
  { name: "job", by: ({ job_id }) => job_id },
  { name: "called", by: ({ name }) => name },
  { name: "user", by: ({ user }) => user },
  { name: "nodes", num: true, by: ({ nodes }) => nodes.length, text: () => "" },
  { name: "began", by: ({ start }) => start, cell: ({ start }) => <Moment at={parse(start)} withDay /> },
  { name: "state", by: ({ state, end }) => (end === null ? "goes on" : state) },
];

/** What is in a recording before anything was looked for in it. */
export function RecordingPage({ name }: { readonly name: string }) {
  const loaded = useLoaded(name, async () => {
    const [one, runs] = await Promise.all([ask<RecordingDetail>(path("recordings", name)), all<Run>("runs", { recording: name })]);
    return { one, run: latestOf(runs).get(name) ?? null };
  });
  const [error, setError] = useState<Error | null>(null);
  return (
    <>
      <p class="small">
        <a href={href("library")}>◂ Library</a>
      </p>
      <h1>Recording</h1>
      {error !== null && <Trouble error={error} />}
      <When loaded={loaded}>
        {({ one, run }) => (
          <Days of={one}>
            <section class="panel">
              <Recording one={one} run={run} onRun={() => void start(one.name).catch(setError)} onGone={() => go(href("library"))} alone />
              <dl class="facts">
                {facts(one).map(([what, is]) => (
                  <div key={what}>
                    <dt>{what}</dt>
                    <dd>{is}</dd>
                  </div>
                ))}
              </dl>
              {one.origin === "synthetic" && <p class="small soft">The story is of the whole cluster: in a recording that was made smaller, names and numbers of nodes differ.</p>}
              {typeof one.source["document"] === "string" && <p class="small soft">From: {one.source["document"]}</p>}
            </section>
            <section class="panel" aria-label="Labels">
              <h2>What is known to have been wrong</h2>
              {one.truths.length === 0 ? <p class="soft">Nobody has labelled it: nothing is known of it.</p> : <Table id="labels" rows={faultsFirst(one.truths)} columns={TRUTHS} keyOf={({ id }) => id} />}
            </section>
            {one.jobs.length > 0 && (
              <section class="panel" aria-label="Jobs">
                <h2>Jobs</h2>
                <Table id="jobs" rows={one.jobs} columns={JOBS} keyOf={({ job_id, start }) => `${job_id} ${start}`} />
              </section>
            )}
          </Days>
        )}
      </When>
    </>
  );
}

/** What was wrong before all that only looks as if it were. */
function faultsFirst(truths: readonly Truth[]): readonly Truth[] {
  return [...truths].sort((a, b) => Number(a.distractor) - Number(b.distractor));
}

function facts({ cluster, start, duration_s, streams, origin, size_bytes }: RecordingDetail): readonly (readonly [string, string])[] {
  return [
    ["cluster", cluster.name],
    ["nodes", String(cluster.nodes)],
    ["GPUs", `${cluster.gpus} × ${cluster.gpu_model}`],
    ["from", moment(parse(start), true)],
    ["length", span(duration_s * 1000)],
    ["streams", streams.map(({ kind }) => kind).join(", ")],
    ["origin", origin],
    ["size", quantity(size_bytes, "bytes")],
  ];
}
