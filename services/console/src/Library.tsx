/** The recordings: what happened in them, how long they are, what was found; import by dropping an archive. */
import { useState } from "preact/hooks";
import { all, ask, useLoaded } from "./api";
import { Import } from "./Import";
import { Operators } from "./Me";
import { shown } from "./changes";
import { latestOf } from "./latest";
import { Recording, start } from "./Recording";
import { href, useRoute } from "./route";
import { Samples } from "./Samples";
import { Table, type Column } from "./Table";
import { parse, span } from "./time";
import type { RecordingSummary, Replay, Run } from "./types";
import { Faults, Moment, Trouble, When } from "./ui";
import { quantity } from "./units";

interface Shelf {
  readonly recordings: readonly RecordingSummary[];
  readonly latest: ReadonlyMap<string, Run>;
  readonly runs: readonly Run[];
}

async function load(): Promise<Shelf> {
  const [recordings, runs] = await Promise.all([ask<readonly RecordingSummary[]>("recordings"), all<Run>("runs")]);
  return { recordings, latest: latestOf(runs), runs };
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
        {({ recordings, latest, runs }) => (
          <>
            <Samples there={new Set(recordings.map(({ name }) => name))} onMade={shelf.again} onRun={begin} />
            {recordings.length === 0 ? (
              <p>No recordings yet: make a sample above, or drop what you have.</p>
            ) : (
              <section class="panel" aria-label="Recordings">
                <Table id="recordings" rows={recordings} columns={recordingColumns(latest, begin, shelf.again)} keyOf={({ name }) => name} />
              </section>
            )}
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
        )}
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
          {cluster.name}{" "}
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
      cell: ({ faults }) => <Faults of={faults} none="none labelled" />,
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
