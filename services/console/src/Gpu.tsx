/** One GPU: its signals against the band of its job's other GPUs. */
import { useMemo } from "preact/hooks";
import { SignalChart } from "./Signals";
import { lackedOfGpu, ofGpu } from "./signals";
import { parse } from "./time";
import type { Finding, Job, RecordingDetail } from "./types";
import type { Zoom } from "./zoom";
import { ZoomBar } from "./ZoomBar";

interface Props {
  readonly recording: RecordingDetail;
  readonly gpu: string;
  readonly job: Job | null;
  readonly zoom: Zoom;
  readonly at: number;
  readonly until: number;
  readonly findings: readonly Finding[];
  readonly onSeek: (at: number) => void;
  readonly onClose: () => void;
}

export function Gpu({ recording, gpu, job, zoom, at, until, findings, onSeek, onClose }: Props) {
  const [node = "", number = ""] = gpu.split("/");
  const to = parse(recording.end);
  const lacked = lackedOfGpu(recording.streams);
  const signals = useMemo(() => ofGpu(recording.streams), [recording.streams]);
  const shades = useMemo(
    () =>
      findings
        .filter((one) => one.entity["node"] === node && (one.entity["gpu"] === undefined || String(one.entity["gpu"]) === number))
        .map((one) => ({ from: parse(one.detected_at), to: one.resolved_at === null ? to : parse(one.resolved_at) })),
    [findings, node, number, to],
  );
  return (
    <section class="panel" aria-label={`Signals of ${node} GPU ${number}`}>
      <div class="row spread">
        <h2>
          {node} GPU {number} <span class="soft">{job === null ? "without a job at this moment" : `job ${job.job_id} ${job.name}`}</span>
        </h2>
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
      <p class="small soft">Solid line: this GPU. Shaded band: median of its job's other GPUs ± 3 robust deviations. Tinted: under a finding.</p>
      <ZoomBar zoom={zoom} />
      <div class="charts">
        {signals.map((signal) => (
          <SignalChart key={signal.field} {...{ recording, signal, zoom, at, until, shades, onSeek }} entities={[gpu]} peers withAxis />
        ))}
      </div>
      {lacked.length > 0 && (
        <p class="small soft" role="note">
          No data in this recording of: {lacked.join(", ")}. Nobody read {lacked.length === 1 ? "it" : "them"}; that is not zero.
        </p>
      )}
    </section>
  );
}
