/** A history against its tickets: what would have been caught, missed and raised for nothing, and at what cost. */
import type { ComponentChildren } from "preact";
import { ask, path, useLoaded } from "./api";
import { apart } from "./backtestRequest";
import { BacktestForm } from "./BacktestForm";
import { Matches } from "./BacktestMatches";
import { Made, One, recordingsOf, several } from "./Made";
import { Operators } from "./Me";
import { Report } from "./Report";
import { parse, span } from "./time";
import type { Backtest, Subject, Task } from "./types";
import { Moment, When } from "./ui";

interface Props {
  readonly id: string | null;
  readonly query: Readonly<Record<string, string>>;
}

export function BacktestPage({ id, query }: Props) {
  return id === null ? (
    <>
      <h1>Backtest</h1>
      <p class="soft">Would we have caught it? What detectors and alert rules would have raised over a history, held against its tickets.</p>
      <Operators>
        <BacktestForm recording={query["recording"]} />
      </Operators>
      <Made page="backtest" kind="backtest" subject={subject} />
    </>
  ) : (
    <One id={id} page="backtest" name="Backtests" title={subject}>
      {(task) => <Result key={task.id} task={task} />}
    </One>
  );
}

function subject(task: Task): string {
  const { asked } = task;
  const server = asked["of"] as { readonly source: string; readonly from: string; readonly to: string } | null;
  const history = server === null ? several(recordingsOf(task)) : `${server.source}, ${server.from} to ${server.to}`;
  const named = (names: unknown) => (Array.isArray(names) ? names.map(String) : []);
  const [configurations, rules] = [named(asked["configurations"]), named(asked["rules"])];
  const who = [...(configurations.length === 0 ? ["defaults"] : configurations), ...rules];
  const truth = asked["tickets"] === true ? "against tickets" : server === null ? "against labels" : "without tickets";
  const corrected = Object.keys(asked["corrections"] as Readonly<Record<string, string>>).length;
  return [`${history} ${truth}`, ...(who.length === 1 ? [] : [who.join(", ")]), ...(corrected === 0 ? [] : [`${corrected} corrected`])].join(": ");
}

function Result({ task }: { readonly task: Task }) {
  const loaded = useLoaded(task.id, () => ask<Backtest>(path("backtests", task.id)));
  return (
    <When loaded={loaded}>
      {(found) => (
        <>
          <p>
            <Moment at={parse(found.from)} withDay /> to <Moment at={parse(found.to)} withDay />: {span(found.weeks * WEEK_MS)}, {amount(found.node_days)} node-days.
          </p>
          <Figures of={found} />
          <Matches task={task} of={found} />
          <Report url={path("backtests", task.id, "report")} forms={FORMS} name={`backtest-${task.id}`} title="Backtest">
            <span class="soft small">The report has more: who is alerted how often, what draining nodes would have saved, which machines came back, each false alarm.</span>
          </Report>
        </>
      )}
    </When>
  );
}

const WEEK_MS = 604_800_000;
const FORMS = [
  ["html", "HTML", "html"],
  ["json", "all figures", "json"],
  ["csv", "the matches", "csv"],
] as const;

function amount(value: number): string {
  return value === 0 ? "0" : value < 10 ? value.toPrecision(2) : value.toFixed(0);
}

/** GPU-hours; where no trouble's cost is known, unknown is not nothing. */
function cost({ caught, missed, gpu_hours: { of_unknown_cost: unknown } }: Subject, hours: number): ComponentChildren {
  return unknown > 0 && unknown >= caught + missed ? UNKNOWN : amount(hours);
}

const UNKNOWN = <span class="soft">unknown</span>;

type Figure = readonly [what: string, of: (one: Subject) => ComponentChildren];

/** The figures of each, side by side. */
function Figures({ of }: { readonly of: Backtest }) {
  const judged: readonly Figure[] = [
    ["to be caught", ({ caught, missed }) => caught + missed],
    ["caught", ({ caught }) => (caught > 0 ? <span class="sev good">✓ {caught}</span> : 0)],
    ...(of.truth === "tickets" ? [["… before the ticket", (subject) => subject.before_the_ticket] satisfies Figure] : []),
    [`… the middle one against its ${of.truth === "tickets" ? "ticket" : "onset"}`, ({ against_ticket_p50_s: s }) => (s === null ? "–" : apart(s))],
    ["missed", ({ missed }) => (missed > 0 ? <span class="sev page">✕ {missed}</span> : 0)],
    ["false alarms", (subject) => (subject.false > 0 ? <span class="sev warn">● {subject.false}</span> : 0)],
  ];
  const sent: readonly Figure[] = (["page", "ticket"] as const).map((kind) => [`${kind}s a week`, (subject) => amount(subject.sent_a_week["all"]?.[kind] ?? 0)]);
  const hours: readonly Figure[] = [
    ["GPU-hours lost", (subject) => cost(subject, subject.gpu_hours.lost)],
    ["… saved by acting on each alert", (subject) => cost(subject, subject.gpu_hours.saved)],
  ];
  const known = (figures: readonly Figure[]): readonly Figure[] => figures.map(([what, figure]) => [what, (subject) => (subject.known ? figure(subject) : UNKNOWN)]);
  return (
    <section class="panel" aria-label="Would we have caught it?">
      <h2>Would we have caught it?</h2>
      <div class="scroll">
        <table style="width:auto">
          <thead>
            <tr>
              <th>{of.truth}</th>
              {of.subjects.map(({ name }) => (
                <th key={name} class="num">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {[...known(judged), ...sent, ...known(hours)].map(([what, figure]) => (
              <tr key={what}>
                <th scope="row" style="min-width:8.5rem">
                  {what}
                </th>
                {of.subjects.map((subject) => (
                  <td key={subject.name} class="num">
                    {figure(subject)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {notes(of).map((note) => (
        <p key={note} class="small soft">
          {note}
        </p>
      ))}
    </section>
  );
}

/** What is not in the figures, and why. */
function notes(of: Backtest): readonly string[] {
  const counted = (what: (one: Subject) => number): string => {
    const [first = 0, ...others] = of.subjects.map(what);
    if (others.every((count) => count === first)) {
      return first === 0 ? "" : String(first);
    }
    return of.subjects.map((one) => `${what(one)} (${one.name})`).join(", ");
  };
  const leftOut: readonly (readonly [what: string, counts: string, words: string])[] = [
    ["Opened at a time that this history does not have", of.tickets_of_other_times === 0 ? "" : String(of.tickets_of_other_times), "They are left out; a wrong year or zone is a reason."],
    ["Unclear", counted((one) => one.unclear), "The words name no fault, and nothing was raised at the place. Neither caught nor missed."],
    ["Outside", counted((one) => one.outside), "No machine of the cluster is named, or it was set apart by hand. Neither caught nor missed."],
    ["Caught by time and host alone", counted((one) => one.by_time_and_host_alone), "Look at them below, and correct those that are wrong."],
    ["Of unknown cost", counted((one) => one.gpu_hours.of_unknown_cost), "Not among the GPU-hours."],
    ["Alerts of rules that are informative or name no machine", counted((one) => one.alerts_apart), "They are left out."],
  ];
  return [
    ...(of.subjects.every((one) => one.known) ? [] : ["What really happened is not known: give tickets, or label the recordings."]),
    ...(of.weeks < 1 ? ["The history is shorter than a week: what it says of a week is counted up from little."] : []),
    ...leftOut.filter(([, counts]) => counts !== "").map(([what, counts, words]) => `${what}: ${counts}. ${words}`),
  ];
}
