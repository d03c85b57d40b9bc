/** Beside the deck: the incidents and findings there are by now, and how the run stands against the labels. */
import { ask, path, useLoaded } from "./api";
import { href } from "./route";
import { parse, span } from "./time";
import { words, type Coverage, type Finding, type Incident, type Timeline } from "./types";
import { Moment, seconds, Sev, When } from "./ui";

export function Incidents({ incidents, at, run }: { readonly incidents: readonly Incident[]; readonly at: number; readonly run: string }) {
  const opened = incidents.filter((one) => parse(one.opened_at) <= at);
  return (
    <section class="panel" aria-label="Incidents">
      <h2>
        Incidents <span class="soft">{opened.length === incidents.length ? opened.length : `${opened.length} of ${incidents.length} by now`}</span>
      </h2>
      {opened.length === 0 && <p class="soft">None by this moment.</p>}
      <ul class="feed">
        {opened.toReversed().map((one) => (
          <li key={one.id}>
            <Sev of={one.severity} /> <a href={href("incident", [run, one.id])}>{one.title}</a>
            <div class="small soft">
              <Moment at={parse(one.started_at)} /> {one.closed_at === null || parse(one.closed_at) > at ? "open" : `closed, ${span(parse(one.closed_at) - parse(one.started_at))}`}
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface FeedProps {
  readonly findings: readonly Finding[];
  readonly at: number;
  readonly onSeek: ((at: number) => void) | null;
  readonly onSelect: (node: string, gpu: number) => void;
}

const MOST_SHOWN = 200;

export function Feed({ findings, at, onSeek, onSelect }: FeedProps) {
  const by = findings.filter((one) => parse(one.detected_at) <= at);
  const shown = by.filter((one) => one.severity !== "info");
  const odd = by.filter((one) => one.severity === "info");
  const alerting = findings.filter((one) => one.severity !== "info").length;
  const choose = (one: Finding) => {
    onSeek?.(parse(one.detected_at));
    const { node, gpu } = one.entity;
    if (typeof node === "string") {
      onSelect(node, typeof gpu === "number" ? gpu : 0);
    }
  };
  return (
    <section class="panel" aria-label="Findings">
      <h2>
        Findings <span class="soft">{shown.length === alerting ? shown.length : `${shown.length} of ${alerting} by now`}</span>
      </h2>
      {shown.length === 0 && <p class="soft">Nothing found by this moment.</p>}
      <ul class="feed" aria-live="polite">
        {shown
          .toReversed()
          .slice(0, MOST_SHOWN)
          .map((one) => (
            <Entry key={one.id} one={one} at={at} onChoose={choose} />
          ))}
      </ul>
      {shown.length > MOST_SHOWN && <p class="small soft">The {MOST_SHOWN} latest are shown.</p>}
      {odd.length > 0 && (
        <details>
          <summary class="soft">
            Also seen, alerts nobody: {odd.length}
          </summary>
          <ul class="feed">
            {odd
              .toReversed()
              .slice(0, MOST_SHOWN)
              .map((one) => (
                <Entry key={one.id} one={one} at={at} onChoose={choose} />
              ))}
          </ul>
        </details>
      )}
    </section>
  );
}

interface EntryProps {
  readonly one: Finding;
  readonly at: number;
  readonly onChoose: (one: Finding) => void;
}

function Entry({ one, at, onChoose }: EntryProps) {
  return (
    <li>
      <button type="button" class="link" onClick={() => onChoose(one)}>
        <Sev of={one.severity} /> <strong>{one.fault}</strong> {words(one.entity)} {one.shadow && <span class="tag">shadow</span>}
        <div class="small">{one.summary}</div>
        <div class="small soft">
          <Moment at={parse(one.detected_at)} /> · {one.detector}
          {one.resolved_at !== null && parse(one.resolved_at) <= at && ` · over after ${span(parse(one.resolved_at) - parse(one.detected_at))}`}
          {one.delay_s !== null && ` · ${seconds(one.delay_s)} after onset`}
          {one.verdict !== null && ` · ${one.verdict === "false" ? "false alarm" : one.verdict}`}
        </div>
      </button>
    </li>
  );
}

/** What the telemetry of a run does not show, or only late: no news of it is no good news. */
export function Unjudged({ run, recording }: { readonly run: string; readonly recording: string }) {
  const { data } = useLoaded(run, () => ask<Coverage>(path("runs", run, "coverage")));
  return data === null || data.closing.length === 0 ? null : (
    <section class="panel" aria-label="Not judged">
      <h2>What could not be judged</h2>
      {data.closing.map((line) => (
        <p key={line} class="small">
          {line}
        </p>
      ))}
      <a class="small" href={href("coverage", [recording])}>
        What would show more
      </a>
    </section>
  );
}

export function ScoreOf({ run }: { readonly run: string }) {
  const timeline = useLoaded(run, () => ask<Timeline>(`${path("runs", run)}/timeline`));
  return (
    <section class="panel" aria-label="Score">
      <h2>Against the labels</h2>
      <When loaded={timeline}>
        {({ score }) =>
          score === null ? (
            <p class="soft">This recording has no labels.</p>
          ) : (
            <>
              <p>
                {score.hits} of {score.labels} found, {score.misses} missed, {score.false_alarms} false alarm(s); half of them within {seconds(score.delay_p50_s)}.
              </p>
              {score.missed.map((one) => (
                <div key={one.id} class="small">
                  <span class="sev page">missed</span> {one.fault}, {words(one.entity)}, <Moment at={parse(one.onset)} />
                </div>
              ))}
            </>
          )
        }
      </When>
    </section>
  );
}
