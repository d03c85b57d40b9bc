/** The first page: what is wrong, the worst first, in what is replayed live and in the last run of every recording. */
import { useEffect } from "preact/hooks";
import { all, ask, path, useLoaded } from "./api";
import { calmIn } from "./calm";
import { Clusters } from "./Clusters";
import { incidentColumns } from "./Findings";
import { goesOn, loadRuns } from "./follow";
import { latestDone, live } from "./latest";
import { href } from "./route";
import { worstFirst } from "./incidents";
import { Table, type Column } from "./Table";
import type { Incident, RecordingSummary, Run } from "./types";
import { When } from "./ui";
import { known } from "./units";

interface Now {
  readonly found: readonly Incident[];
  /** Of which something was found, by id. */
  readonly runs: ReadonlyMap<string, Run>;
  /** Runs that there are. */
  readonly total: number;
  /** Runs that may still find something. */
  readonly going: readonly Run[];
  /** Recordings that a run may be made of. */
  readonly recordings: number;
  /** Whether a live cluster is watched here. */
  readonly watching: boolean;
}

async function load(): Promise<Now> {
  const [known, recordings, watched] = await Promise.all([loadRuns(), ask<readonly RecordingSummary[]>("recordings"), all<Run>("runs", { replay: "live" })]);
  const runs = [...live(known), ...latestDone(known)].filter((run) => run.incidents > 0);
  const lists = await Promise.all(runs.map((run) => all<Incident>(`${path("runs", run.id)}/incidents`)));
  return {
    found: lists.flat().sort(worstFirst),
    runs: new Map(runs.map((run) => [run.id, run])),
    total: known.length,
    going: known.filter(goesOn),
    recordings: recordings.length,
    watching: watched.some(({ state }) => state === "running"),
  };
}

/** While something goes on, and otherwise: this page hangs on walls. */
const [SOON_MS, LATER_MS] = [5000, 30_000];
const MOST = 100;

function columnsOf(runs: Now["runs"]): readonly Column<Incident>[] {
  const run = (one: Incident) => runs.get(one.run);
  const where: Column<Incident> = {
    name: "recording",
    by: (one) => run(one)?.replay ?? run(one)?.recording ?? null,
    cell: (one) => <Origin run={run(one)} at={one.opened_at} />,
  };
  return [
    ...incidentColumns().toSpliced(2, 0, where),
    { name: "GPUs", num: true, by: ({ impact }) => impact.gpus, text: () => "" },
    { name: "GPU-hours lost", num: true, by: ({ impact }) => impact.gpu_hours_lost, text: () => "", cell: ({ impact }) => known(impact.gpu_hours_lost, (it) => it.toFixed(1)) },
  ];
}

function Origin({ run, at }: { readonly run: Run | undefined; readonly at: string }) {
  if (run === undefined) {
    return null;
  }
  return run.replay === null ? (
    <a href={href("run", [run.id], { t: at })}>{run.recording}</a>
  ) : (
    <>
      <a href={href("replay", [run.replay])}>{run.replay}</a> <span class="tag">live</span>
    </>
  );
}

export function Wrong() {
  const loaded = useLoaded("wrong", load);
  const { data, again } = loaded;
  useEffect(() => {
    if (data === null) {
      return undefined;
    }
    const timer = setTimeout(again, data.going.length > 0 ? SOON_MS : LATER_MS);
    return () => clearTimeout(timer);
  }, [data, again]);
  return (
    <>
      <h1>What is wrong</h1>
      <Clusters />
      <When loaded={loaded}>
        {({ found, runs, ...more }) =>
          found.length === 0 ? (
            <Nothing {...more} />
          ) : (
            <section class="panel">
              <Table id="incidents" rows={found} columns={columnsOf(runs)} keyOf={({ run, id }) => `${run}/${id}`} most={MOST} />
              <p class="small soft">
                {found.length} incident(s) in {runs.size} run(s): the last of each recording that is done, and what is replayed live{found.length > MOST && `; at most ${MOST} are shown`}.
              </p>
            </section>
          )
        }
      </When>
    </>
  );
}

function Nothing({ total, going, recordings, watching }: Omit<Now, "found" | "runs">) {
  if (total > 0) {
    return <p>{calmIn(going)}</p>;
  }
  // Whoever watches a cluster has come for what is wrong there.
  if (watching) {
    return null;
  }
  const samples = (
    <>
      make a recording of one of the <a href={href("library", [], { samples: "open" })}>sample incidents</a>, which takes seconds, and replay it
    </>
  );
  return (
    <section class="panel" aria-label="What to do next">
      <h2>What to do next</h2>
      <ul>
        <li>
          See what is found in an incident:{" "}
          {recordings > 0 && (
            <>
              replay one of the <a href={href("library")}>{recordings} recording(s) here</a>, or{" "}
            </>
          )}
          {samples}.
        </li>
        <li>
          Bring what you have: the <a href={href("library")}>library</a> takes archives and what other tools wrote.
        </li>
        <li>
          Watch a cluster, read only: <code>hindcast live --prometheus http://prometheus:9090 --port 8490</code>
        </li>
      </ul>
    </section>
  );
}
