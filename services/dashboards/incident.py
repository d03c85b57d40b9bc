"""Incident: one node against its peers, the evidence of every layer on one axis of time."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.fleet import STATES, findings
from services.dashboards.model import Dashboard, Timeseries
from services.dashboards.panels import Query, lines, states
from services.dashboards.select import ACTIVE, BY_RULES, NODE, OTHERS, PEERS, gpu, last, node, of, rate, slowed

_INLET = 'name=~"(?i).*inlet.*"'
_HERE = 'node=~"$node|"'


def against(
    title: str, description: str, metric: str, *, unit: str, counter: bool = False, scale: str = ""
) -> Timeseries:
    """Return a metric of the node's GPUs or ports beside the median and the spread of its peers."""
    select = rate if counter else of
    mine, others = f"{scale}{select(metric, NODE)}", f"{scale}{select(metric, OTHERS)}"
    return lines(
        title,
        description,
        Query(f"min({mine})", "this node, lowest", colours.RED),
        Query(f"max({mine})", "this node, highest", colours.ORANGE),
        Query(f"quantile(0.5, {others})", "peers, median", colours.BLUE),
        Query(f"quantile(0.05, {others})", "peers, 5th percentile", colours.SKY),
        Query(f"quantile(0.95, {others})", "peers, 95th percentile", colours.SKY),
        unit=unit,
        low=None,
    )


def incident() -> Dashboard:
    """Return the dashboard."""
    steps = of("hindcast_job_step_time_seconds", 'job_id=~"$job"')
    return board.build(
        "incident",
        "One incident: its node against the other nodes of its job, what changed first, and in which layer. Vertical "
        "marks are the onset, and bands the time in which a finding was open.",
        (board.CLUSTER, board.REPLAY, board.INCIDENT, board.NODE_OF_INCIDENT, board.JOBS_OF_NODE, board.PEERS),
        Section(
            "What was found",
            states(
                "Findings over time",
                "All findings of this cluster and replay: open from their detection until they were resolved; "
                "and alerts of rules while they fire.",
                Query(
                    f"max by (fault, node, job_id, switch) ({last(ACTIVE)}) or "
                    f"max by (fault, node, job_id, switch) ({of('ALERTS', *BY_RULES)})",
                    "{{fault}} {{node}}{{job_id}}{{switch}}",
                ),
                texts=STATES,
            ),
            findings(
                "Findings and alerts of this node",
                "Findings of this node, and those that are on no node; alerts by rules likewise.",
                _HERE,
                height=6,
            ),
        ),
        Section(
            "The job",
            lines(
                "Step time of the job",
                "Median over the ranks. When one rank is slow all are: this says since when, not who.",
                Query(f"quantile by (job_id) (0.5, {steps})", "job {{job_id}}"),
                unit="s",
            ),
            lines(
                "Computing",
                "Seconds of a step that ranks of this node compute, and those of the others. The culprit computes "
                "longest.",
                Query(f"quantile(0.5, {of('hindcast_job_compute_seconds', NODE)})", "this node", colours.RED),
                Query(f"quantile(0.5, {of('hindcast_job_compute_seconds', OTHERS)})", "peers", colours.BLUE),
                unit="s",
            ),
            lines(
                "Waiting for others",
                "Seconds of a step that ranks wait in collectives. The culprit waits least.",
                Query(f"quantile(0.5, {of('hindcast_job_comm_wait_seconds', NODE)})", "this node", colours.RED),
                Query(f"quantile(0.5, {of('hindcast_job_comm_wait_seconds', OTHERS)})", "peers", colours.BLUE),
                unit="s",
            ),
        ),
        Section(
            "GPUs: power, clocks, heat",
            against(
                "GPU power",
                "A GPU that is held down draws less than its peers while they work, and a waiting one too: compare "
                "with the clock.",
                "DCGM_FI_DEV_POWER_USAGE",
                unit="watt",
            ),
            against(
                "SM clock",
                "The clearest sign of a brake: peers that wait keep their clock.",
                "DCGM_FI_DEV_SM_CLOCK",
                unit="rotmhz",
            ),
            against(
                "GPU temperature",
                "Slowed near 87 to 89 degrees on A100 and H100.",
                "DCGM_FI_DEV_GPU_TEMP",
                unit="celsius",
            ),
            lines(
                "GPUs slowed by hardware",
                "GPUs with a thermal or power-brake bit: of this node, and of all its peers.",
                Query(f"sum({slowed(NODE)})", "this node", colours.RED),
                Query(f"sum({slowed(OTHERS)}) or vector(0)", "peers", colours.BLUE),
                points=120,
            ),
            against(
                "Time slowed for power",
                "Share of time; counts what a sampled mask misses. The counter is in nanoseconds.",
                "DCGM_FI_DEV_POWER_VIOLATION",
                unit="percentunit",
                counter=True,
                scale="1e-9 * ",
            ),
            against(
                "Tensor cores active",
                "Share of cycles. Falls for a whole job when one of its ranks is slow.",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                unit="percentunit",
            ),
        ),
        Section(
            "PCIe, NVLink, memory",
            lines(
                "PCIe link generation",
                "Lowest of this node's GPUs and of its peers'. It falls at idle: only under load is it a fault.",
                Query(f"min({of('DCGM_FI_DEV_PCIE_LINK_GEN', NODE)})", "this node, lowest", colours.RED),
                Query(f"min({of('DCGM_FI_DEV_PCIE_LINK_GEN', OTHERS)})", "peers, lowest", colours.BLUE),
            ),
            against("PCIe received", "Host to GPU, bytes a second.", "DCGM_FI_PROF_PCIE_RX_BYTES", unit="Bps"),
            against(
                "NVLink received", "All links of a GPU, bytes a second.", "DCGM_FI_PROF_NVLINK_RX_BYTES", unit="Bps"
            ),
            lines(
                "XID of this node",
                "The last XID code of each GPU as dcgm-exporter shows it: it stays for ever, so look for changes.",
                Query(gpu(f"max by (instance, gpu) ({of('DCGM_FI_DEV_XID_ERRORS', NODE)})"), "{{gpu}}"),
            ),
            lines(
                "ECC errors of this node",
                "Corrected and uncorrected, since the driver was loaded.",
                Query(f"sum({of('DCGM_FI_DEV_ECC_SBE_VOL_TOTAL', NODE)})", "corrected", colours.BLUE),
                Query(f"sum({of('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL', NODE)})", "uncorrected", colours.RED),
            ),
            lines(
                "Rows remapped on this node",
                "For uncorrectable and for many corrected errors; a failure or a pending remap calls for action.",
                Query(f"sum({of('DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS', NODE)})", "uncorrectable", colours.ORANGE),
                Query(f"sum({of('DCGM_FI_DEV_ROW_REMAP_PENDING', NODE)})", "GPUs with one pending", colours.BLUE),
                Query(f"sum({of('DCGM_FI_DEV_ROW_REMAP_FAILURE', NODE)})", "GPUs with a failure", colours.RED),
            ),
        ),
        Section(
            "Network, storage, chassis",
            against(
                "Network received, by port",
                "Bytes a second of a port.",
                "node_infiniband_port_data_received_bytes_total",
                unit="Bps",
                counter=True,
            ),
            against(
                "Network retransmissions, by port",
                "Out-of-sequence packets a second: something on the way loses packets.",
                "node_infiniband_out_of_sequence_packets_received_total",
                unit="pps",
                counter=True,
            ),
            against(
                "Storage read latency",
                "Milliseconds as the client sees them, by mount.",
                "hindcast_storage_read_latency_milliseconds",
                unit="ms",
            ),
            lines(
                "Power supplies of this node",
                "Input of each supply, as its BMC reads it. One at zero has failed or lost its feed.",
                Query(node(of("ipmi_power_watts", NODE, 'name=~"(?i)psu?.*"')), "{{name}}"),
                unit="watt",
            ),
            lines(
                "Air at the inlet",
                "Of this node, and of its peers.",
                Query(f"max({of('ipmi_temperature_celsius', NODE, _INLET)})", "this node", colours.RED),
                Query(f"quantile(0.5, {of('ipmi_temperature_celsius', PEERS, _INLET)})", "peers, median", colours.BLUE),
                unit="celsius",
                low=None,
            ),
            lines(
                "Fans of this node",
                "Speed of each fan.",
                Query(node(of("ipmi_fan_speed_rpm", NODE)), "{{name}}"),
                unit="rotrpm",
            ),
        ),
    )
