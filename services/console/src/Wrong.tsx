/** The first page: what is wrong, the worst first, in what is replayed live and in the last run of every recording. */
import { useEffect } from "preact/hooks";
import { all, path, useLoaded } from "./api";
import { Clusters } from "./Clusters";
import { goesOn } from "./follow";
import { latestDone, live, loadRuns } from "./latest";
import { href } from "./route";
import { parse, span } from "./time";
import { worstFirst } from "./incidents";
import type { Incident, Run } from "./types";
import { known, Moment, Sev, When } from "./ui";

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
            <section class="panel scroll">
              <table>
                <thead>
                  <tr>
                    <th>severity</th>
                    <th>incident</th>
                    <th>recording</th>
                    <th>began</th>
                    <th class="num">lasted</th>
                    <th class="num">GPUs</th>
                    <th class="num">GPU-hours lost</th>
                  </tr>
                </thead>
                <tbody>
                  {found.slice(0, MOST).map(({ run, incident }) => (
                    <tr key={`${incident.run}/${incident.id}`}>
                      <td>
                        <Sev of={incident.severity} />
                        <div class="small soft">{incident.state}</div>
                      </td>
                      <td>
                        <a href={href("incident", [incident.run, incident.id])}>{incident.title}</a>
                      </td>
                      <td>
                        {run.replay === null ? (
                          <a href={href("run", [run.id], { t: incident.opened_at })}>{run.recording}</a>
                        ) : (
                          <>
                            <a href={href("replay", [run.replay])}>{run.replay}</a> <span class="tag">live</span>
                          </>
                        )}
                      </td>
                      <td>
                        <Moment at={parse(incident.started_at)} withDay />
                      </td>
                      <td class="num">{incident.closed_at === null ? "open" : span(parse(incident.closed_at) - parse(incident.started_at))}</td>
                      <td class="num">{incident.impact.gpus}</td>
                      <td class="num">{known(incident.impact.gpu_hours_lost, (it) => it.toFixed(1))}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
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
