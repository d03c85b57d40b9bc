"""Job: for those who train. Are steps as fast as they were, who holds them up, and what does it cost."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard
from services.dashboards.panels import TO_NODE, Column, Query, bars, lines, number, table
from services.dashboards.select import PEERS, node, of

_MINE = 'job_id=~"$job"'
# Rank -1 is the job as a whole.
_RANKS = 'rank!="-1"'
_DCGM = (PEERS, 'hpc_job=~"$job|"')


def _steps(metric: str, *matchers: str) -> str:
    return of(f"hindcast_job_{metric}", _MINE, *matchers)


def job() -> Dashboard:
    """Return the dashboard."""
    step = f"quantile(0.5, {_steps('step_time_seconds')})"
    best = f"min_over_time({step}[$__range:1m])"
    # A loop may log for the whole job only.
    size = f"(count({_steps('step_time_seconds', _RANKS)}) or count({of('DCGM_FI_DEV_GPU_UTIL', *_DCGM)}))"
    lost = f"{size} * clamp_min(1 - {best} / {step}, 0)"
    # The job's own figure, where it says one, is the sum over its ranks.
    own, ranks = (f"sum({_steps('tokens_per_second', which)})" for which in ('rank="-1"', _RANKS))
    tokens = f"({own} or {ranks})"
    return board.build(
        "job",
        "One job as those see it who run it: step time, who holds it up, GPU hours lost, and how busy its GPUs are. "
        "Where no training loop reports steps, what dcgm-exporter says of its GPUs still shows.",
        (board.CLUSTER, board.REPLAY, board.ONE_JOB, board.PEERS),
        Section(
            "Now",
            number(
                "Step time",
                "Median over the ranks, at the end of the time range.",
                Query(step),
                unit="s",
                over_time=True,
            ),
            number(
                "Slower than at best",
                "Median step time over the least of the time range.",
                Query(f"{step} / {best}"),
                decimals=2,
                thresholds=colours.bad_above(1.1, 1.5),
                over_time=True,
            ),
            number(
                "GPU hours lost",
                "In this time range: what steps took beyond the best median step, times the ranks. Checkpoints and "
                "evaluations are part of it.",
                Query(f"sum_over_time(({lost})[$__range:1m]) / 60"),
                decimals=1,
            ),
            number(
                "Ranks that report",
                "Ranks with a step in the last five minutes.",
                Query(f"count({_steps('step_time_seconds', _RANKS)})"),
                over_time=True,
            ),
            number(
                "Tensor cores active",
                "Mean over the job's GPUs; the nearest to model FLOPs utilisation that exporters give.",
                Query(f"avg({of('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE', *_DCGM)})"),
                unit="percentunit",
                thresholds=colours.bad_below(0.1, 0.2),
                over_time=True,
            ),
            number(
                "Power of its GPUs",
                "Sum over the GPUs of the job's nodes.",
                Query(f"sum({of('DCGM_FI_DEV_POWER_USAGE', *_DCGM)})"),
                unit="watt",
                over_time=True,
            ),
        ),
        Section(
            "Steps",
            lines(
                "Step time",
                "Median and extremes over the ranks. In a synchronous job all ranks are as slow as the slowest.",
                Query(step, "median", colours.BLUE),
                Query(f"max({_steps('step_time_seconds')})", "longest", colours.ORANGE),
                Query(f"min({_steps('step_time_seconds')})", "shortest", colours.SKY),
                unit="s",
                width=12,
            ),
            lines(
                "What a step is spent on",
                "Medians over the ranks: computing, waiting for others, waiting for data.",
                Query(f"quantile(0.5, {_steps('compute_seconds')})", "computing", colours.BLUE),
                Query(f"quantile(0.5, {_steps('comm_wait_seconds')})", "waiting for others", colours.ORANGE),
                Query(f"quantile(0.5, {_steps('data_wait_seconds')})", "waiting for data", colours.PURPLE),
                unit="s",
                stacked=True,
                width=12,
            ),
            lines(
                "Tokens a second", "Sum over the ranks.", Query(tokens, "tokens a second", colours.BLUE), unit="short"
            ),
            lines(
                "Loss", "As the first rank reports it.", Query(f"max({_steps('loss')})", "loss", colours.BLUE), low=None
            ),
            lines(
                "Gradient norm",
                "A jump is often seen before a loss that diverges.",
                Query(f"max({_steps('grad_norm')})", "gradient norm", colours.BLUE),
            ),
        ),
        Section(
            "Who holds it up",
            bars(
                "Ranks that compute longest",
                "Computing time over the job's median, the ten highest. A rank that stands out here and waits "
                "least is the one all others wait for.",
                Query(
                    f"topk(10, max by (node, rank) ({_steps('compute_seconds', _RANKS)}) / "
                    f"scalar(quantile(0.5, {_steps('compute_seconds')})))",
                    "{{node}} rank {{rank}}",
                ),
                decimals=2,
                thresholds=colours.bad_above(1.1, 1.33),
                width=12,
                link=TO_NODE,
            ),
            table(
                "Nodes of the job",
                "Each node at the end of the time range, those that compute longest first.",
                Column("computing", f"max by (node) ({_steps('compute_seconds', _RANKS)})", unit="s", decimals=2),
                Column(
                    "waiting for others", f"min by (node) ({_steps('comm_wait_seconds', _RANKS)})", unit="s", decimals=2
                ),
                Column(
                    "lowest SM clock",
                    f"min by (node) ({node(of('DCGM_FI_DEV_SM_CLOCK', *_DCGM))})",
                    unit="rotmhz",
                    decimals=0,
                ),
                Column(
                    "lowest GPU power",
                    f"min by (node) ({node(of('DCGM_FI_DEV_POWER_USAGE', *_DCGM))})",
                    unit="watt",
                    decimals=0,
                ),
                width=12,
                height=8,
                links={
                    "node": TO_NODE.model_copy(
                        update={"url": TO_NODE.url.replace("__field.labels.node", "__value.text")}
                    )
                },
            ),
        ),
        Section(
            "What it costs",
            lines(
                "GPUs' worth of work lost",
                "Ranks times the share of a step beyond the best median step of the time range.",
                Query(lost, "GPUs", colours.RED),
            ),
            lines(
                "GPUs at work",
                "Medians over the job's GPUs: multiprocessors and tensor cores with work. Utilisation alone is "
                "high also in a job that hangs.",
                Query(f"quantile(0.5, {of('DCGM_FI_PROF_SM_ACTIVE', *_DCGM)})", "multiprocessors", colours.BLUE),
                Query(
                    f"quantile(0.5, {of('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE', *_DCGM)})", "tensor cores", colours.ORANGE
                ),
                Query(f"quantile(0.5, {of('DCGM_FI_DEV_GPU_UTIL', *_DCGM)}) / 100", "utilisation", colours.GREY),
                unit="percentunit",
                high=1,
            ),
            lines(
                "Energy a token",
                "Power of the job's GPUs over tokens a second.",
                Query(f"sum({of('DCGM_FI_DEV_POWER_USAGE', *_DCGM)}) / {tokens}", "joules a token", colours.BLUE),
                unit="joule",
            ),
        ),
    )
