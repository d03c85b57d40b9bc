/** One incident: what it cost, what caused what, the evidence of every layer on one axis of time, and what to do. */
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ask, path, useLoaded } from "./api";
import { Chain, Facts, Impact } from "./Cause";
import { Evidence, Logs } from "./Evidence";
import { windowOf } from "./incidents";
import { Judge } from "./Judge";
import { useKeys } from "./keys";
import { Markdown } from "./Markdown";
import { Operators } from "./Me";
import { go, href, replaceQuery, useRoute } from "./route";
import { Sent } from "./Sent";
import { parse, rfc3339, span } from "./time";
import type { Finding, IncidentDetail, RecordingDetail, Run } from "./types";
import { Days, Moment, Sev, When } from "./ui";
import { known } from "./units";
import { zoomOf } from "./zoom";

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
  return <When loaded={loaded}>{(found) => <Days of={found.recording}><Shown found={found} /></Days>}</When>;
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
  const zoom = zoomOf(route, view.from, view.to, at);
  const deck = href("run", [run.id], { t: rfc3339(at) });
  const report = href("postmortem", [], { run: run.id, incident: incident.id, title: incident.title });
  const [reading, setReading] = useState(false);
  const book = useRef<HTMLElement>(null);
  const runbook = () => setReading(!reading);
  useEffect(() => {
    if (reading) {
      book.current?.scrollIntoView({ block: "start" });
      book.current?.focus({ preventScroll: true });
    }
  }, [reading]);
  useKeys({
    ...zoom.keys,
    d: () => go(deck),
    m: () => go(report),
    r: runbook,
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
        <button type="button" class="main" aria-expanded={reading} onClick={runbook} title="r">
          Runbook
        </button>
        <a class="button" href={deck} title="d">
          The fleet at this moment
        </a>
        <Operators>
          <a class="button" href={report} title="m">
            Make the postmortem
          </a>
        </Operators>
        {run.replay !== null && (
          <a class="button" href={href("replay", [run.replay])}>
            Live replay {run.replay}
          </a>
        )}
      </div>
      <dl class="facts">
        <Fact name="began" value={<Moment at={started} withDay />} />
        <Fact name="found" value={`${span(opened - started)} later`} />
        <Fact name={closed === null ? "state" : "lasted"} value={closed === null ? "open" : span(closed - started)} />
        <Fact name="GPUs" value={String(incident.impact.gpus)} />
        <Fact name="nodes" value={String(incident.impact.nodes)} />
        <Fact name="step time" value={known(incident.impact.step_time_factor, (it) => `× ${it.toFixed(2)}`)} />
        <Fact name="GPU-hours lost" value={known(incident.impact.gpu_hours_lost, (it) => it.toFixed(1))} />
      </dl>
      <div class="split cause-first">
        <div style="min-width:0">
          {root !== null && (
            <section class="panel" aria-label="What to do">
              <h2>What to do</h2>
              <strong>{root.recommended_action}</strong>
            </section>
          )}
          <Chain incident={incident} onSeek={seek} />
          <Impact incident={incident} />
          <Sent alerts={incident.alerts} />
          <Judge run={run.id} of={{ incident: incident.id }} />
          {root !== null && <Facts of={root} />}
        </div>
        <div style="min-width:0">
          {reading && (
            <section class="panel" aria-label="Runbook" ref={book} tabIndex={-1}>
              <div class="row spread">
                <h2>Runbook</h2>
                <button type="button" onClick={runbook}>
                  Close
                </button>
              </div>
              {Object.keys(incident.runbooks).length === 0 && <p class="soft">Nobody has written one for this.</p>}
              {Object.entries(incident.runbooks).map(([detector, text]) => (
                <div key={detector} class="runbook">
                  <Markdown text={text} />
                </div>
              ))}
            </section>
          )}
          <Evidence recording={recording} incident={incident} root={root} zoom={zoom} at={at} onSeek={seek} />
          <Logs recording={recording.name} zoom={zoom} about={root?.entity ?? {}} at={at} onSeek={seek} />
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
