/** The fleet as a table: each node and switch, what runs on it and what is found there at a moment. */
import { useMemo, useState } from "preact/hooks";
import { Table, type Column } from "./Table";
import { parse } from "./time";
import type { Finding, RecordingDetail } from "./types";
import { Sev, weight } from "./ui";

interface Props {
  readonly recording: RecordingDetail;
  readonly findings: readonly Finding[];
  readonly at: number;
  readonly onSelect: (node: string, gpu: number) => void;
}

interface Machine {
  readonly name: string;
  readonly kind: "node" | "switch";
  readonly rack: string | null;
  readonly gpus: readonly number[];
  readonly jobs: readonly string[];
  /** Findings that stand at the moment, the worst first. */
  readonly open: readonly Finding[];
}

function machines({ nodes, switches, jobs }: RecordingDetail, findings: readonly Finding[], at: number): readonly Machine[] {
  const stands = (from: string | null, to: string | null) => (from === null || parse(from) <= at) && (to === null || parse(to) > at);
  const open = findings.filter((one) => stands(one.detected_at, one.resolved_at)).sort((a, b) => weight(b.severity) - weight(a.severity));
  const running = jobs.filter((job) => stands(job.start, job.end));
  return [
    ...nodes.map(({ name, rack, gpus }) => ({
      name,
      kind: "node" as const,
      rack,
      gpus,
      jobs: running.filter((job) => job.nodes.includes(name)).map((job) => job.job_id),
      open: open.filter(({ entity }) => entity["node"] === name),
    })),
    ...switches.map((name) => ({ name, kind: "switch" as const, rack: null, gpus: [], jobs: [], open: open.filter(({ entity }) => entity["switch"] === name) })),
  ];
}

const MOST = 200;

export function Machines({ recording, findings, at, onSelect }: Props) {
  const [shown, show] = useState(false);
  const second = Math.floor(at / 1000) * 1000;
  const rows = useMemo(() => (shown ? machines(recording, findings, second) : []), [shown, recording, findings, second]);
  const columns: readonly Column<Machine>[] = [
    {
      name: "machine",
      by: ({ name }) => name,
      cell: ({ name, gpus: [first] }) =>
        first === undefined ? (
          name
        ) : (
          <button type="button" class="link" onClick={() => onSelect(name, first)}>
            <strong>{name}</strong>
          </button>
        ),
    },
    { name: "kind", by: ({ kind }) => kind },
    { name: "rack", by: ({ rack }) => rack },
    { name: "GPUs", num: true, by: ({ gpus }) => gpus.length, text: () => "" },
    { name: "jobs", by: ({ jobs }) => jobs.join(", "), cell: ({ jobs }) => (jobs.length === 0 ? "none" : jobs.join(", ")) },
    {
      name: "found there",
      by: ({ open: [worst] }) => (worst === undefined ? -1 : weight(worst.severity)),
      text: ({ open }) => open.map((one) => `${one.severity} ${one.fault}`).join(" "),
      cell: ({ open: [worst, ...others] }) =>
        worst === undefined ? (
          "nothing"
        ) : (
          <>
            <Sev of={worst.severity} /> {worst.fault} {others.length > 0 && `and ${others.length} more`}
          </>
        ),
    },
  ];
  return (
    <details onToggle={(event) => show(event.currentTarget.open)}>
      <summary class="soft">As a table: {recording.nodes.length} nodes, {recording.switches.length} switches</summary>
      {shown && <Table id="machines" rows={rows} columns={columns} keyOf={({ kind, name }) => `${kind} ${name}`} most={MOST} />}
      {rows.length > MOST && <p class="small soft">At most {MOST} are shown: name what you look for above them.</p>}
    </details>
  );
}
