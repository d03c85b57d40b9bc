"""Labels in a world: how soon an alert is due there, and what nothing that is gathered there can show.

The truth does not depend on who is looking, so no label goes: what no reading and no line of the recording reflects is
`optional`, and says so. Due is an alert after some readings of the slowest stream that shows the fault, later where its
collector was away just then or clocks are off; where nothing states the fault, after three minutes at the earliest.
"""

from collections.abc import Iterable, Iterator, Sequence

from services.recording.model import Event, Label
from services.synth.cluster.profile import ClusterProfile
from services.synth.cluster.world import World
from services.synth.faults.node_reboot import NodeReboot
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.randomness import generator
from services.synth.story.happening import Happening, PlacedTruth
from services.synth.story.scenario import Scenario
from services.synth.telemetry.arrival import Arrival
from services.synth.telemetry.outages import Outages

_DUE_READINGS = 6
_UNSTATED_S = 180.0
"""A fault that nothing states is asked for within three minutes, or six readings (as in `benchmarks.held_out`)."""
_SILENCE_S = 300.0
"""Silence alone: gaps, freezes, nodes and idle GPUs of which nothing else is known are reported after five minutes."""
_LOST_READINGS = 10
"""Up to eight readings in a row get lost in worlds: of as many silence says nothing."""

_STREAM = {
    "link_down": "switch", "link_flap": "switch", "link_errors": "switch", "fabric_congestion": "switch",
    "storage_slow": "storage",
}  # fmt: skip
"""The stream that shows a fault, where that is not dcgm."""

_SHOWN: dict[str, tuple[str, ...]] = {
    "gpu.pcie_gb_s": (),
    "gpu.pcie_gen": ("DCGM_FI_DEV_PCIE_LINK_GEN",),
    "gpu.pcie_width": ("DCGM_FI_DEV_PCIE_LINK_WIDTH",),
    "gpu.pcie_replays_per_min": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER",),
    "gpu.nvlink_crc_per_s": ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",),
    "gpu.nvlink_replays_per_s": ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",),
    "gpu.nvlink_recoveries_per_min": ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",),
    "gpu.nvlink_share": ("DCGM_FI_PROF_NVLINK_TX_BYTES",),
    "gpu.sbe_per_s": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",),
    "gpu.dbe": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",),
    "gpu.rows_remapped": ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",),
    "gpu.remap_pending": ("DCGM_FI_DEV_ROW_REMAP_PENDING",),
    "gpu.remap_failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE",),
    "gpu.xid": ("DCGM_FI_DEV_XID_ERRORS",),
    "job.loss_factor": ("steps", "logs.job"),
    "job.loss_nan": ("steps", "logs.job"),
    "job.grad_factor": ("steps", "logs.job"),
}
"""What of a quantity is gathered shows it; of other quantities the temperatures, clocks, power, activity and counters
do that any exporter gives. A slow host link takes as much throughput from all GPUs of a synchronous job: what they move
does not show whose it is, its generation, lanes and replays do."""
_MATTERS = {
    "pcie_degraded": {"gpu.pcie_gb_s", "gpu.pcie_gen", "gpu.pcie_width", "gpu.pcie_replays_per_min"},
    "nvlink_fault": {"gpu.nvlink_crc_per_s", "gpu.nvlink_replays_per_s", "gpu.nvlink_recoveries_per_min",
                     "gpu.nvlink_share", "gpu.xid"},
    "ecc_uncorrectable": {"gpu.dbe", "gpu.xid", "gpu.rows_remapped"},
    "ecc_correctable_storm": {"gpu.sbe_per_s", "gpu.xid"},
    "row_remap_pending": {"gpu.remap_pending", "gpu.xid"},
    "loss_anomaly": {"job.loss_factor", "job.loss_nan", "job.grad_factor"},
}  # fmt: skip
"""The quantities that show a fault, where not any of its effects does."""
_STATES_A_LIMIT = (
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    "DCGM_FI_DEV_POWER_VIOLATION",
)
"""Where none of these is gathered a lowered power limit is what shows of it: a GPU that computes slower than its peers.
Others who label recordings call a hidden limit a straggler, too."""
_CODES = {
    "ecc_uncorrectable": {48, 63, 64, 94, 95},
    "ecc_correctable_storm": {92},
    "row_remap_pending": {63},
    "nvlink_fault": {74, 149},
}
"""The XIDs that state a fault; the gauge shows the last one of a scrape only."""


class _Case:
    """One happening that labels speak of: what it does, and who writes of it."""

    def __init__(self, happening: Happening, scenario: Scenario, world: World) -> None:
        self.start_ms = world.start_ms
        self.effects: Sequence[Effect] = list(happening.effects(world))
        logs = Logs(world.profile, scenario.start, scenario.duration, generator(scenario.seed, "logs"))
        self.lines: Sequence[Event] = list(happening.lines(world, logs))
        self.truths: Sequence[PlacedTruth] = list(happening.truths(world))


def labels_in_world(
    labels: Iterable[Label], scenario: Scenario, world: World, outages: Outages, arrival: Arrival
) -> Iterator[Label]:
    """Yield a recording's labels as they hold in its world; as they are in no world."""
    if world.profile.conditions.seed is None:
        yield from labels
        return
    labels = list(labels)
    cases = [_Case(happening, scenario, world) for happening in scenario.happenings]
    by_id = {placed.truth.id: (case, placed) for case in cases for placed in case.truths}
    for label in labels:
        fields = label.model_dump(exclude_unset=True)
        if not arrival.has("jobs"):
            fields.pop("job_id", None)
        if "job_id" in label.entity and not arrival.names_jobs:
            fields["also"] = [*label.also, *_without_a_name(str(label.entity["job_id"]), scenario, world)]
        if label.id in by_id and not label.distractor:
            case, placed = by_id[label.id]
            fields |= _due(label, case, placed, world, outages, arrival)
            if placed.allows_w is not None and not arrival.has(*_STATES_A_LIMIT):
                fields["fault"] = "straggler"
            if (why := _unseen(label, case, world, arrival) or _part_of_another(label, labels, arrival)) is not None:
                fields |= {"optional": True, "note": f"{label.note}; {why}".lstrip("; ")}
        yield Label.model_validate(fields)
    yield from _unexplained(scenario, world, arrival)


def _without_a_name(job_id: str, scenario: Scenario, world: World) -> list[dict[str, str | int]]:
    """Return by what a job may be named that nothing names: any of its nodes."""
    nodes = [node for spec in scenario.jobs if spec.id == job_id for node in world.nodes(spec.nodes)]
    return [{"node": world.names[node]} for node in nodes]


def _due(
    label: Label, case: _Case, placed: PlacedTruth, world: World, outages: Outages, arrival: Arrival
) -> dict[str, int | float]:
    """Return a label's onset, end and `within_s` by the cadences, clocks and outages of its world."""
    stream = "switch" if "switch" in label.entity else _STREAM.get(label.fault, "dcgm")
    every, usual = _every(world.profile, stream), _every(world.written_for, stream)
    within = placed.truth.within_s + _DUE_READINGS * max(0.0, every - usual)
    gathered = [line for line in case.lines if arrival.has(f"logs.{line.source}")]
    if not gathered and (case.lines or not arrival.whole):
        within = max(within, _UNSTATED_S, _DUE_READINGS * every)
    if not arrival.whole:
        within = max(within, _first_shown_s(label, case, gathered, every, arrival))
    idle = label.fault == "gpu_lost" and label.job_id is None
    if label.fault == "telemetry_gap" or (not gathered and (idle or label.fault == "node_down")):
        within = max(within, _SILENCE_S + _DUE_READINGS * every, _LOST_READINGS * every)
    off = [arrival.skew_s(line.node) for line in gathered if line.node is not None]
    late, early = max([0.0, *off]), -min([0.0, *off])
    begin = (label.onset - world.start_ms) / 1000
    away = outages.away_s(stream, _places(label, placed, world), begin, begin + within)
    onset = max(world.start_ms, label.onset - round(1000 * early))
    end = min(world.start_ms + round(1000 * world.duration_s), label.end + round(1000 * late))
    return {"onset": onset, "end": end, "within_s": round(within + early + late + away, 1)}


def _every(profile: ClusterProfile, stream: str) -> float:
    if stream == "switch" and profile.network is not None:
        return profile.network.switch_interval_s
    return profile.storage_interval_s if stream == "storage" else profile.collector_interval_s


def _places(label: Label, placed: PlacedTruth, world: World) -> set[int]:
    """Return the nodes that a label is of, or its switch, by index."""
    if (switch := label.entity.get("switch")) is not None:
        return {world.fabric.switches.index(str(switch))}
    return set(placed.nodes)


def _shows(effect: Effect, fault: str, case: _Case, every: float, arrival: Arrival) -> bool:
    """Return whether anything that is gathered shows an effect."""
    if not arrival.has(*_SHOWN.get(effect.quantity, ("dcgm",))):
        return False
    if effect.quantity != "gpu.xid":
        return True
    since = effect.course.start
    soon = (other.course.start for other in case.effects if other.quantity == "gpu.xid")
    return effect.size in _CODES.get(fault, {effect.size}) and not any(since < at < since + every for at in soon)


def _first_shown_s(label: Label, case: _Case, gathered: Sequence[Event], every: float, arrival: Arrival) -> float:
    """Return by when an alert is possible, in seconds from the onset: some readings after what shows first."""
    matters = _MATTERS.get(label.fault)
    shown = [
        effect.course.start
        for effect in case.effects
        if (matters is None or effect.quantity in matters) and _shows(effect, label.fault, case, every, arrival)
    ]
    shown += [(line.timestamp - case.start_ms) / 1000 for line in gathered]
    first = min(shown, default=0.0) - (label.onset - case.start_ms) / 1000
    return first + _DUE_READINGS * every if first > 0 else 0.0


def _unseen(label: Label, case: _Case, world: World, arrival: Arrival) -> str | None:
    """Return why nothing that is gathered reflects a label's fault; None where something does."""
    every = _every(world.profile, "dcgm")
    if label.fault == "telemetry_gap":
        quantities = {"node.unheard", "node.frozen", "switch.unheard"}
        spans = [span for one in case.effects if one.quantity in quantities for span in one.course.spans()]
        if max((end - begin for begin, end in spans), default=0.0) < _SILENCE_S + every:
            return "no silence is five minutes long: it is a property and no alert is due"
        return None
    if any(arrival.has(f"logs.{line.source}") for line in case.lines) or label.fault not in _MATTERS:
        return None
    of = [effect for effect in case.effects if effect.quantity in _MATTERS[label.fault]]
    if any(_shows(effect, label.fault, case, every, arrival) for effect in of):
        return None
    return "no reading and no line that is gathered reflects it"


def _part_of_another(label: Label, labels: Iterable[Label], arrival: Arrival) -> str | None:
    """Return which fault's alert speaks of a label's, too: without its flag a remap is a line beside its error's."""
    if label.fault != "row_remap_pending" or arrival.has("DCGM_FI_DEV_ROW_REMAP_PENDING"):
        return None
    beside = (one for one in labels if one.fault == "ecc_uncorrectable" and one.entity == label.entity)
    if any(abs(one.onset - label.onset) <= 1000 * _UNSTATED_S for one in beside):
        return "no flag is gathered: the uncorrectable error that it comes with speaks of it"
    return None


def _unexplained(scenario: Scenario, world: World, arrival: Arrival) -> Iterator[Label]:
    """Yield what may be reported though it was on purpose: a reboot of which no line is gathered looks like a crash."""
    for number, happening in enumerate(scenario.happenings):
        if not isinstance(happening, NodeReboot) or happening.until >= scenario.duration:
            continue
        if not arrival.has("logs.kernel", *(["logs.scheduler"] if happening.drained else [])):
            onset, end = (world.start_ms + round(1000 * at) for at in (happening.at, happening.until))
            yield Label(
                id=f"w-reboot-{number}",
                fault="node_down",
                entity={"node": world.names[world.node(happening.node)]},
                onset=onset,
                end=end,
                within_s=happening.until - happening.at,
                optional=True,
                note="a reboot on purpose, of which nothing that is gathered says so",
            )
