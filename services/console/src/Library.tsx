/** The recordings: what happened in them, how long they are, what was found; import by dropping an archive. */
import { useState } from "preact/hooks";
import { all, ask, path, send, useLoaded } from "./api";
import { Import } from "./Import";
import { Operators } from "./Me";
import { LIVE_SPEEDS } from "./playhead";
import { go, href } from "./route";
import { span } from "./time";
import type { RecordingSummary, Replay, Run } from "./types";
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
    if (run.replay === null && Object.keys(run.detectors).length === 0 && (known === undefined || known.created_at < run.created_at)) {
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
  // Asked for by itself: without the real servers there are none, and nothing else waits for them.
  const replays = useLoaded("replays", () => ask<readonly Replay[]>("replays"));
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
      <Operators>
        <Import onDone={shelf.again} />
      </Operators>
      {error !== null && <Trouble error={error} />}
      {replays.data !== null && replays.data.length > 0 && <Replays replays={replays.data} />}
      <When loaded={shelf}>
        {({ recordings, runs }) => {
          const matching = recordings.filter((one) => JSON.stringify([one.name, one.title, one.summary, one.faults, one.cluster]).toLowerCase().includes(wanted.toLowerCase()));
          return (
            <>
              {recordings.length === 0 ? (
                <p>
                  No recordings yet. Drop one above, or make one with <code>hindcast make</code>.
                </p>
              ) : (
                matching.length === 0 && <p>No recording speaks of “{wanted}”.</p>
              )}
              {matching.map((one) => (
                <Recording key={one.name} one={one} run={runs.get(one.name) ?? null} onRun={() => begin(one.name)} onGone={shelf.again} />
              ))}
            </>
          );
        }}
      </When>
    </>
  );
}

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
    <article class="panel" aria-label={one.title}>
      <div class="row spread side">
        <div>
          <h2>{run === null ? one.title : <a href={href("run", [run.id])}>{one.title}</a>}</h2>
          <div class="small soft">
            <span class="mono">{one.name}</span> · {one.cluster.name}, {one.cluster.nodes} nodes, {one.cluster.gpus} × {one.cluster.gpu_model} ·{" "}
            {one.start.slice(0, 10)} · {span(one.duration_s * 1000)} · {bytes(one.size_bytes)} · {one.origin}
          </div>
        </div>
        <div class="row side">
          {run !== null && (
            <a class="small" href={href("run", [run.id])}>
              {run.state === "done" ? `${run.findings} finding(s), ${run.incidents} incident(s)` : run.state}
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

function Replays({ replays }: { readonly replays: readonly Replay[] }) {
  return (
    <section class="panel" aria-label="Live replays">
      <h2>Live replays</h2>
      <ul class="feed">
        {replays.map((one) => (
          <li key={one.name}>
            <a href={href("replay", [one.name])}>{one.name}</a>{" "}
            <span class="soft small">
              {one.recording}, {one.state}, {one.speed === "max" ? "as fast as it goes" : `${one.speed}×`}, at {one.event_time.slice(11, 19)}
            </span>
          </li>
        ))}
      </ul>
    </section>
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
