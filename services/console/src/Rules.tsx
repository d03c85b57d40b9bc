/** Alert rules over recordings: what they would have fired, in event time, beside what the detectors found. */
import { useState } from "preact/hooks";
import { ask, path, useLoaded } from "./api";
import { Recordings } from "./Chosen";
import { Lanes } from "./Lanes";
import { Made, One, recordingsOf, several, useStart } from "./Made";
import { Operators } from "./Me";
import { href, useRoute } from "./route";
import { Table, type Column } from "./Table";
import { parse, span } from "./time";
import { words, type AnsweredLabel, type EvaluatedRecording, type Evaluation, type Fared, type FiredAlert, type RecordingSummary, type RuleCount, type RuleFile, type Task } from "./types";
import { Moment, Trouble, When } from "./ui";
import { figure } from "./units";
import { zoomOf } from "./zoom";
import { ZoomBar } from "./ZoomBar";

interface Props {
  readonly id: string | null;
  readonly query: Readonly<Record<string, string>>;
}

export function RulesPage({ id, query }: Props) {
  return id === null ? (
    <>
      <h1>Rules</h1>
      <p class="soft">Which alerts Prometheus' rules would have fired over recordings, in event time, beside what the detectors found. They are loaded nowhere.</p>
      <Operators>
        <Form text={null} chosen={query["recording"] === undefined ? [] : [query["recording"]]} />
      </Operators>
      <Made page="rules" kind="evaluation" subject={subject} />
    </>
  ) : (
    <One id={id} page="rules" name="Rules" title={subject}>
      {(task) => <Result task={task} />}
    </One>
  );
}

function subject(task: Task): string {
  const rules = task.result?.title ?? (task.asked["own"] === true ? "rules that were sent" : "hindcast's own rules");
  return `${rules} over ${several(recordingsOf(task))}`;
}

const EXAMPLE = `groups:
  - name: mine
    rules:
      - alert: GpuHot
        expr: DCGM_FI_DEV_GPU_TEMP > 85
        for: 1m
        labels: {severity: page}`;

interface FormProps {
  /** The rules to begin with; null: those of hindcast. */
  readonly text: string | null;
  readonly chosen: readonly string[];
}

const ALL = "all of hindcast's";

function Form({ text: before, chosen: first }: FormProps) {
  const offered = useLoaded("rules", async () => {
    const [recordings, files] = await Promise.all([ask<readonly RecordingSummary[]>("recordings"), ask<readonly RuleFile[]>("rule-files")]);
    return { recordings, files };
  });
  const [own, setOwn] = useState(before !== null || first.length === 0);
  const [text, setText] = useState(before ?? "");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(first));
  const [interval, setInterval] = useState("15s");
  const { start, error, busy } = useStart("rules");
  const take = (name: string) => {
    const file = offered.data?.files.find((one) => one.name === name);
    setOwn(name !== ALL);
    if (file !== undefined) {
      setText(file.text);
    }
  };
  return (
    <When loaded={offered}>
      {({ recordings, files }) => (
        <form class="panel" onSubmit={(event) => start(event, "evaluations", { recordings: [...chosen], rules: own ? text : null, interval })} aria-label="Evaluate rules">
          <div class="row choices" style="margin:0 0 .6rem">
            <label>
              <span class="soft">Rules </span>
              <select value={own ? "" : ALL} onChange={(event) => take(event.currentTarget.value)}>
                <option value="">mine, below</option>
                <option value={ALL}>{ALL}</option>
                {files.map(({ name }) => (
                  <option key={name} value={name}>
                    hindcast's {name}, to change below
                  </option>
                ))}
              </select>
            </label>
            {own && (
              <label>
                <span class="soft">or a file </span>
                <input type="file" accept=".yaml,.yml" onChange={({ currentTarget }) => void currentTarget.files?.[0]?.text().then(setText)} />
              </label>
            )}
            <label>
              <span class="soft">evaluated every </span>
              <input size={5} required pattern="[1-9][0-9]{0,4}[smh]" value={interval} onInput={(event) => setInterval(event.currentTarget.value)} />
            </label>
          </div>
          {own && <textarea class="code" aria-label="Rules as YAML" required spellcheck={false} rows={12} value={text} placeholder={EXAMPLE} onInput={(event) => setText(event.currentTarget.value)} />}
          <Recordings title="Over these recordings" offered={recordings} chosen={chosen} set={setChosen} />
          <div class="row">
            <button type="submit" class="main" disabled={busy || chosen.size === 0}>
              See what they fire
            </button>
            {chosen.size === 0 && <span class="small soft">First choose a recording.</span>}
          </div>
          {error !== null && <Trouble error={error} />}
        </form>
      )}
    </When>
  );
}

function Result({ task }: { readonly task: Task }) {
  const loaded = useLoaded(task.id, () => ask<Evaluation>(path("evaluations", task.id)));
  return (
    <When loaded={loaded}>
      {(found) => (
        <>
          {found.recordings.map((one) => (
            <OfRecording key={one.name} of={one} />
          ))}
          <section class="panel" aria-label="By rule">
            <h2>By rule</h2>
            <Table id="rules" rows={byFired(found.counts)} columns={COUNTS} keyOf={(one) => one.name} />
          </section>
          <Operators>
            <details>
              <summary>Change the rules and try again</summary>
              <Form text={found.rules} chosen={recordingsOf(task)} />
            </details>
          </Operators>
        </>
      )}
    </When>
  );
}

function byFired(counts: readonly RuleCount[]): readonly RuleCount[] {
  return [...counts].sort((a, b) => Number(b.fired > 0) - Number(a.fired > 0));
}

const COUNTS: readonly Column<RuleCount>[] = [
  { name: "rule", by: (one) => one.name },
  { name: "fired", num: true, by: (one) => one.fired, cell: (one) => (one.fired === 0 ? <span class="soft">silent</span> : one.fired) },
  { name: "right", num: true, by: (one) => one.hits },
  { name: "late", num: true, by: (one) => one.late },
  { name: "again", num: true, by: (one) => one.repeats },
  { name: "false", num: true, by: (one) => one.false_alarms, cell: (one) => (one.false_alarms === 0 ? 0 : <span class="sev warn">● {one.false_alarms}</span>) },
];

function OfRecording({ of }: { readonly of: EvaluatedRecording }) {
  const [from, to] = [parse(of.start), parse(of.end)];
  const columns = alertColumns(of, to - from > 86_400_000);
  const zoom = zoomOf(useRoute(), from, to, (from + to) / 2);
  return (
    <section class="panel" aria-label={of.name}>
      <div class="row spread">
        <h2>{of.name}</h2>
        {of.run !== null && (
          <a class="small" href={href("run", [of.run])}>
            The detectors' run
          </a>
        )}
      </div>
      <p class="small">
        Rules: {fared(of.rules)}. Detectors: {fared(of.detectors)}.{!of.labelled && " Nobody has labelled it, so that what is right is not known."}
      </p>
      {Object.entries(of.failures).map(([rule, why]) => (
        <p key={rule} class="sev page">
          {rule} has failed: {why}
        </p>
      ))}
      <ZoomBar zoom={zoom} />
      <Lanes zoom={zoom} alerts={of.alerts} labels={of.labels.map((one) => one.label)} />
      {of.labels.length > 0 && <Table id={`labels-${of.name}`} rows={of.labels} columns={LABELS} keyOf={({ label }) => label.id} />}
      <h3>In event time</h3>
      {of.alerts.length === 0 ? <p class="soft">Neither a rule nor a detector fired.</p> : <Table id={`alerts-${of.name}`} rows={of.alerts} columns={columns} keyOf={(one) => `${one.by} ${one.name} ${one.at} ${JSON.stringify([one.entity, one.labels])}`} most={500} />}
      {of.unlisted > 0 && <p class="small soft">{of.unlisted} more are counted, and not listed.</p>}
      <p class="small soft">
        {figure(of.samples)} samples of {figure(of.series)} series were read by the rules.
      </p>
    </section>
  );
}

function fared(of: Fared): string {
  const judged = of.caught === null ? "" : `: ${of.caught} caught, ${of.missed} missed, ${of.false_alarms} false, ${of.repeats} again or late`;
  return `${of.fired} alert(s)${judged}`;
}

function answer(of: AnsweredLabel["rules"]) {
  return of === null ? (
    <span class="sev page">✕ missed</span>
  ) : (
    <>
      <span class={of.late ? "sev warn" : "sev good"}>
        {of.late ? "● late, after" : "✓ after"} {span(of.delay_s * 1000)}
      </span>{" "}
      {of.name} <span class="soft small">{words(of.entity)}</span>
    </>
  );
}

const LABELS: readonly Column<AnsweredLabel>[] = [
  {
    name: "what was wrong",
    by: ({ label }) => label.fault,
    cell: ({ label }) => (
      <>
        {label.fault} <span class="soft small">{words(label.entity)}, due within {span(label.within_s * 1000)}</span>
      </>
    ),
  },
  { name: "rules", by: ({ rules }) => rules?.delay_s ?? null, cell: ({ rules }) => answer(rules) },
  { name: "detectors", by: ({ detectors }) => detectors?.delay_s ?? null, cell: ({ detectors }) => answer(detectors) },
];

const VERDICTS = { hit: ["good", "✓ right"], late: ["warn", "● late"], repeat: ["", "again"], false: ["page", "✕ false"] } as const;

function alertColumns(of: EvaluatedRecording, withDay: boolean): readonly Column<FiredAlert>[] {
  return [
    {
      name: "at",
      by: (one) => parse(one.at),
      text: (one) => one.at,
      cell: (one) => {
        const time = <Moment at={parse(one.at)} withDay={withDay} />;
        return of.run === null ? time : <a href={href("run", [of.run], { t: one.at })}>{time}</a>;
      },
    },
    { name: "by", by: (one) => (one.by === "rules" ? "rule" : "detector") },
    { name: "alert", by: (one) => one.name, cell: (one) => <strong>{one.name}</strong> },
    { name: "severity", by: (one) => one.severity },
    { name: "where", by: (one) => words(one.entity), cell: (one) => (Object.keys(one.entity).length === 0 ? <span class="soft">names no part of the cluster</span> : words(one.entity)) },
    { name: "lasted", num: true, by: (one) => (one.resolved_at === null ? null : parse(one.resolved_at) - parse(one.at)), text: () => "", cell: (one) => (one.resolved_at === null ? "to the end" : span(parse(one.resolved_at) - parse(one.at))) },
    {
      name: "judged",
      by: (one) => one.verdict,
      cell: ({ verdict }) => {
        const [colour, shown] = verdict === null ? ["", "–"] : VERDICTS[verdict];
        return colour === "" ? <span class="soft">{shown}</span> : <span class={`sev ${colour}`}>{shown}</span>;
      },
    },
    { name: "what it says", by: (one) => one.summary, cell: (one) => <span class="small">{one.summary}</span> },
  ];
}
