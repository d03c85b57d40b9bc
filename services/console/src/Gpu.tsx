/** One GPU: its signals against the band of its job's other GPUs. */
import { useMemo } from "preact/hooks";
import { SignalChart } from "./Signals";
import { ofGpu } from "./signals";
import { parse } from "./time";
import type { Finding, Job, RecordingDetail } from "./types";

interface Props {
  readonly recording: RecordingDetail;
  readonly gpu: string;
  readonly job: Job | null;
  readonly at: number;
  readonly until: number;
  readonly findings: readonly Finding[];
  readonly onSeek: (at: number) => void;
  readonly onClose: () => void;
}

export function Gpu({ recording, gpu, job, at, until, findings, onSeek, onClose }: Props) {
  const [node = "", number = ""] = gpu.split("/");
  const [from, to] = [parse(recording.start), parse(recording.end)];
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
      <div class="charts">
        {signals.map((signal) => (
          <SignalChart key={signal.field} {...{ recording, signal, from, to, at, until, shades, onSeek }} entities={[gpu]} peers withAxis />
        ))}
      </div>
    </section>
  );
}
