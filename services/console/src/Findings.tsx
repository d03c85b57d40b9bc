/** Beside the deck: the incidents and findings there are by now, and how the run stands against the labels. */
import { ask, path, useLoaded } from "./api";
import { href } from "./route";
import { Table, type Column } from "./Table";
import { parse, span } from "./time";
import { words, type Coverage, type Finding, type Incident, type Timeline } from "./types";
import { Moment, Sev, weight, When } from "./ui";
import { seconds } from "./units";

/** What is said of each incident, whichever list it is in; `at`: what comes later is not known yet. */
export function incidentColumns(at = Infinity): readonly Column<Incident>[] {
  const over = ({ closed_at }: Incident) => (closed_at === null || parse(closed_at) > at ? null : parse(closed_at));
  return [
    {
      name: "severity",
      by: (one) => weight(one.severity),
      text: (one) => `${one.severity} ${over(one) === null ? "open" : "closed"}`,
      cell: (one) => (
        <>
          <Sev of={one.severity} />
          <div class="small soft">{over(one) === null ? "open" : "closed"}</div>
        </>
      ),
    },
    { name: "incident", by: (one) => one.title, cell: (one) => <a href={href("incident", [one.run, one.id])}>{one.title}</a> },
    { name: "began", by: (one) => parse(one.started_at), text: (one) => one.started_at, cell: (one) => <Moment at={parse(one.started_at)} withDay /> },
    {
      name: "lasted",
      num: true,
      by: (one) => (over(one) ?? Infinity) - parse(one.started_at),
      text: () => "",
      cell: (one) => {
        const end = over(one);
        return end === null ? "open" : span(end - parse(one.started_at));
      },
    },
  ];
}

export function Incidents({ incidents, at }: { readonly incidents: readonly Incident[]; readonly at: number }) {
  const opened = incidents.filter((one) => parse(one.opened_at) <= at);
  return (
    <section class="panel" aria-label="Incidents">
      <h2>
        Incidents <span class="soft">{opened.length === incidents.length ? opened.length : `${opened.length} of ${incidents.length} by now`}</span>
      </h2>
      {opened.length === 0 ? <p class="soft">None by this moment.</p> : <Table id="incidents" rows={opened.toReversed()} columns={incidentColumns(at)} keyOf={({ id }) => id} most={MOST_SHOWN} />}
      <AtMost of={opened} />
    </section>
  );
}

/** Beside each other stand incidents and findings: neither may push the other out of sight. */
const MOST_SHOWN = 50;

function AtMost({ of }: { readonly of: readonly unknown[] }) {
  return of.length > MOST_SHOWN ? <p class="small soft">At most {MOST_SHOWN} are shown: name what you look for above them.</p> : null;
}

interface FeedProps {
  readonly findings: readonly Finding[];
  readonly at: number;
  readonly onSeek: ((at: number) => void) | null;
  readonly onSelect: (node: string, gpu: number) => void;
}

export function Feed({ findings, at, onSeek, onSelect }: FeedProps) {
  const by = findings.filter((one) => parse(one.detected_at) <= at).toReversed();
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
  const columns = findingColumns(at, choose);
  return (
    <section class="panel" aria-label="Findings">
      <h2 aria-live="polite">
        Findings <span class="soft">{shown.length === alerting ? shown.length : `${shown.length} of ${alerting} by now`}</span>
      </h2>
      {shown.length === 0 ? <p class="soft">Nothing found by this moment.</p> : <Table id="findings" rows={shown} columns={columns} keyOf={({ id }) => id} most={MOST_SHOWN} />}
      <AtMost of={shown} />
      {odd.length > 0 && (
        <details>
          <summary class="soft">Also seen, alerts nobody: {odd.length}</summary>
          <Table id="seen" rows={odd} columns={columns} keyOf={({ id }) => id} most={MOST_SHOWN} />
        </details>
      )}
    </section>
  );
}

function findingColumns(at: number, onChoose: (one: Finding) => void): readonly Column<Finding>[] {
  const over = ({ resolved_at }: Finding) => (resolved_at === null || parse(resolved_at) > at ? null : parse(resolved_at));
  return [
    { name: "severity", by: (one) => weight(one.severity), text: (one) => one.severity, cell: (one) => <Sev of={one.severity} /> },
    {
      name: "finding",
      by: (one) => `${one.fault} ${words(one.entity)}`,
      text: (one) => `${one.fault} ${words(one.entity)} ${one.summary} ${one.detector} ${one.shadow ? "shadow" : ""}`,
      cell: (one) => (
        <button type="button" class="link" onClick={() => onChoose(one)}>
          <strong>{one.fault}</strong> {words(one.entity)} {one.shadow && <span class="tag">shadow</span>}
          <div class="small">{one.summary}</div>
        </button>
      ),
    },
    { name: "found", by: (one) => parse(one.detected_at), text: (one) => one.detected_at, cell: (one) => <Moment at={parse(one.detected_at)} /> },
    {
      name: "lasted",
      num: true,
      by: (one) => (over(one) ?? Infinity) - parse(one.detected_at),
      text: () => "",
      cell: (one) => {
        const end = over(one);
        return end === null ? "open" : span(end - parse(one.detected_at));
      },
    },
    { name: "after onset", num: true, by: (one) => one.delay_s, text: () => "", cell: (one) => seconds(one.delay_s) },
    { name: "judged", by: (one) => one.verdict, cell: (one) => (one.verdict === "false" ? "false alarm" : (one.verdict ?? "–")) },
  ];
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
