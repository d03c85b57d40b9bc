/** How good the detectors are: the last run of every labelled recording against its labels. */
import { ask, path, useLoaded } from "./api";
import { loadLatest } from "./latest";
import { href } from "./route";
import type { Run, Score, Timeline } from "./types";
import { percent, seconds, When } from "./ui";

interface Scored {
  readonly run: Run;
  readonly score: Score;
}

async function load(): Promise<readonly Scored[]> {
  const runs = await loadLatest();
  const found = await Promise.all(runs.map(async (run) => ({ run, score: (await ask<Timeline>(`${path("runs", run.id)}/timeline`)).score })));
  return found.filter((one): one is Scored => one.score !== null);
}

export interface Total {
  readonly labels: number;
  readonly hits: number;
  readonly misses: number;
  readonly false_alarms: number;
}

export function total(scores: readonly Total[]): Total {
  const sum = (name: keyof Total) => scores.reduce((before, one) => before + one[name], 0);
  return { labels: sum("labels"), hits: sum("hits"), misses: sum("misses"), false_alarms: sum("false_alarms") };
}

export function ScorePage() {
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
            <Table scored={scored} />
          )
        }
      </When>
    </>
  );
}

function Table({ scored }: { readonly scored: readonly Scored[] }) {
  const all = total(scored.map((one) => one.score));
  return (
    <section class="panel scroll">
      <table>
        <thead>
          <tr>
            <th>recording</th>
            <th class="num">labelled</th>
            <th class="num">found</th>
            <th class="num">missed</th>
            <th class="num">late</th>
            <th class="num">false</th>
            <th class="num">precision</th>
            <th class="num">recall</th>
            <th class="num">half within</th>
            <th class="num">95 % within</th>
          </tr>
        </thead>
        <tbody>
          {scored.map(({ run, score }) => (
            <tr key={run.id}>
              <td>
                <a href={href("run", [run.id])}>{run.recording}</a>
              </td>
              <td class="num">{score.labels}</td>
              <td class="num">{score.hits}</td>
              <td class="num">{score.misses > 0 ? <span class="sev page">✕ {score.misses}</span> : 0}</td>
              <td class="num">{score.late}</td>
              <td class="num">{score.false_alarms > 0 ? <span class="sev warn">● {score.false_alarms}</span> : 0}</td>
              <td class="num">{percent(score.precision)}</td>
              <td class="num">{percent(score.recall)}</td>
              <td class="num">{seconds(score.delay_p50_s)}</td>
              <td class="num">{seconds(score.delay_p95_s)}</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th>all</th>
            <td class="num">{all.labels}</td>
            <td class="num">{all.hits}</td>
            <td class="num">{all.misses}</td>
            <td class="num" />
            <td class="num">{all.false_alarms}</td>
            <td class="num" colSpan={4} />
          </tr>
        </tfoot>
      </table>
    </section>
  );
}
