/** The first page: what is wrong, the worst first, over the last run of every recording. */
import { all, path, useLoaded } from "./api";
import { loadLatest } from "./latest";
import { href } from "./route";
import { parse, span } from "./time";
import { worstFirst } from "./incidents";
import type { Incident } from "./types";
import { Moment, Sev, When } from "./ui";

interface Named {
  readonly recording: string;
  readonly incident: Incident;
}

async function load(): Promise<{ found: readonly Named[]; runs: number }> {
  const runs = (await loadLatest()).filter((run) => run.incidents > 0);
  const lists = await Promise.all(
    runs.map(async (run) => (await all<Incident>(`${path("runs", run.id)}/incidents`)).map((incident) => ({ recording: run.recording, incident }))),
  );
  return { found: lists.flat().sort((a, b) => worstFirst(a.incident, b.incident)), runs: runs.length };
}

const MOST = 100;

export function Wrong() {
  const loaded = useLoaded("wrong", load);
  return (
    <>
      <h1>What is wrong</h1>
      <When loaded={loaded}>
        {({ found, runs }) =>
          found.length === 0 ? (
            <p>
              Nothing: no run has found an incident. Replay a recording from the <a href={href("library")}>library</a>.
            </p>
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
                  {found.slice(0, MOST).map(({ recording, incident }) => (
                    <tr key={`${incident.run}/${incident.id}`}>
                      <td>
                        <Sev of={incident.severity} />
                        <div class="small soft">{incident.state}</div>
                      </td>
                      <td>
                        <a href={href("incident", [incident.run, incident.id])}>{incident.title}</a>
                      </td>
                      <td>
                        <a href={href("run", [incident.run], { t: incident.opened_at })}>{recording}</a>
                      </td>
                      <td>
                        <Moment at={parse(incident.started_at)} withDay />
                      </td>
                      <td class="num">{incident.closed_at === null ? "open" : span(parse(incident.closed_at) - parse(incident.started_at))}</td>
                      <td class="num">{incident.impact.gpus}</td>
                      <td class="num">{incident.impact.gpu_hours_lost.toFixed(1)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
              <p class="small soft">
                {found.length} incident(s) in the last run of {runs} recording(s){found.length > MOST && `; the worst ${MOST} are shown`}.
              </p>
            </section>
          )
        }
      </When>
    </>
  );
}
