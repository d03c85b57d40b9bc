/** One incident: what it cost, what caused what, the evidence of every layer on one axis of time, and what to do. */
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import type { Shade } from "./Chart";
import { entitiesFor, ordered, windowOf } from "./incidents";
import { useKeys } from "./keys";
import { Markdown } from "./Markdown";
import { go, href, replaceQuery, useRoute } from "./route";
import { Sent } from "./Sent";
import { SignalChart } from "./Signals";
import { layersOf } from "./signals";
import { parse, rfc3339, span } from "./time";
import { words, type Entity, type Finding, type IncidentDetail, type Label, type LogLines, type Mark, type RecordingDetail, type Run } from "./types";
import { Moment, percent, Sev, Trouble, When } from "./ui";

interface Case {
  readonly incident: IncidentDetail;
  readonly run: Run;
  readonly recording: RecordingDetail;
  readonly root: Finding | null;
}

async function load(run: string, id: string): Promise<Case> {
  const [incident, ran] = await Promise.all([ask<IncidentDetail>(path("runs", run, "incidents", id)), ask<Run>(path("runs", run))]);
  const first = incident.causes[0];
  const [recording, root] = await Promise.all([
    ask<RecordingDetail>(path("recordings", ran.recording)),
    first === undefined ? null : ask<Finding>(path("runs", run, "findings", first.finding)),
  ]);
  return { incident, run: ran, recording, root };
}

const AGAIN_MS = 3000;

export function IncidentPage({ run, id }: { readonly run: string; readonly id: string }) {
  const loaded = useLoaded(`${run}/${id}`, () => load(run, id));
  const { data, again } = loaded;
  // An incident of a run that goes on grows, and is alerted and resolved meanwhile.
  const changing = data !== null && (data.run.state === "running" || data.incident.alerts.some((one) => one.state === "firing"));
  useEffect(() => {
    if (!changing) {
      return undefined;
    }
    const timer = setTimeout(again, AGAIN_MS);
    return () => clearTimeout(timer);
  }, [changing, data, again]);
  return <When loaded={loaded}>{(found) => <Shown found={found} />}</When>;
}

function Shown({ found }: { readonly found: Case }) {
  const { incident, run, recording, root } = found;
  const route = useRoute();
  const linked = parse(route.query["t"] ?? "");
  const at = Number.isFinite(linked) ? linked : parse(incident.opened_at);
  const seek = useCallback((to: number) => replaceQuery({ t: rfc3339(Math.round(to)) }), []);
  const [started, opened] = [parse(incident.started_at), parse(incident.opened_at)];
  const closed = incident.closed_at === null ? null : parse(incident.closed_at);
  const view = windowOf(started, closed, parse(recording.start), parse(recording.end));
  const deck = href("run", [run.id], { t: rfc3339(at) });
  const report = href("postmortem", [], { run: run.id, incident: incident.id, title: incident.title });
  const todo = useRef<HTMLElement>(null);
  const toRunbook = () => {
    todo.current?.querySelectorAll("details").forEach((one) => (one.open = true));
    todo.current?.scrollIntoView({ block: "start" });
    todo.current?.focus({ preventScroll: true });
  };
  useKeys({
    d: () => go(deck),
    m: () => go(report),
    r: toRunbook,
    ArrowLeft: () => seek(at - 10_000),
    ArrowRight: () => seek(at + 10_000),
    "Shift+ArrowLeft": () => seek(at - 60_000),
    "Shift+ArrowRight": () => seek(at + 60_000),
  });
  return (
    <>
      <p class="small">
        <a href={deck}>◂ {recording.title}</a>
      </p>
      <h1>
        <Sev of={incident.severity} /> {incident.title}
      </h1>
      <div class="row actions">
        <button type="button" class="main" onClick={toRunbook} title="r">
          What to do, runbook
        </button>
        <a class="button" href={deck} title="d">
          The fleet at this moment
        </a>
        <a class="button" href={report} title="m">
          Make the postmortem
        </a>
        {run.replay !== null && (
          <a class="button" href={href("replay", [run.replay])}>
            Live replay {run.replay}
          </a>
        )}
      </div>
      <dl class="facts">
        <Fact name="began" value={<Moment at={started} withDay />} />
        <Fact name="told" value={`${span(opened - started)} later`} />
        <Fact name={closed === null ? "state" : "lasted"} value={closed === null ? "open" : span(closed - started)} />
        <Fact name="GPUs" value={String(incident.impact.gpus)} />
        <Fact name="nodes" value={String(incident.impact.nodes)} />
        <Fact name="step time" value={`× ${incident.impact.step_time_factor.toFixed(2)}`} />
        <Fact name="GPU-hours lost" value={incident.impact.gpu_hours_lost.toFixed(1)} />
      </dl>
      <div class="split">
        <div style="min-width:0">
          <Evidence recording={recording} incident={incident} root={root} view={view} at={at} onSeek={seek} />
          <Logs recording={recording.name} view={view} about={root?.entity ?? {}} at={at} onSeek={seek} />
        </div>
        <div style="min-width:0">
          <Chain incident={incident} onSeek={seek} />
          {root !== null && (
            <section class="panel" aria-label="What to do" ref={todo} tabIndex={-1}>
              <h2>What to do</h2>
              <p>
                <strong>{root.recommended_action}</strong>
              </p>
              {Object.entries(incident.runbooks).map(([detector, text]) => (
                <details key={detector}>
                  <summary>Runbook of {detector}</summary>
                  <Markdown text={text} />
                </details>
              ))}
            </section>
          )}
          <Impact incident={incident} />
          <Sent alerts={incident.alerts} />
          <Judge run={run.id} incident={incident.id} />
          {root !== null && <Facts of={root} />}
        </div>
      </div>
    </>
  );
}

function Fact({ name, value }: { readonly name: string; readonly value: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Chain({ incident, onSeek }: { readonly incident: IncidentDetail; readonly onSeek: (at: number) => void }) {
  const root = incident.causes[0]?.finding;
  const members = new Map(incident.members.map((one) => [one.id, one]));
  const name = (end: string) => {
    const member = members.get(end);
    return member === undefined ? end.replace(/^seen:/, "").replace(/^job:/, "job ") : `${member.fault}, ${words(member.entity)}`;
  };
  return (
    <section class="panel" aria-label="Root cause">
      <h2>What caused what</h2>
      <ol class="chain">
        {incident.causes.slice(0, 3).map((cause, place) => (
          <li key={cause.finding} class={place === 0 ? "root" : ""}>
            <div class="soft small">{place === 0 ? "root cause" : "or else"}, {percent(cause.score)}</div>
            <button type="button" onClick={() => onSeek(parse(members.get(cause.finding)?.detected_at ?? incident.opened_at))}>
              {cause.fault}, {words(cause.entity)}
            </button>
            <div class="small">{cause.reasons.join("; ")}</div>
          </li>
        ))}
        {ordered(incident.chain).map((link) => (
          <li key={`${link.cause}>${link.effect}`} class={link.effect === root ? "root" : ""}>
            <div>
              {name(link.cause)} <span aria-label="leads to">→</span> <strong>{name(link.effect)}</strong>
            </div>
            <div class="small soft">{link.because}</div>
          </li>
        ))}
      </ol>
      {incident.unlisted > 0 && <p class="small soft">and {incident.unlisted} finding(s) more</p>}
      <h3>Findings</h3>
      <ul class="feed">
        {incident.members.map((one) => (
          <li key={one.id}>
            <button type="button" class="link" onClick={() => onSeek(parse(one.detected_at))}>
              <Sev of={one.severity} /> <Moment at={parse(one.detected_at)} /> {one.fault}, {words(one.entity)}
              <div class="small">{one.summary}</div>
            </button>
          </li>
        ))}
      </ul>
      {incident.offenders.map((one) => (
        <p key={words(one.entity)} class="small">
          <span class="sev warn">repeat offender</span> {words(one.entity)}: root of {one.incidents} incident(s) in the last 28 days
        </p>
      ))}
    </section>
  );
}

function Impact({ incident }: { readonly incident: IncidentDetail }) {
  const { jobs } = incident.impact;
  return jobs.length === 0 ? null : (
    <section class="panel" aria-label="Impact">
      <h2>What it cost</h2>
      <table>
        <thead>
          <tr>
            <th>job</th>
            <th class="num">GPUs</th>
            <th class="num">steps</th>
            <th class="num">stood</th>
            <th class="num">GPU-h</th>
          </tr>
        </thead>
        <tbody>
          {jobs.map((job) => (
            <tr key={job.job_id}>
              <td>
                {job.job_id}
                {job.ended_at !== null && <div class="small soft">ended {job.ended_at.slice(11, 19)}</div>}
              </td>
              <td class="num">{job.gpus}</td>
              <td class="num">{job.step_time_factor === null ? "–" : `× ${job.step_time_factor.toFixed(2)}`}</td>
              <td class="num">{job.stood_s === 0 ? "–" : span(job.stood_s * 1000)}</td>
              <td class="num">{job.gpu_hours_lost.toFixed(1)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

interface EvidenceProps {
  readonly recording: RecordingDetail;
  readonly incident: IncidentDetail;
  readonly root: Finding | null;
  readonly view: { readonly from: number; readonly to: number };
  readonly at: number;
  readonly onSeek: (at: number) => void;
}

function Evidence({ recording, incident, root, view, at, onSeek }: EvidenceProps) {
  const entity = root?.entity ?? incident.causes[0]?.entity ?? {};
  const told = entity["job_id"] ?? root?.evidence["job_id"] ?? incident.impact.jobs[0]?.job_id;
  const job = told === undefined ? null : String(told);
  const nodes = recording.jobs.find((one) => one.job_id === job)?.nodes ?? [];
  const shades = useMemo<readonly Shade[]>(
    () => [{ from: parse(incident.started_at), to: incident.closed_at === null ? view.to : parse(incident.closed_at) }],
    [incident, view.to],
  );
  const layers = layersOf(entity, recording.streams)
    .map(({ name, signals }) => ({
      name,
      charts: signals.flatMap((signal) => {
        const entities = entitiesFor(signal.kind, signal, entity, job, nodes);
        return entities === null ? [] : [{ signal, entities }];
      }),
    }))
    .filter(({ charts }) => charts.length > 0);
  return (
    <section class="panel" aria-label="Evidence">
      <h2>
        Evidence at <Moment at={at} /> <span class="soft small">click in a chart to move; all share one axis</span>
      </h2>
      {layers.map(({ name, charts }) => (
        <div key={name}>
          <h3>{name}</h3>
          <div class="charts shared">
            {charts.map(({ signal, entities }, place) => (
              <SignalChart
                key={signal.field}
                {...{ recording, signal, entities, shades, at, onSeek }}
                peers={signal.kind !== "steps" || signal.field !== "step_time_s"}
                from={view.from}
                to={view.to}
                withAxis={place === charts.length - 1}
                height={place === charts.length - 1 ? 122 : 96}
              />
            ))}
          </div>
        </div>
      ))}
    </section>
  );
}

const MOST_LINES = 200;

interface LogsProps {
  readonly recording: string;
  readonly view: { readonly from: number; readonly to: number };
  readonly about: Entity;
  readonly at: number;
  readonly onSeek: (at: number) => void;
}

function Logs({ recording, view, about, at, onSeek }: LogsProps) {
  const own = typeof about["node"] === "string" ? about["node"] : null;
  const [node, setNode] = useState<string | null>(own);
  const query = { from: rfc3339(view.from), to: rfc3339(view.to), limit: MOST_LINES, node };
  const loaded = useLoaded(`${recording} ${JSON.stringify(query)}`, () => ask<LogLines>(`${path("recordings", recording)}/logs`, query));
  return (
    <section class="panel" aria-label="Logs">
      <div class="row spread">
        <h2>Logs of these minutes</h2>
        {own !== null && (
          <button type="button" aria-pressed={node !== null} onClick={() => setNode(node === null ? own : null)}>
            only {own}
          </button>
        )}
      </div>
      <When loaded={loaded}>
        {({ items, more }) => (
          <>
            {items.length === 0 && <p class="soft">No line.</p>}
            <ul class="feed">
              {items.map((line, number) => (
                <li key={number}>
                  <button type="button" class="link" onClick={() => onSeek(parse(line.at))}>
                    <Moment at={parse(line.at)} />{" "}
                    <span class={line.severity === "critical" || line.severity === "error" ? "sev page" : line.severity === "warning" ? "sev warn" : "soft"}>{line.severity}</span>{" "}
                    <span class="soft">
                      {line.source} {line.node}
                    </span>{" "}
                    <span class="mono">{line.message}</span> {parse(line.at) > at && <span class="soft small">later</span>}
                  </button>
                </li>
              ))}
            </ul>
            {more && <p class="small soft">The first {MOST_LINES} are shown.</p>}
          </>
        )}
      </When>
    </section>
  );
}

function Facts({ of: root }: { readonly of: Finding }) {
  return (
    <section class="panel" aria-label="Figures">
      <h2>What {root.detector} saw</h2>
      <p class="small">{root.summary}</p>
      <div>
        <table class="small figures">
          <tbody>
            {Object.entries(root.evidence).map(([name, value]) => (
              <tr key={name}>
                <td class="mono nowrap">{name}</td>
                <td class={typeof value === "number" ? "num" : ""} style="overflow-wrap:anywhere">{typeof value === "number" ? Number(value.toPrecision(5)) : value}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

const MARKS: readonly (readonly [Mark, string])[] = [
  ["right", "✓ Right"],
  ["wrong", "✕ Wrong"],
  ["unsure", "? Unsure"],
];

function Judge({ run, incident }: { readonly run: string; readonly incident: string }) {
  const labels = useLoaded(`${run} ${incident}`, async () => {
    const [known, me] = await Promise.all([ask<readonly Label[]>("labels", { run }), ask<{ readonly name: string }>("me")]);
    const about = known.filter((one) => one.incident === incident);
    return { about, mine: about.find((one) => one.author === me.name) ?? null };
  });
  const [note, setNote] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const mine = labels.data?.mine ?? null;
  const done = (made: Promise<unknown>) => {
    setError(null);
    made.then(
      () => {
        setNote(null);
        labels.again();
      },
      (reason: unknown) => setError(reason as Error),
    );
  };
  const why = note ?? mine?.note ?? "";
  const mark = (what: Mark) =>
    done(mine === null ? send<Label>("labels", { run, incident, mark: what, note: why }) : send<Label>(path("labels", mine.id), { mark: what, note: why }, "PATCH"));
  return (
    <section class="panel" aria-label="Your judgement">
      <h2>Is it right?</h2>
      <label>
        <span class="soft small">Why, for those who read it later</span>
        <textarea rows={2} style="width:100%" value={why} maxLength={4000} onInput={(event) => setNote(event.currentTarget.value)} />
      </label>
      <div class="row" style="margin-top:.4rem">
        {MARKS.map(([what, text]) => (
          <button type="button" key={what} aria-pressed={mine?.mark === what} onClick={() => mark(what)}>
            {text}
          </button>
        ))}
        {mine !== null && (
          <button type="button" onClick={() => done(ask(path("labels", mine.id), {}, { method: "DELETE" }))}>
            Take back
          </button>
        )}
      </div>
      {error !== null && <Trouble error={error} />}
      <When loaded={labels}>
        {({ about }) =>
          about.map((one) => (
            <p key={one.id} class="small" role="status">
              <span class={`sev ${one.mark === "right" ? "good" : one.mark === "wrong" ? "page" : "warn"}`}>{one.mark}</span> {one.note}{" "}
              <span class="soft">
                {one.author}, {one.updated_at.slice(0, 16).replace("T", " ")}
              </span>
            </p>
          ))
        }
      </When>
    </section>
  );
}
