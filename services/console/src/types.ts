/** What the API says, as the models.py of services/api/ and of its rooms have it. Times are RFC 3339, but epoch milliseconds in columns. */

export type Entity = Readonly<Record<string, string | number>>;
export type Severity = "info" | "ticket" | "page";
export type DetectorSettings = Readonly<Record<string, Readonly<Record<string, number | string | boolean>>>>;

export interface Page<Item> {
  readonly items: readonly Item[];
  readonly next: string | null;
  readonly total: number;
}

export interface Problem {
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly remedy: string;
}

export interface RecordingSummary {
  readonly name: string;
  readonly title: string;
  readonly summary: string;
  readonly origin: "synthetic" | "captured" | "imported";
  readonly start: string;
  readonly end: string;
  readonly duration_s: number;
  readonly cluster: { readonly name: string; readonly nodes: number; readonly gpus: number; readonly gpu_model: string };
  readonly faults: readonly string[];
  readonly labelled: number;
  readonly size_bytes: number;
  readonly read_only: boolean;
}

export interface Stream {
  readonly kind: string;
  readonly interval_s: number | null;
  readonly rows: number;
  readonly keys: readonly string[];
  readonly fields: readonly string[];
}

export interface Job {
  readonly job_id: string;
  readonly name: string;
  readonly user: string;
  readonly nodes: readonly string[];
  readonly gpus: Readonly<Record<string, readonly number[]>> | null;
  readonly start: string;
  readonly end: string | null;
  readonly state: string;
}

export interface Truth {
  readonly id: string;
  readonly fault: string;
  readonly entity: Entity;
  readonly onset: string;
  readonly end: string;
  readonly note: string | null;
  readonly distractor: boolean;
}

export interface RecordingDetail extends RecordingSummary {
  readonly source: Readonly<Record<string, unknown>>;
  readonly seed: number | null;
  readonly streams: readonly Stream[];
  readonly nodes: readonly { readonly name: string; readonly rack: string | null; readonly gpus: readonly number[] }[];
  readonly jobs: readonly Job[];
  readonly truths: readonly Truth[];
}

export interface LogLine {
  readonly at: string;
  readonly source: string;
  readonly severity: string;
  readonly node: string | null;
  readonly job_id: string | null;
  readonly message: string;
}

export interface LogLines {
  readonly items: readonly LogLine[];
  readonly more: boolean;
}

export type Values = readonly (number | null)[];

export interface Band {
  readonly about: string;
  readonly peers: number;
  readonly median: Values;
  readonly low: Values;
  readonly high: Values;
}

export interface SeriesAnswer {
  readonly kind: string;
  readonly field: string;
  readonly rate: boolean;
  readonly from_ms: number;
  readonly to_ms: number;
  readonly bucket_ms: number;
  readonly times: readonly number[];
  readonly series: readonly {
    readonly key: string;
    readonly entity: Entity;
    readonly min: Values;
    readonly max: Values;
    readonly mean: Values;
  }[];
  readonly band: Band | null;
  readonly left_out: number;
}

/** `cells[row]` has a character a bucket: `-` no reading, `.` idle, `o` well, `i` `t` `p` under an open finding. */
export interface Heatmap {
  readonly recording: string;
  readonly run: string | null;
  readonly from_ms: number;
  readonly to_ms: number;
  readonly bucket_ms: number;
  readonly times: readonly number[];
  readonly rows: readonly { readonly node: string; readonly gpu: number; readonly rack: string | null }[];
  readonly cells: readonly string[];
}

export interface Run {
  readonly id: string;
  readonly recording: string;
  readonly detectors: DetectorSettings;
  readonly state: "queued" | "running" | "done" | "failed" | "cancelled";
  readonly progress: number;
  readonly event_time: string | null;
  readonly findings: number;
  readonly incidents: number;
  readonly created_at: string;
  readonly error: string | null;
  /** Of hindcast and of each detector; null before it begins, and of a replay by way of Kafka. */
  readonly versions: Readonly<Record<string, string>> | null;
  /** Of a replay by way of Kafka its name. */
  readonly replay: string | null;
  readonly generation: number | null;
}

/** What a person did about a finding of a live cluster; times are wall time. */
export interface Action {
  readonly kind: "acknowledged" | "closed" | "silenced";
  readonly author: string;
  readonly note: string;
  readonly at: string;
  readonly until: string | null;
  readonly link: string | null;
}

export interface Finding {
  readonly run: string;
  readonly id: string;
  readonly detector: string;
  readonly fault: string;
  readonly entity: Entity;
  readonly state: "firing" | "resolved";
  readonly started_at: string;
  readonly detected_at: string;
  readonly resolved_at: string | null;
  readonly severity: Severity;
  readonly score: number;
  readonly summary: string;
  readonly recommended_action: string;
  readonly evidence: Readonly<Record<string, number | string>>;
  readonly shadow: boolean;
  readonly verdict: "hit" | "late" | "repeat" | "optional" | "false" | null;
  readonly delay_s: number | null;
  readonly actions: readonly Action[];
}

export interface Member {
  readonly id: string;
  readonly detector: string;
  readonly fault: string;
  readonly entity: Entity;
  readonly severity: Severity;
  readonly started_at: string;
  readonly detected_at: string;
  readonly resolved_at: string | null;
  readonly summary: string;
}

export interface Incident {
  readonly run: string;
  readonly id: string;
  readonly revision: number;
  readonly state: "open" | "closed";
  readonly opened_at: string;
  readonly started_at: string;
  readonly closed_at: string | null;
  readonly severity: Severity;
  readonly title: string;
  readonly causes: readonly {
    readonly finding: string;
    readonly fault: string;
    readonly entity: Entity;
    readonly score: number;
    readonly reasons: readonly string[];
  }[];
  readonly members: readonly Member[];
  readonly unlisted: number;
  readonly chain: readonly { readonly cause: string; readonly effect: string; readonly because: string; readonly score: number }[];
  readonly impact: {
    readonly gpus: number;
    readonly nodes: number;
    readonly jobs: readonly {
      readonly job_id: string;
      readonly gpus: number;
      readonly step_time_factor: number | null;
      readonly stood_s: number;
      readonly gpu_hours_lost: number | null;
      readonly ended_at: string | null;
    }[];
    readonly step_time_factor: number | null;
    readonly gpu_hours_lost: number | null;
  };
  readonly offenders: readonly { readonly entity: Entity; readonly incidents: number; readonly score: number }[];
}

/** Fault by fault what a recording's telemetry can show, and what to add to see the rest. */
export interface Coverage {
  readonly recording: string;
  readonly intervals_s: Readonly<Record<string, number>>;
  readonly inferred_jobs: boolean;
  readonly faults: readonly {
    readonly fault: string;
    readonly detector: string;
    readonly verdict: "sees" | "less" | "late" | "partly" | "blind" | "off" | "undeclared";
    readonly blind_share: number | null;
    readonly levels: readonly { readonly sees: string; readonly within_s: number; readonly share: number; readonly rung: number }[];
    readonly lacks: readonly string[];
  }[];
  readonly additions: readonly {
    readonly needs: readonly string[];
    readonly from: readonly string[];
    readonly gives: readonly { readonly fault: string; readonly sees: string; readonly within_s: number }[];
  }[];
  readonly csv: readonly string[];
  readonly closing: readonly string[];
}

/** What Alertmanager was sent: `said_at` and `sent_at` are wall time, `detected_at` is recording time. */
export interface Alert {
  readonly id: string;
  readonly run: string;
  readonly replay: string;
  readonly state: "firing" | "resolved";
  readonly findings: readonly string[];
  readonly name: string;
  readonly severity: Severity;
  readonly detected_at: string;
  readonly said_at: string;
  readonly sent_at: string;
  readonly resolved_at: string | null;
  readonly delay_s: number;
  readonly suppressed: boolean;
  readonly receivers: readonly string[];
}

export interface IncidentDetail extends Incident {
  readonly runbooks: Readonly<Record<string, string>>;
  readonly alerts: readonly Alert[];
}

export interface TimelineEntry {
  readonly at: string;
  readonly moment: "onset" | "signal" | "finding" | "incident" | "resolved" | "end";
  readonly id: string;
  readonly fault: string | null;
  readonly entity: Entity;
  readonly severity: Severity | null;
  readonly text: string;
}

/** How findings fared against labels. */
export interface Rates {
  readonly labels: number;
  readonly hits: number;
  readonly misses: number;
  readonly late: number;
  readonly repeats: number;
  readonly false_alarms: number;
  readonly precision: number | null;
  readonly recall: number | null;
  readonly f1: number | null;
  readonly delay_p50_s: number | null;
  readonly delay_p95_s: number | null;
}

export interface Score extends Rates {
  readonly missed: readonly Truth[];
}

export interface Timeline {
  readonly run: string;
  readonly entries: readonly TimelineEntry[];
  readonly score: Score | null;
}

export type Mark = "right" | "wrong" | "unsure";

export interface Label {
  readonly id: string;
  readonly run: string;
  readonly finding: string | null;
  readonly incident: string | null;
  readonly mark: Mark;
  readonly note: string;
  readonly author: string;
  readonly updated_at: string;
}

export interface Detector {
  readonly name: string;
  readonly faults: readonly string[];
  readonly reads: readonly string[];
  readonly settings: readonly {
    readonly name: string;
    readonly value: number | string | boolean;
    readonly unit: string;
    readonly source: string;
  }[];
}

export interface Difference {
  readonly recording: string;
  readonly change: "caught" | "missed" | "earlier" | "later" | "false alarm gone" | "false alarm new" | "finding gone" | "finding new";
  readonly fault: string;
  readonly entity: Entity;
  readonly seconds: number;
  readonly before: string | null;
  readonly after: string | null;
}

export interface Comparison {
  readonly id: string;
  readonly title: string;
  readonly state: "running" | "done" | "failed";
  readonly progress: number;
  readonly created_at: string;
  readonly recordings: readonly string[];
  readonly before: DetectorSettings;
  readonly after: DetectorSettings;
  readonly before_runs: readonly string[];
  readonly after_runs: readonly string[];
  /** What was of another version on the second side: hindcast or a detector, with both versions. */
  readonly versions: Readonly<Record<string, readonly [string, string]>>;
  readonly differences: readonly Difference[] | null;
  readonly before_score: Score | null;
  readonly after_score: Score | null;
}

/** A replay by way of Kafka: where it is, and the run under which is told what is found in it. A seek begins a new run. */
export interface Replay {
  readonly name: string;
  readonly recording: string;
  readonly run: string;
  readonly state: "running" | "paused" | "ended" | "stopped" | "failed";
  readonly generation: number;
  readonly speed: number | "max";
  readonly shift: "now" | "start-now" | "keep";
  readonly warm_from: string;
  readonly to: string;
  readonly event_time: string;
  readonly lands_at: string;
  readonly progress: number;
  readonly lag_s: number;
  readonly error: string | null;
}

export interface Task {
  readonly id: string;
  readonly kind: "postmortem" | "score" | "capture" | "import";
  readonly asked: Readonly<Record<string, unknown>>;
  readonly state: "queued" | "running" | "done" | "failed" | "cancelled";
  readonly progress: number;
  readonly doing: string | null;
  readonly created_at: string;
  readonly error: string | null;
  readonly result: { readonly title: string | null; readonly incident: string | null; readonly recording: string | null; readonly notes: string | null } | null;
}

export interface Importer {
  readonly name: string;
  readonly help: string;
  readonly takes: string;
  readonly options: readonly { readonly name: string; readonly help: string; readonly type: string; readonly default: string | number | boolean | null }[];
}

export interface Figures extends Rates {
  readonly optional: number;
}

export interface CurvePoint {
  readonly least_score: number;
  readonly precision: number | null;
  readonly recall: number | null;
  readonly false_alarms: number;
}

/** The detectors on the library, by fault (`all` is their sum) and by recording. */
export interface LibraryScore {
  readonly faults: Readonly<Record<string, Figures>>;
  readonly controls: Readonly<Record<string, Figures>>;
  readonly recordings: readonly {
    readonly name: string;
    readonly node_days: number;
    readonly missed: readonly { readonly id: string; readonly fault: string; readonly entity: Entity }[];
    readonly false: readonly { readonly fault: string; readonly entity: Entity; readonly summary: string }[];
  }[];
  readonly curve: readonly CurvePoint[];
  readonly node_days: number;
  readonly false_alarms_per_100_node_days: number | null;
  readonly false_alarms_per_100_node_days_upper_95: number | null;
}

export function words(entity: Entity): string {
  const { node, gpu, ...rest } = entity;
  const told = node === undefined ? [] : [gpu === undefined ? String(node) : `${node} GPU ${gpu}`];
  const others = Object.entries(rest).map(([name, value]) => (name === "job_id" ? `job ${value}` : `${name} ${value}`));
  return [...told, ...others].join(", ");
}
