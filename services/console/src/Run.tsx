/** The tape deck over a run: the fleet's health, what the detectors said and when, and any GPU against its peers. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { all, ask, follow, path, useLoaded } from "./api";
import { jobsOn } from "./fleet";
import { Gpu } from "./Gpu";
import { HeatMap } from "./HeatMap";
import { useKeys } from "./keys";
import { SPEEDS, usePlayhead, type Playhead } from "./playhead";
import { parseRoute, replaceQuery, useRoute, type Route } from "./route";
import { clock, parse, rfc3339 } from "./time";
import { TimeLine } from "./TimeLine";
import type { Shade } from "./Chart";
import { Feed, Incidents, ScoreOf } from "./Said";
import { SignalChart } from "./Signals";
import type { Signal } from "./signals";
import { type Finding, type Heatmap, type Incident, type Job, type RecordingDetail, type Run } from "./types";
import { Moment, percent, Trouble, When } from "./ui";

const POINTS = 720;

interface Watched {
  readonly run: Run;
  readonly findings: readonly Finding[];
  readonly incidents: readonly Incident[];
  readonly error: Error | null;
}

/** A run with what it has said so far: read once when it is over, followed while it goes on. */
function useRun(id: string): Watched | { readonly run: null; readonly error: Error | null } {
  const [run, setRun] = useState<Run | null>(null);
  const [findings, setFindings] = useState<ReadonlyMap<string, Finding>>(new Map());
  const [incidents, setIncidents] = useState<ReadonlyMap<string, Incident>>(new Map());
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    const load = async () => {
      const now = await ask<Run>(path("runs", id));
      if (now.state === "queued" || now.state === "running") {
        setRun(now);
        await follow(
          `${path("runs", id)}/events`,
          ({ kind, body }) => {
            if (kind === "finding") {
              setFindings((before) => new Map(before).set((body as Finding).id, body as Finding));
            } else if (kind === "incident") {
              setIncidents((before) => new Map(before).set((body as Incident).id, body as Incident));
            } else if (kind === "joined") {
              setIncidents((before) => new Map([...before].filter(([name]) => name !== (body as { id: string }).id)));
            } else if (kind === "progress") {
              setRun(body as Run);
            }
          },
          stop.signal,
        );
      }
      if (!stop.signal.aborted) {
        const [over, found, made] = await Promise.all([
          ask<Run>(path("runs", id)),
          all<Finding>(`${path("runs", id)}/findings`),
          all<Incident>(`${path("runs", id)}/incidents`),
        ]);
        setFindings(new Map(found.map((one) => [one.id, one])));
        setIncidents(new Map(made.map((one) => [one.id, one])));
        setRun(over);
      }
    };
    load().catch((reason: unknown) => {
      if (!stop.signal.aborted) {
        setError(reason as Error);
      }
    });
    return () => stop.abort();
  }, [id]);
  const sorted = useMemo(
    () => [...findings.values()].sort((a, b) => parse(a.detected_at) - parse(b.detected_at)),
    [findings],
  );
  const ordered = useMemo(() => [...incidents.values()].sort((a, b) => parse(a.opened_at) - parse(b.opened_at)), [incidents]);
  return run === null ? { run, error } : { run, findings: sorted, incidents: ordered, error };
}

export function RunPage({ id }: { readonly id: string }) {
  const watched = useRun(id);
  const recording = useLoaded(watched.run?.recording ?? null, () =>
    ask<RecordingDetail>(path("recordings", watched.run?.recording ?? "")),
  );
  if (watched.error !== null) {
    return <Trouble error={watched.error} />;
  }
  if (watched.run === null) {
    return <p class="soft">Loading…</p>;
  }
  return <When loaded={recording}>{(detail) => <Deck key={id} watched={watched} recording={detail} />}</When>;
}

function initialMoment(route: Route, watched: Watched, from: number): number {
  const linked = parse(route.query["t"] ?? "");
  const first = watched.findings.find((one) => one.severity === "page") ?? watched.findings[0];
  return Number.isFinite(linked) ? linked : first === undefined ? from : parse(first.detected_at);
}

/** The moment in the address follows the deck, and the deck the address. */
function useLinkedMoment(route: Route, playhead: Playhead): void {
  const told = useRef(route.query["t"] ?? null);
  const { at, playing, seek } = playhead;
  useEffect(() => {
    const write = () => {
      const there = parseRoute(location.hash);
      if (there.page === route.page && there.path[0] === route.path[0]) {
        told.current = rfc3339(Math.round(at));
        replaceQuery({ t: told.current });
      }
    };
    const timer = setTimeout(write, playing ? 2000 : 150);
    return () => clearTimeout(timer);
  }, [playing ? Math.floor(at / 60_000) : at, playing]);
  useEffect(() => {
    const linked = route.query["t"];
    if (linked !== undefined && linked !== told.current && Number.isFinite(parse(linked))) {
      told.current = linked;
      seek(parse(linked));
    }
  }, [route.query["t"], seek]);
}

function Deck({ watched, recording }: { readonly watched: Watched; readonly recording: RecordingDetail }) {
  const { run, findings, incidents } = watched;
  const route = useRoute();
  const [from, to] = [parse(recording.start), parse(recording.end)];
  const going = run.state === "queued" || run.state === "running";
  const playhead = usePlayhead(from, to, initialMoment(route, watched, from));
  const { at, seek } = playhead;
  useLinkedMoment(route, playhead);
  const [following, setFollowing] = useState(going);
  const reached = run.event_time === null ? (run.state === "done" ? to : from) : going ? parse(run.event_time) : to;
  useEffect(() => {
    if (following) {
      seek(going ? reached : initialMoment({ ...route, query: {} }, watched, from));
    }
  }, [going, following, reached, seek]);
  const move = useCallback(
    (target: number) => {
      setFollowing(false);
      seek(target);
    },
    [seek],
  );

  const key = going ? `${run.id} ${Math.floor(run.progress * 10)} ${findings.length}` : `${run.id} ${run.state}`;
  const heat = useLoaded(key, () => ask<Heatmap>(`${path("recordings", run.recording)}/heatmap`, { run: run.id, points: POINTS }));
  const shownMap = useRef<Heatmap | null>(null);
  shownMap.current = heat.data ?? shownMap.current;

  const selected = route.query["gpu"] ?? null;
  const job = useMemo(() => {
    const [node = "", gpu = ""] = (selected ?? "").split("/");
    return selected === null ? null : (jobsOn(recording.jobs, node, Number(gpu), at)[0] ?? null);
  }, [selected, recording.jobs, Math.floor(at / 15_000)]);
  const peers = useMemo(() => {
    const names = new Set<string>();
    for (const row of job === null ? [] : (shownMap.current?.rows ?? [])) {
      if (job?.nodes.includes(row.node) === true && job.gpus?.[row.node]?.includes(row.gpu) !== false) {
        names.add(`${row.node}/${row.gpu}`);
      }
    }
    return names;
  }, [job, heat.data]);
  const select = useCallback((node: string, gpu: number) => replaceQuery({ gpu: `${node}/${gpu}` }), []);

  const jump = (step: 1 | -1) => {
    const times = findings.map((one) => parse(one.detected_at));
    const next = step === 1 ? times.find((time) => time > at + 1) : times.findLast((time) => time < at - 1);
    if (next !== undefined) {
      move(next);
    }
  };
  const faster = (step: 1 | -1) => {
    const place = SPEEDS.indexOf(playhead.speed as (typeof SPEEDS)[number]);
    playhead.setSpeed(SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, place + step))] ?? 60);
  };
  useKeys({
    " ": playhead.toggle,
    ArrowLeft: () => move(at - 10_000),
    ArrowRight: () => move(at + 10_000),
    "Shift+ArrowLeft": () => move(at - 60_000),
    "Shift+ArrowRight": () => move(at + 60_000),
    Home: () => move(from),
    End: () => move(to),
    n: () => jump(1),
    p: () => jump(-1),
    "[": () => faster(-1),
    "]": () => faster(1),
    Escape: () => replaceQuery({ gpu: null }),
  });

  return (
    <>
      <section class="panel deck" aria-label="Tape deck">
        <div class="row">
          <button type="button" class="main" onClick={playhead.toggle} aria-label={playhead.playing ? "Pause" : "Play"} style="min-width:5.2rem">
            {playhead.playing ? "❚❚ Pause" : "▶ Play"}
          </button>
          <label>
            <span class="soft">speed </span>
            <select value={playhead.speed} onChange={(event) => playhead.setSpeed(Number(event.currentTarget.value))}>
              {SPEEDS.map((speed) => (
                <option key={speed} value={speed}>
                  {speed}×
                </option>
              ))}
            </select>
          </label>
          <span class="clock" role="timer" aria-label="event time">
            {clock(at)}
          </span>
          <span class="soft small nowrap">{rfc3339(at).slice(0, 10)} UTC</span>
          <button type="button" onClick={() => jump(-1)} title="the finding before (p)">
            ◂ finding
          </button>
          <button type="button" onClick={() => jump(1)} title="the next finding (n)">
            finding ▸
          </button>
          <div style="flex:1;min-width:10rem;overflow:hidden;text-overflow:ellipsis" class="nowrap">
            <strong>{recording.title}</strong>
          </div>
          {going && (
            <span class="row small">
              <progress max={1} value={run.progress} aria-label="How far the detectors are" /> {percent(run.progress)}
            </span>
          )}
        </div>
        <TimeLine from={from} to={to} at={at} reached={reached} findings={findings} truths={recording.truths.filter((one) => !one.distractor)} onSeek={move} />
        <div class="small soft">Bars above: findings from detected to resolved. Outlines below: what the labels say was there. ? for keys.</div>
      </section>
      {run.error !== null && <p class="sev page">The run has failed: {run.error}</p>}
      <div class="split">
        <div style="min-width:0">
          <section class="panel" aria-label="Fleet">
            <h2>
              Fleet at <Moment at={at} />
            </h2>
            {heat.error !== null && <Trouble error={heat.error} />}
            {shownMap.current === null ? (
              heat.error === null && <p class="soft">Loading…</p>
            ) : (
              <HeatMap map={shownMap.current} at={at} selected={selected} peers={peers} onSelect={select} />
            )}
          </section>
          <Steps recording={recording} job={job} at={at} onSeek={move} />
          {selected !== null && (
            <Gpu recording={recording} gpu={selected} job={job} at={at} findings={findings} onSeek={move} onClose={() => replaceQuery({ gpu: null })} />
          )}
        </div>
        <div style="min-width:0">
          <Incidents incidents={incidents} at={at} run={run.id} />
          <Feed findings={findings} at={at} onSeek={move} onSelect={select} />
          {run.state === "done" && <ScoreOf run={run.id} />}
        </div>
      </div>
    </>
  );
}

interface StepsProps {
  readonly recording: RecordingDetail;
  readonly job: Job | null;
  readonly at: number;
  readonly onSeek: (at: number) => void;
}

const STEP_TIME: Signal = { kind: "steps", field: "step_time_s", title: "Step time", unit: "s", rate: false };

/** The steps of a job: of the GPU that is chosen, or else of the largest one. */
function Steps({ recording, job, at, onSeek }: StepsProps) {
  const jobs = useMemo(() => [...recording.jobs].sort((a, b) => b.nodes.length - a.nodes.length), [recording.jobs]);
  const [chosen, choose] = useState<string | null>(null);
  const shown = chosen ?? job?.job_id ?? jobs[0]?.job_id;
  if (shown === undefined || !recording.streams.some((one) => one.kind === "steps")) {
    return null;
  }
  return (
    <section class="panel" aria-label="Steps of a job">
      <label class="row">
        <h2 style="margin:0">Steps of job</h2>
        <select value={shown} onChange={(event) => choose(event.currentTarget.value)}>
          {jobs.map((one) => (
            <option key={one.job_id} value={one.job_id}>
              {one.job_id} {one.name}, {one.nodes.length} nodes
            </option>
          ))}
        </select>
      </label>
      <SignalChart
        {...{ recording, at, onSeek }}
        signal={STEP_TIME}
        entities={[`${shown}/0`]}
        peers={false}
        from={parse(recording.start)}
        to={parse(recording.end)}
        shades={NO_SHADES}
        withAxis
      />
    </section>
  );
}

const NO_SHADES: readonly Shade[] = [];
