/** Which readings are worth a look, layer by layer, and how to call them. */
import type { Entity, Stream } from "./types";

export interface Signal {
  readonly kind: string;
  readonly field: string;
  readonly title: string;
  readonly unit: string;
  /** A counter: what counts is its increase per second. */
  readonly rate: boolean;
}

export interface Layer {
  readonly name: string;
  readonly signals: readonly Signal[];
}

type Row = readonly [field: string, title: string, unit: string, rate?: boolean];

const JOB: readonly Row[] = [
  ["step_time_s", "Step time", "s"],
  ["compute_s", "Computing in a step", "s"],
  ["comm_wait_s", "Waiting for others in a step", "s"],
  ["data_wait_s", "Waiting for data in a step", "s"],
];
/** Units are DCGM's own, counters per second: units.ts says what they are shown in. */
const GPU: readonly Row[] = [
  ["DCGM_FI_DEV_POWER_USAGE", "Power", "W"],
  ["DCGM_FI_DEV_SM_CLOCK", "SM clock", "MHz"],
  ["DCGM_FI_DEV_GPU_TEMP", "GPU temperature", "°C"],
  ["DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature", "°C"],
  ["DCGM_FI_DEV_GPU_UTIL", "Utilisation", "%"],
  ["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Tensor pipes active", "ratio"],
  ["DCGM_FI_PROF_DRAM_ACTIVE", "Memory interface active", "ratio"],
  ["DCGM_FI_PROF_PCIE_RX_BYTES", "PCIe received", "bytes/s"],
  ["DCGM_FI_PROF_PCIE_TX_BYTES", "PCIe sent", "bytes/s"],
  ["DCGM_FI_PROF_NVLINK_RX_BYTES", "NVLink received", "bytes/s"],
  ["DCGM_FI_DEV_PCIE_LINK_GEN", "PCIe generation", ""],
  ["DCGM_FI_DEV_PCIE_LINK_WIDTH", "PCIe lanes", ""],
  ["DCGM_FI_DEV_XID_ERRORS", "Last XID", ""],
  ["DCGM_FI_DEV_FB_USED", "Memory used", "MiB"],
  ["DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe replays", "1/s", true],
  ["DCGM_FI_DEV_POWER_VIOLATION", "Held back for power", "ns/s", true],
  ["DCGM_FI_DEV_THERMAL_VIOLATION", "Held back for heat", "ns/s", true],
  ["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors", "1/s", true],
  ["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors", "1/s", true],
  ["DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLink CRC errors", "1/s", true],
];
const NIC: readonly Row[] = [
  ["port_rcv_data", "Port received", "4 octets/s", true],
  ["port_xmit_data", "Port sent", "4 octets/s", true],
  ["symbol_error", "Symbol errors", "1/s", true],
  ["out_of_sequence", "Packets out of sequence", "1/s", true],
  ["local_ack_timeout_err", "Acknowledgement timeouts", "1/s", true],
  ["np_cnp_sent", "Congestion notifications sent", "1/s", true],
  ["link_downed", "Link went down", "1/s", true],
];
const SWITCH: readonly Row[] = [
  ["SAI_PORT_STAT_IF_IN_OCTETS", "Switch port in", "octets/s", true],
  ["SAI_PORT_STAT_PFC_3_RX_PKTS", "PFC pauses received", "1/s", true],
  ["SAI_PORT_STAT_PFC_3_TX_PKTS", "PFC pauses sent", "1/s", true],
  ["SAI_PORT_STAT_ECN_MARKED_PACKETS", "ECN-marked packets", "1/s", true],
  ["SAI_PORT_STAT_IF_OUT_DISCARDS", "Discards", "1/s", true],
];
const STORAGE: readonly Row[] = [
  ["read_latency_ms", "Read latency", "ms"],
  ["write_latency_ms", "Write latency", "ms"],
  ["read_bytes", "Read", "bytes/s", true],
  ["write_bytes", "Written", "bytes/s", true],
];

function layer(name: string, kind: string, rows: readonly Row[], streams: readonly Stream[], most: number): Layer {
  const fields = new Set(streams.find((stream) => stream.kind === kind)?.fields ?? []);
  const signals = rows.filter(([field]) => fields.has(field)).map(([field, title, unit, rate]) => ({ kind, field, title, unit, rate: rate === true }));
  return { name, signals: signals.slice(0, most) };
}

export function ofGpu(streams: readonly Stream[]): readonly Signal[] {
  return layer("GPU", "dcgm", GPU, streams, 99).signals;
}

/** What a recording has no reading of, though a GPU might be asked for it. */
export function lackedOfGpu(streams: readonly Stream[]): readonly string[] {
  const there = new Set(ofGpu(streams).map(({ field }) => field));
  return GPU.filter(([field]) => !there.has(field)).map(([, title]) => title);
}

/** Every layer that the recording has readings of, those nearest to the culprit first. */
export function layersOf(entity: Entity, streams: readonly Stream[]): readonly Layer[] {
  const about = new Set(Object.keys(entity));
  const layers = [
    layer("Job", "steps", JOB, streams, about.has("job_id") ? 4 : 3),
    layer("GPU", "dcgm", GPU, streams, about.has("gpu") || about.has("node") ? 6 : 3),
    layer("Network port", "nic", NIC, streams, about.has("nic") ? 7 : 3),
    layer("Switch", "switch", SWITCH, streams, about.has("switch") ? 5 : 3),
    layer("Storage", "storage", STORAGE, streams, about.has("mount") ? 4 : 2),
  ];
  return layers.filter((one) => one.signals.length > 0);
}
