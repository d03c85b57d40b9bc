"""Executive: availability, goodput, what fails and how often, over long ranges."""

from detectors.faults import faults
from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard
from services.dashboards.panels import Column, Query, bars, lines, number, table
from services.dashboards.select import fired, node, of

_ON_NODE, _PAGE = 'node!=""', 'severity="page"'
_UP_SHARE = f"avg_over_time({of('up')}[$__range])"
_FIRED = fired("$__range")


def executive() -> Dashboard:
    """Return the dashboard."""
    busy = of("DCGM_FI_PROF_SM_ACTIVE")
    step = f"quantile by (job_id) (0.5, {of('hindcast_job_step_time_seconds')})"
    by_component = _by_component("$__range")
    hours = "$__range_s / 3600"
    return board.build(
        "executive",
        "Availability, goodput, what fails and how often. Choose a long time range: a month, a quarter.",
        (board.CLUSTER, board.REPLAY),
        Section(
            "In this time range",
            number(
                "Availability",
                "Mean over all targets of the share of time in which they answered.",
                Query(f"avg({_UP_SHARE})"),
                unit="percentunit",
                decimals=2,
                thresholds=colours.bad_below(0.95, 0.99),
            ),
            number(
                "Goodput of steps",
                "Best median step time of each job over its mean one, mean over the jobs: what share of step time "
                "was worth it. Needs training loops that report steps.",
                Query(f"avg(min_over_time({step}[$__range:1m]) / avg_over_time({step}[$__range:1m]))"),
                unit="percentunit",
                decimals=1,
                thresholds=colours.bad_below(0.7, 0.9),
            ),
            number(
                "GPUs at work",
                "Mean share of time in which multiprocessors had work.",
                Query(f"avg(avg_over_time({busy}[$__range]))"),
                unit="percentunit",
                decimals=1,
            ),
            number(
                "Faults",
                "Findings that fired, all severities; where no detector runs, alerts of rules.",
                Query(f"sum({_FIRED}) or vector(0)"),
            ),
            number(
                "Mean time between faults",
                "Length of the time range over the findings of severity page; without any, the time range.",
                Query(f"$__range_s / clamp_min(sum({fired('$__range', _PAGE)}) or vector(0), 1)"),
                unit="dtdurations",
            ),
            number(
                "Energy of the GPUs",
                "From their own counters; without the losses of supplies and cooling.",
                Query(f"sum(increase({of('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION')}[$__range])) / 3.6e6"),
                unit="watth",
            ),
        ),
        Section(
            "What fails",
            bars(
                "Faults by component",
                "Findings that fired, by the part that is exchanged or mended, as in the SAKURAONE report's table.",
                Query(by_component, "{{component}}"),
                width=8,
            ),
            table(
                "Faults by kind",
                "How often each fired, and how many hours lie between two on the mean.",
                Column("times", f"sum by (fault, severity) ({_FIRED}) > 0"),
                Column("hours between", f"{hours} / (sum by (fault, severity) ({_FIRED}) > 0)", unit="h", decimals=1),
                width=8,
                height=8,
            ),
            bars(
                "Nodes with most faults",
                "The ten nodes with most findings: candidates for exchange.",
                Query(f"topk(10, sum by (node) ({fired('$__range', _ON_NODE)}))", "{{node}}"),
                thresholds=colours.bad_above(2, 4),
                width=8,
            ),
        ),
        Section(
            "Trend",
            lines(
                "Faults over time",
                "Findings that fired, by component, in each interval.",
                Query(_by_component("$__interval"), "{{component}}"),
                bars=True,
                stacked=True,
                width=12,
                points=60,
            ),
            lines(
                "Availability over time",
                "Share of targets that answer.",
                Query(f"avg({of('up')})", "targets", colours.BLUE),
                unit="percentunit",
                high=1,
                width=12,
                low=None,
            ),
            lines(
                "GPUs in use",
                "GPUs that report, and those with work on more than a tenth of their multiprocessors.",
                Query(f"count({of('DCGM_FI_DEV_GPU_TEMP')})", "report", colours.BLUE),
                Query(f"count({busy} > 0.1) or vector(0)", "at work", colours.ORANGE),
                width=12,
            ),
            lines(
                "Remapped rows and new memory errors",
                "Uncorrectable rows remapped and double-bit errors over all GPUs: memory wears, and this says how "
                "fast.",
                Query(f"sum({of('DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS')})", "rows remapped", colours.BLUE),
                Query(f"sum({of('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL')})", "double-bit errors", colours.RED),
                width=12,
            ),
            bars(
                "GPUs by model",
                "GPUs of each model that report.",
                Query(f"count by (modelName) ({of('DCGM_FI_DEV_GPU_TEMP')})", "{{modelName}}"),
                width=12,
                height=8,
            ),
            bars(
                "Hosts that answered least",
                "The ten nodes and switches that answered least in the time range.",
                Query(f"bottomk(10, avg by (node) ({node(_UP_SHARE)}))", "{{node}}"),
                unit="percentunit",
                thresholds=colours.bad_below(0.95, 0.99),
                width=12,
                height=8,
                high=1,
            ),
        ),
    )


def _by_component(reach: str) -> str:
    """Return how often findings of each component fired within `reach` before each moment."""
    parts: dict[str, list[str]] = {}
    for fault, facts in faults().items():
        parts.setdefault(facts.component, []).append(fault)
    counts = {name: fired(reach, f'fault=~"{"|".join(of_part)}"') for name, of_part in parts.items()}
    return " or ".join(
        f'label_replace(sum({expression}), "component", "{name}", "", "")' for name, expression in counts.items()
    )
