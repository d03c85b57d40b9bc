/** What stands below a tape deck: the fleet at a moment, steps, a GPU against its peers; incidents and findings by then. */
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Shade } from "./Chart";
import { jobsOn, largestFirst, worthALook } from "./fleet";
import type { Watched } from "./follow";
import { Gpu } from "./Gpu";
import type { Heat } from "./heat";
import { HeatMap } from "./HeatMap";
import { Machines } from "./Machines";
import { parseRoute, replaceQuery, type Route } from "./route";
import { Feed, Incidents, Unjudged } from "./Findings";
import { SignalChart } from "./Signals";
import type { Signal } from "./signals";
import { parse, rfc3339 } from "./time";
import type { Job, RecordingDetail } from "./types";
import { Moment, Trouble } from "./ui";
import type { Zoom } from "./zoom";
import { ZoomBar } from "./ZoomBar";

interface Props {
  readonly watched: Watched;
  /** The run whose incidents are linked to. */
  readonly run: string;
  readonly recording: RecordingDetail;
  readonly heat: Heat;
  readonly route: Route;
  readonly zoom: Zoom;
  readonly at: number;
  /** How much of the recording the charts show: all of it, or what has been played. */
  readonly until: number;
  readonly onSeek: (at: number) => void;
  /** A finding that is chosen shows its GPU, and does not move the deck. */
  readonly stays?: boolean;
  readonly children?: ComponentChildren;
}

export function Stage({ watched, run, recording, heat, route, zoom, at, until, onSeek, stays = false, children }: Props) {
  const selected = route.query["gpu"] ?? null;
  const job = useMemo(() => {
    const [node = "", gpu = ""] = (selected ?? "").split("/");
    return selected === null ? null : (jobsOn(recording.jobs, node, Number(gpu), at)[0] ?? null);
  }, [selected, recording.jobs, Math.floor(at / 15_000)]);
  const peers = useMemo(() => {
    const names = new Set<string>();
    for (const row of job === null ? [] : (heat.map?.rows ?? [])) {
      if (job?.nodes.includes(row.node) === true && job.gpus?.[row.node]?.includes(row.gpu) !== false) {
        names.add(`${row.node}/${row.gpu}`);
      }
    }
    return names;
  }, [job, heat.map?.rows]);
  const select = useCallback((node: string, gpu: number) => replaceQuery({ gpu: `${node}/${gpu}` }), []);
  return (
    <div class="split">
      <div style="min-width:0">
        <section class="panel" aria-label="Fleet">
          <h2>
            Fleet at <Moment at={at} />
          </h2>
          {heat.error !== null && <Trouble error={heat.error} />}
          {heat.map === null ? (
            heat.error === null && <p class="soft">Loading…</p>
          ) : (
            <>
              <HeatMap map={heat.map} at={at} selected={selected} peers={peers} onSelect={select} />
              <Machines recording={recording} findings={watched.findings} at={at} onSelect={select} />
            </>
          )}
        </section>
        {selected !== null && (
          <Gpu recording={recording} gpu={selected} job={job} zoom={zoom} at={at} until={until} findings={watched.findings} onSeek={onSeek} onClose={() => replaceQuery({ gpu: null })} />
        )}
        {heat.settled && <Steps recording={recording} touched={watched.incidents[0]?.impact.jobs[0]?.job_id} job={job} zoom={zoom} at={at} until={until} onSeek={onSeek} />}
      </div>
      <div style="min-width:0">
        <Incidents incidents={watched.incidents} at={at} />
        <Feed findings={watched.findings} at={at} onSeek={stays ? null : onSeek} onSelect={select} />
        {heat.settled && children}
        {heat.settled && <Unjudged run={run} recording={recording.name} />}
      </div>
    </div>
  );
}

interface StepsProps {
  readonly recording: RecordingDetail;
  /** The job that an incident struck, where one did. */
  readonly touched: string | undefined;
  readonly job: Job | null;
  readonly zoom: Zoom;
  readonly at: number;
  readonly until: number;
  readonly onSeek: (at: number) => void;
}

const STEP_TIME: Signal = { kind: "steps", field: "step_time_s", title: "Step time", unit: "s", rate: false };
const NO_SHADES: readonly Shade[] = [];

/** The steps of a job: of the GPU that is chosen, else of the job that was struck, or else of the largest one. */
function Steps({ recording, touched, job, zoom, at, until, onSeek }: StepsProps) {
  const jobs = useMemo(() => largestFirst(recording.jobs), [recording.jobs]);
  const [chosen, choose] = useState<string | null>(null);
  const shown = chosen ?? job?.job_id ?? worthALook(jobs, touched)?.job_id;
  if (shown === undefined || !recording.streams.some((one) => one.kind === "steps")) {
    return (
      <section class="panel" aria-label="Steps of a job">
        <h2>Steps of a job</h2>
        <p class="soft" role="note">
          No data: {shown === undefined ? "this recording knows of no job" : "no job reported its steps in this recording"}.
        </p>
      </section>
    );
  }
  return (
    <section class="panel" aria-label="Steps of a job">
      <label class="row">
        <h2 style="margin:0">Steps of job</h2>
        <select value={shown} onChange={(event) => choose(event.currentTarget.value)}>
          {jobs.map((one) => (
            <option key={one.job_id} value={one.job_id}>
              {one.job_id} {one.name}, {one.nodes.length} node{one.nodes.length === 1 ? "" : "s"}
            </option>
          ))}
        </select>
      </label>
      <ZoomBar zoom={zoom} />
      <SignalChart
        {...{ recording, zoom, at, until, onSeek }}
        signal={STEP_TIME}
        entities={[`${shown}/0`]}
        peers={false}
        shades={NO_SHADES}
        withAxis
      />
    </section>
  );
}

/** The moment in the address follows the deck, and the deck the address. */
export function useLinkedMoment(route: Route, at: number, playing: boolean, seek: (at: number) => void): void {
  const told = useRef(route.query["t"] ?? null);
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
