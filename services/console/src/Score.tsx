/** How good the detectors are: the last run of every labelled recording, and scores of the whole library. */
import { all, ask, path, useLoaded } from "./api";
import { precisionOverRecall, shareWithin } from "./curves";
import { loadRuns } from "./follow";
import { latestDone } from "./latest";
import { Made, One, recordingsOf, useStart } from "./Made";
import { Operators } from "./Me";
import { Plot } from "./Plot";
import { href } from "./route";
import { Table, type Column } from "./Table";
import type { Figures, Finding, LibraryScore, Run, Score, Timeline } from "./types";
import { Trouble, When } from "./ui";
import { percent, seconds } from "./units";

interface Scored {
  readonly run: Run;
  readonly score: Score;
  readonly delays: readonly number[];
}

async function load(): Promise<readonly Scored[]> {
  const runs = latestDone(await loadRuns());
  const found = await Promise.all(
    runs.map(async (run) => {
      const url = path("runs", run.id);
      const [{ score }, hits] = await Promise.all([ask<Timeline>(`${url}/timeline`), all<Finding>(`${url}/findings`, { verdict: "hit" })]);
      return score === null ? [] : [{ run, score, delays: hits.flatMap((one) => (one.delay_s === null ? [] : [one.delay_s])) }];
    }),
  );
  return found.flat();
}

export function ScorePage({ id }: { readonly id: string | null }) {
  return id === null ? <Overview /> : <OfLibrary key={id} id={id} />;
}

function Overview() {
  const loaded = useLoaded("score", load);
  return (
    <>
      <h1>Score</h1>
      <p class="soft">The last run of each recording with the detectors as they come, against the recording's labels.</p>
      <When loaded={loaded}>
        {(scored) =>
          scored.length === 0 ? (
            <p>
              No labelled recording has been run yet. Replay one from the <a href={href("library")}>library</a>.
            </p>
          ) : (
            <>
              <Runs scored={scored} />
              <Delays delays={scored.flatMap((one) => one.delays)} />
            </>
          )
        }
      </When>
      <Scores />
      <Made page="score" kind="score" subject={(task) => `${recordingsOf(task).length} recording(s)`} />
    </>
  );
}

type Fared = Pick<Figures, "labels" | "hits" | "misses" | "late" | "false_alarms" | "precision" | "recall" | "delay_p50_s" | "delay_p95_s">;

interface Counted {
  readonly name: string;
  readonly by: (of: Fared) => number | null;
  readonly show?: (value: number | null) => string;
  /** How it is shown where it is more than nothing. */
  readonly bad?: readonly [mark: string, colour: string];
}

const COUNTED: readonly Counted[] = [
  { name: "labelled", by: (of) => of.labels },
  { name: "found", by: (of) => of.hits },
  { name: "missed", by: (of) => of.misses, bad: ["✕", "page"] },
  { name: "late", by: (of) => of.late },
  { name: "false", by: (of) => of.false_alarms, bad: ["●", "warn"] },
  { name: "precision", by: (of) => of.precision, show: percent },
  { name: "recall", by: (of) => of.recall, show: percent },
  { name: "median delay", by: (of) => of.delay_p50_s, show: seconds },
  { name: "p95 delay", by: (of) => of.delay_p95_s, show: seconds },
];

/** The columns of figures, of rows that have them somewhere. */
function figuresOf<Row>(fared: (row: Row) => Fared): readonly Column<Row>[] {
  return COUNTED.map(({ name, by, show, bad }) => ({
    name,
    num: true,
    by: (row) => by(fared(row)),
    text: () => "",
    cell: (row) => {
      const value = by(fared(row));
      const shown = show === undefined ? value : show(value);
      return bad !== undefined && value !== 0 ? (
        <span class={`sev ${bad[1]}`}>
          {bad[0]} {shown}
        </span>
      ) : (
        shown
      );
    },
  }));
}

const OF_RUNS: readonly Column<Scored>[] = [
  { name: "recording", by: ({ run }) => run.recording, cell: ({ run }) => <a href={href("run", [run.id])}>{run.recording}</a> },
  ...figuresOf<Scored>(({ score }) => score),
];

function Runs({ scored }: { readonly scored: readonly Scored[] }) {
  return (
    <section class="panel" aria-label="Runs">
      <Table id="runs" rows={scored} columns={OF_RUNS} keyOf={({ run }) => run.id} />
    </section>
  );
}

const DECADES = [
  [-1, "0.1 s"],
  [0, "1 s"],
  [1, "10 s"],
  [2, "100 s"],
  [3, "17 min"],
  [4, "2.8 h"],
] as const;

function Delays({ delays }: { readonly delays: readonly number[] }) {
  return delays.length === 0 ? null : (
    <section class="panel" aria-label="Delays" style="max-width:46rem">
      <Plot title="How soon faults were found" points={shareWithin(delays)} x="seconds from the fault's onset to the finding" y="part of the faults found" from={-1} to={4} ticks={DECADES} steps />
    </section>
  );
}

/** Scores of the whole library: asked for here, made in the background. */
function Scores() {
  const { start, error, busy } = useStart("score");
  return (
    <section class="panel" aria-label="Scores of the library">
      <div class="row spread">
        <h2>The whole library, by fault, with its curve</h2>
        <Operators>
          <button type="button" disabled={busy} onClick={(event) => start(event, "scores", {})}>
            Score the library
          </button>
        </Operators>
      </div>
      {error !== null && <Trouble error={error} />}
      <p class="small soft">It runs every recording, which takes a while.</p>
    </section>
  );
}

function OfLibrary({ id }: { readonly id: string }) {
  return (
    <One id={id} page="score" name="Score" title={() => "Score of the library"}>
      {() => <Outcome id={id} />}
    </One>
  );
}

function Outcome({ id }: { readonly id: string }) {
  const loaded = useLoaded(id, () => ask<LibraryScore>(path("scores", id)));
  return (
    <When loaded={loaded}>
      {(score) => (
        <>
          <p>
            {score.recordings.length} recording(s), {score.node_days.toFixed(1)} node-days
            {score.false_alarms_per_100_node_days !== null && `; ${score.false_alarms_per_100_node_days.toFixed(2)} false alarms per 100 node-days`}
            {score.false_alarms_per_100_node_days_upper_95 !== null && ` (at most ${score.false_alarms_per_100_node_days_upper_95.toFixed(2)} with 95 % confidence)`}.
          </p>
          <section class="panel" aria-label="Curve" style="max-width:46rem">
            <Plot title="Precision against recall, by the least score that counts" points={precisionOverRecall(score.curve)} x="recall" y="precision" from={0} to={1} ticks={SHARES} steps={false} />
          </section>
          <By of="fault" figures={score.faults} />
          <By of="control" figures={score.controls} />
          <section class="panel" aria-label="What went wrong">
            <h2>What went wrong</h2>
            {score.recordings.every((one) => one.missed.length + one.false.length === 0) && <p>Nothing: every label was found, and nothing else.</p>}
            <ul class="feed">
              {score.recordings.flatMap((one) => [
                ...one.missed.map((label) => (
                  <li key={`${one.name} ${label.id}`}>
                    <span class="sev page">✕ missed</span> {label.fault} <span class="soft small">{one.name}</span>
                  </li>
                )),
                ...one.false.map((alarm, number) => (
                  <li key={`${one.name} false ${number}`}>
                    <span class="sev warn">● false alarm</span> {alarm.fault} <span class="soft small">{one.name}</span>
                    <div class="small">{alarm.summary}</div>
                  </li>
                )),
              ])}
            </ul>
          </section>
        </>
      )}
    </When>
  );
}

const SHARES = [
  [0, "0"],
  [0.25, "0.25"],
  [0.5, "0.5"],
  [0.75, "0.75"],
  [1, "1"],
] as const;

/** The sum first, then by name. */
function By({ of, figures }: { readonly of: string; readonly figures: Readonly<Record<string, Figures>> }) {
  const rows = Object.entries(figures).sort(([a], [b]) => Number(b === "all") - Number(a === "all") || a.localeCompare(b));
  const columns: readonly Column<readonly [string, Figures]>[] = [{ name: of, by: ([name]) => name, cell: ([name]) => <strong>{name}</strong> }, ...figuresOf<readonly [string, Figures]>(([, one]) => one)];
  return rows.length === 0 ? null : (
    <section class="panel" aria-label={`By ${of}`}>
      <Table id={of} rows={rows} columns={columns} keyOf={([name]) => name} />
    </section>
  );
}
