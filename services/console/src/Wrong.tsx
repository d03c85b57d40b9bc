/** The first page: what is wrong, the worst first, in what is replayed live and in the last run of every recording. */
import { useEffect } from "preact/hooks";
import { all, path, useLoaded } from "./api";
import { Clusters } from "./Clusters";
import { goesOn } from "./follow";
import { latestDone, live, loadRuns } from "./latest";
import { href } from "./route";
import { parse, span } from "./time";
import { worstFirst } from "./incidents";
import { Table, type Column } from "./Table";
import type { Incident, Run } from "./types";
import { known, Moment, Sev, weight, When } from "./ui";

interface Named {
  readonly run: Run;
  readonly incident: Incident;
}

interface Now {
  readonly found: readonly Named[];
  readonly runs: number;
  /** Runs that there are. */
  readonly total: number;
  /** Runs that may still find something. */
  readonly going: number;
}

async function load(): Promise<Now> {
  const known = await loadRuns();
  const now = live(known);
  const runs = [...now, ...latestDone(known)].filter((run) => run.incidents > 0);
  const lists = await Promise.all(runs.map(async (run) => (await all<Incident>(`${path("runs", run.id)}/incidents`)).map((incident) => ({ run, incident }))));
  return { found: lists.flat().sort((a, b) => worstFirst(a.incident, b.incident)), runs: runs.length, total: known.length, going: known.filter(goesOn).length };
}

/** While something goes on, and otherwise: this page hangs on walls. */
const [SOON_MS, LATER_MS] = [5000, 30_000];
const MOST = 100;

const COLUMNS: readonly Column<Named>[] = [
  {
    name: "severity",
    by: ({ incident }) => weight(incident.severity),
    text: ({ incident }) => `${incident.severity} ${incident.state}`,
    cell: ({ incident }) => (
      <>
        <Sev of={incident.severity} />
        <div class="small soft">{incident.state}</div>
      </>
    ),
  },
  {
    name: "incident",
    by: ({ incident }) => incident.title,
    cell: ({ incident }) => <a href={href("incident", [incident.run, incident.id])}>{incident.title}</a>,
  },
  { name: "recording", by: ({ run }) => run.replay ?? run.recording, cell: ({ run, incident }) => <Origin run={run} at={incident.opened_at} /> },
  {
    name: "began",
    by: ({ incident }) => parse(incident.started_at),
    text: ({ incident }) => incident.started_at,
    cell: ({ incident }) => <Moment at={parse(incident.started_at)} withDay />,
  },
  {
    name: "lasted",
    num: true,
    by: ({ incident }) => (incident.closed_at === null ? null : parse(incident.closed_at) - parse(incident.started_at)),
    text: () => "",
    cell: ({ incident }) => (incident.closed_at === null ? "open" : span(parse(incident.closed_at) - parse(incident.started_at))),
  },
  { name: "GPUs", num: true, by: ({ incident }) => incident.impact.gpus, text: () => "" },
  {
    name: "GPU-hours lost",
    num: true,
    by: ({ incident }) => incident.impact.gpu_hours_lost,
    text: () => "",
    cell: ({ incident }) => known(incident.impact.gpu_hours_lost, (it) => it.toFixed(1)),
  },
];

function Origin({ run, at }: { readonly run: Run; readonly at: string }) {
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
    const timer = setTimeout(again, data.going > 0 ? SOON_MS : LATER_MS);
    return () => clearTimeout(timer);
  }, [data, again]);
  return (
    <>
      <h1>What is wrong</h1>
      <Clusters />
      <When loaded={loaded}>
        {({ found, runs, total, going }) =>
          found.length === 0 ? (
            <Nothing total={total} going={going} />
          ) : (
            <section class="panel">
              <Table rows={found} columns={COLUMNS} keyOf={({ incident }) => `${incident.run}/${incident.id}`} most={MOST} />
              <p class="small soft">
                {found.length} incident(s) in {runs} run(s): the last of each recording, and what is replayed live{found.length > MOST && `; the worst ${MOST} are shown`}.
              </p>
            </section>
          )
        }
      </When>
    </>
  );
}

function Nothing({ total, going }: { readonly total: number; readonly going: number }) {
  if (total > 0) {
    return <p>{going === 0 ? "In recordings: no run has found an incident." : `In recordings: nothing so far, ${going} run(s) go on.`}</p>;
  }
  return (
    <section class="panel" aria-label="What to do next">
      <h2>What to do next</h2>
      <ul>
        <li>
          See what is found in an incident that was recorded: open the <a href={href("library")}>library</a>, and run the detectors on one there.
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
