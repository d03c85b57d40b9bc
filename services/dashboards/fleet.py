"""Fleet: where on-call lands. What is wrong now, which nodes are worst, and since when."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard, TablePanel
from services.dashboards.panels import TO_NODE, Column, Query, bars, grid, lines, number, table, texts, to
from services.dashboards.select import ACTIVE, NODE, ONE_GPU, RACK, STARTED, health, last, most, node, of, slowed

_RULES = 'alertstate="firing"'
# Labels that say where a series is held, not what it is about.
_DULL = "job, instance, prometheus, receive, tenant_id"
# As the page's variable names it.
_PICKED = "${__data.fields.fault}%20of%20${__value.text}"
STATES = texts(_0=("resolved", colours.SKY), _1=("open", colours.RED))


def findings(title: str, description: str, *matchers: str, height: int = 6) -> TablePanel:
    """Return the table of findings and of alerts by rules."""
    rules = f"max without (alertstate, {_DULL}) ({of('ALERTS', _RULES, *matchers)})"
    # A rule that fires no more has left no 0.
    over = f"0 * max without (alertstate, {_DULL}) ({last('ALERTS', _RULES, *matchers)})"
    state = f"max without (detector, {_DULL}) ({last(ACTIVE, *matchers)})"
    since = f"1000 * max without (detector, {_DULL}) ({last(STARTED, *matchers)})"
    began = f"1000 * max without (alertstate, {_DULL}) ({last('ALERTS_FOR_STATE', *matchers)})"
    return table(
        title,
        description,
        Column("state", f"{state} or {rules} or {over}", texts=STATES),
        Column("since", f"{since} or {began}", unit="dateTimeAsIso"),
        height=height,
        links={
            "node": to("incident", "Incident at ${__value.text}", incident=_PICKED, node="${__value.text}"),
            "job_id": to("job", "Job ${__value.text}", job="${__value.text}"),
        },
    )


def fleet() -> Dashboard:
    """Return the dashboard."""
    chosen = (RACK, NODE)
    silent = f"count(max by (cluster, instance) ({of('up', NODE)}) == 0) or vector(0)"
    nodes = f"count(count by (node) ({node(of('DCGM_FI_DEV_GPU_TEMP', *chosen))}))"
    replays = most("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", *chosen, same=ONE_GPU)
    ports = f"count({of('node_infiniband_state_id', NODE)} != 4) or vector(0)"
    return board.build(
        "fleet",
        "What is wrong now, which nodes are worst, and since when. Start here.",
        (board.CLUSTER, board.REPLAY, board.RACK, board.NODES),
        Section(
            "Now",
            number(
                "Open, to be acted on at once",
                "Findings and alerts of severity page that are open at the end of the time range.",
                Query(_open('severity="page"')),
                thresholds=colours.any_is_bad(),
                link=to("incident", "Incident"),
            ),
            number(
                "Open, all severities",
                "Findings of detectors that are open at the end of the time range; where no detector runs, alerts.",
                Query(_open()),
                thresholds=colours.bad_above(1, 10),
            ),
            number(
                "Exporters that do not answer",
                "Targets of the chosen nodes with up 0: a node that is down, or only its exporter.",
                Query(silent),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "GPUs slowed by hardware",
                "Thermal or power-brake bits of the clock-event mask. The software power cap is "
                "normal under load and not counted.",
                Query(f"sum({slowed(*chosen)}) or vector(0)"),
                thresholds=colours.any_is_bad(),
                link=to("power", "Power and cooling"),
            ),
            number(
                "Network ports not active",
                "Ports of nodes in a state other than active (4).",
                Query(ports),
                thresholds=colours.any_is_bad(),
                link=to("fabric", "Fabric"),
            ),
            number("Nodes that report GPUs", "Nodes of which dcgm-exporter shows at least one GPU.", Query(nodes)),
        ),
        Section(
            "Findings and alerts",
            findings(
                "Findings and alerts in this time range",
                "What detectors found and rules fired on, with its state at the end of the time range, and since "
                "when: for a finding the onset, for a rule when its condition began to hold.",
            ),
        ),
        Section(
            "Nodes",
            grid(
                "Health by node",
                "Share of a node's GPUs that are not slowed by heat or a power brake, show no XID that is new "
                "within 15 minutes, no uncorrected memory error and no failed remapping; 0 for a node that does "
                "not answer.",
                Query(health(*chosen), "{{node}}"),
                unit="percentunit",
                thresholds=colours.bad_below(0.5, 0.999),
                low=0,
                high=1,
                link=TO_NODE,
            ),
            bars(
                "Worst nodes by health",
                "The ten nodes with the smallest share of GPUs in order.",
                Query(f"bottomk(10, {health(*chosen)})", "{{node}}"),
                unit="percentunit",
                thresholds=colours.bad_below(0.5, 0.999),
                high=1,
                link=TO_NODE,
            ),
            bars(
                "Hottest nodes",
                "The ten nodes with the hottest GPU. A100 and H100 are slowed near 87 to 89 degrees.",
                Query(f"topk(10, max by (node) ({node(of('DCGM_FI_DEV_GPU_TEMP', *chosen))}))", "{{node}}"),
                unit="celsius",
                thresholds=colours.bad_above(80, 87),
                link=TO_NODE,
            ),
            bars(
                "Slowest clock under load",
                "Lowest SM clock of a node's busy GPUs over the median of all busy GPUs. In a synchronous job the "
                "node that stands out here holds up all others.",
                Query(_slowest(chosen), "{{node}}"),
                unit="percentunit",
                thresholds=colours.bad_below(0.7, 0.9),
                link=TO_NODE,
            ),
        ),
        Section(
            "Load",
            lines(
                "GPU utilisation",
                "Median and tenth percentile of all GPUs. Utilisation is high also while a GPU only waits.",
                Query(f"quantile(0.5, {of('DCGM_FI_DEV_GPU_UTIL', *chosen)})", "median", colours.BLUE),
                Query(f"quantile(0.1, {of('DCGM_FI_DEV_GPU_UTIL', *chosen)})", "10th percentile", colours.ORANGE),
                unit="percent",
                high=100,
            ),
            lines(
                "GPU power, all",
                "Sum over the chosen GPUs.",
                Query(f"sum({of('DCGM_FI_DEV_POWER_USAGE', *chosen)})", "GPUs", colours.BLUE),
                unit="watt",
            ),
            lines(
                "PCIe replays",
                "Retried transfers a minute, the ten GPUs with most. A x16 link of generation 4 at its permitted "
                "bit error rate has up to 16 a minute, of generation 5 up to 31.",
                Query(f"60 * ({node(replays)})", "{{node}} {{gpu}}"),
                thresholds=colours.bad_above(16, 31),
                link=TO_NODE,
            ),
        ),
    )


def _open(*matchers: str) -> str:
    """Return how many findings are open; where there are none, how many alerts of rules fire."""
    found = f"count({last(ACTIVE, *matchers)} == 1)"
    return f"{found} or count({of('ALERTS', _RULES, *matchers)}) or vector(0)"


def _slowest(chosen: tuple[str, ...]) -> str:
    busy = f"({of('DCGM_FI_DEV_SM_CLOCK', *chosen)} and {of('DCGM_FI_DEV_GPU_UTIL', *chosen)} > 50)"
    return f"bottomk(10, min by (node) ({node(busy)}) / scalar(quantile(0.5, {busy})))"
