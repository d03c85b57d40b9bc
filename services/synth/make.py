"""Makes a recording from a scenario, a stretch of time after the other, so that memory stays small."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from services.kit.errors import UsageError
from services.recording.model import Job
from services.recording.reader import times_of
from services.recording.writer import RecordingWriter
from services.synth.cluster.habits import habits
from services.synth.cluster.profile import ClusterProfile, load_profile
from services.synth.cluster.world import World
from services.synth.cluster.worlds import TABLE, changes_to, draw
from services.synth.jobs.background_jobs import jobs_of
from services.synth.jobs.job import Run
from services.synth.jobs.job_timeline import JobTimeline
from services.synth.logs.lines import Logs
from services.synth.physics import network_felt, nvlink, pcie, storage
from services.synth.physics.caps import caps_of
from services.synth.physics.effects import Effect, Effects
from services.synth.physics.overheating import heat_limits
from services.synth.physics.power import PowerModel
from services.synth.physics.storage import StorageModel
from services.synth.physics.thermal import ThermalModel
from services.synth.randomness import generator
from services.synth.story.background import with_company
from services.synth.story.labels import labels_of
from services.synth.story.scenario import Scenario, load_scenario
from services.synth.story.world_labels import labels_in_world
from services.synth.telemetry.arrival import Arrival
from services.synth.telemetry.bmc import BmcModel
from services.synth.telemetry.collector import Beats, beats, from_the_living, heard_in_band
from services.synth.telemetry.counters import Ports
from services.synth.telemetry.dcgm import DcgmModel
from services.synth.telemetry.outages import Outages, outages_of
from services.synth.telemetry.steps import StepsModel

_FORMAT_SOURCES = ("instants.py", "model.py", "schema.py", "writer.py")  # what else decides a recording's bytes
_STRETCH_S = 300.0  # made at a time
LEAST_SCALE, MOST_SCALE = 0.02, 10.0
MOST_SEED = 2**32 - 1
"""Of seeds and of numbers of worlds: ten digits, as they are part of names."""

Progress = Callable[[float], None]
FELT: tuple[Callable[[World, Effects], Iterable[Effect]], ...] = (
    pcie.felt,
    nvlink.felt,
    network_felt.felt,
    storage.felt,
)
"""What each piece of physics adds when asked what of the effects jobs feel: PCIe, NVLink, the network, storage."""


@dataclass(frozen=True)
class Variant:
    """What is made otherwise than the scenario says: another seed, size, cluster, length, DCGM interval, noise, world.

    `noise` is times the scatter of readings and of steps, and how often scrapes go missing or give old values. `world`
    is the number of a world (`worlds.py`); None: none, all as it is written. UserError: a number is out of its range.
    """

    seed: int | None = None
    scale: float = 1.0
    profile: Path | None = None
    duration_s: float | None = None
    interval_s: float | None = None
    noise: float = 1.0
    world: int | None = None

    def __post_init__(self) -> None:
        """Refuse what nothing can be made of."""
        for what, value, least, most in (
            ("seed", self.seed, 0, MOST_SEED),
            ("scale", self.scale, LEAST_SCALE, MOST_SCALE),
            ("world", self.world, 1, MOST_SEED),
        ):
            if value is not None and not least <= value <= most:
                raise UsageError(f"{what} {value} is out of range", remedy=f"give {least} to {most}")

    @property
    def suffix(self) -> str:
        """Return what its recording has otherwise than the scenario's own, as part of a name; empty if nothing."""
        parts = {
            "seed": self.seed,
            "scale": None if self.scale == 1.0 else self.scale,
            "on": None if self.profile is None else self.profile.stem,
            "for": self.duration_s,
            "every": self.interval_s,
            "noise": None if self.noise == 1.0 else self.noise,
            "world": self.world,
        }
        named = [
            f"{name}-{value:g}" if isinstance(value, float) else f"{name}-{value}"
            for name, value in parts.items()
            if value is not None
        ]
        return "".join(f"-{part}" for part in named).replace(".", "-")


AS_WRITTEN = Variant()


def scenario_and_world(path: Path, variant: Variant = AS_WRITTEN) -> tuple[Scenario, World]:
    """Return a scenario and the cluster it is made on. UserError names the file and every field that is wrong."""
    scenario, written_for, _ = load_scenario(path, variant.seed)
    profile = written_for if variant.profile is None else load_profile(variant.profile)
    changed: dict[str, Any] = {"nodes": max(profile.fewest_nodes, round(profile.nodes * variant.scale))}
    ratio = changed["nodes"] / profile.nodes
    changed["storage"] = [mount.scaled(ratio).model_dump() for mount in profile.storage]
    interval = variant.interval_s or scenario.interval_s
    if interval is not None:
        changed["collector_interval_s"] = interval
    for scatter in ("noise", "missing_scrapes", "repeated_scrapes"):
        changed[scatter] = variant.noise * getattr(profile, scatter)
    profile = ClusterProfile.model_validate(profile.model_dump() | changed)
    in_world = changes_to(profile, draw(variant.world), variant.interval_s)
    profile = ClusterProfile.model_validate(profile.model_dump() | in_world)
    if variant.duration_s is not None:
        scenario = scenario.model_copy(update={"duration": variant.duration_s})
    jobs = [spec.nodes for spec in scenario.jobs if isinstance(spec.nodes, str)]
    world = World(profile, written_for, scenario.start, scenario.duration, jobs)
    return with_company(scenario, world), world


def cluster_that_fits(path: Path, variant: Variant = AS_WRITTEN) -> tuple[Scenario, World]:
    """Return a scenario and its cluster, before anything is made of them; UserError where it names more nodes too."""
    scenario, world = scenario_and_world(path, variant)
    logs = Logs(world.profile, scenario.start, scenario.duration, generator(scenario.seed, "logs"))
    jobs_of(scenario, world, scenario.seed)
    for happening in scenario.happenings:
        list(happening.effects(world))
        list(happening.lines(world, logs))
    for distractor in scenario.distractors:
        if "node" in distractor.entity:
            world.node(str(distractor.entity["node"]))
    return scenario, world


class _Ordered:
    """Rows of one stream on their way to the writer: released in order once no earlier row can follow."""

    def __init__(self, writer: RecordingWriter, stream: str, interval_s: float | None) -> None:
        self._writer, self._stream, self._interval = writer, stream, interval_s
        self._waiting: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch | None) -> None:
        if batch is not None and batch.num_rows:
            self._waiting.append(batch)

    def release(self, before_ms: int) -> None:
        """Write all waiting rows with a timestamp before this one."""
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting).unify_dictionaries().combine_chunks().to_batches()[0]
        order = np.argsort(times_of(rows), kind="stable")
        if np.any(np.diff(order) < 0):
            rows = rows.take(order)
        cut = int(np.searchsorted(times_of(rows), before_ms, side="left"))
        if cut:
            self._writer.write(self._stream, rows.slice(0, cut), interval_s=self._interval)
        self._waiting = [rows.slice(cut)] if cut < rows.num_rows else []


def fingerprint(scenario_path: Path, variant: Variant = AS_WRITTEN) -> str:
    """Return a hash of all that decides a recording's bytes: scenario, profile, variant, generator, libraries."""
    scenario, _, profile_path = load_scenario(scenario_path, variant.seed)
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parent
    sources = [path for path in sorted(package.rglob("*.py")) if not path.name.startswith(("test_", "conftest"))]
    sources += [package.parent / "recording" / name for name in _FORMAT_SOURCES]
    for path in (*sources, TABLE, scenario_path, variant.profile or profile_path):
        digest.update(path.read_bytes())
    digest.update(scenario.model_dump_json().encode())  # with all that it takes from presets
    made_otherwise = (variant.scale, variant.duration_s, variant.interval_s, variant.noise, variant.world)
    digest.update(f"{scenario.seed} {made_otherwise} {np.__version__} {pa.__version__}".encode())
    return digest.hexdigest()


def make_recording(
    scenario_path: Path,
    out: Path,
    variant: Variant = AS_WRITTEN,
    progress: Progress | None = None,
    *,
    name: str | None = None,
) -> Path:
    """Make the recording of a scenario file in ``out`` and return ``out``.

    The same scenario, profile, variant and code give the same bytes. ``progress`` is given the share done, 0 to 1.
    UserError: the scenario is wrong, or ``out`` exists already.
    """
    scenario, world = scenario_and_world(scenario_path, variant)
    made_by, seed = fingerprint(scenario_path, variant), scenario.seed
    outages, arrival = outages_of(world, seed), Arrival(world.profile.conditions, world.names)
    effects = Effects(effect for happening in scenario.happenings for effect in happening.effects(world))
    effects = effects.and_also(habits(world, outages, seed))
    for felt in FELT:
        effects = effects.and_also(felt(world, effects))
    power = PowerModel(world.profile, caps_of(world.profile, effects), generator(seed, "power"))
    thermal = ThermalModel(world.profile, effects, generator(seed, "thermal"))
    power.caps += heat_limits(world.profile, thermal, power, scenario.duration)
    stage = JobTimeline(jobs_of(scenario, world, seed), world, power, effects, seed)
    logs = Logs(world.profile, scenario.start, scenario.duration, generator(seed, "logs"))
    with RecordingWriter(out) as writer:
        events = [event for happening in scenario.happenings for event in happening.lines(world, logs)]
        events.extend(logs.background())
        jobs = []
        for run in _write_streams(writer, scenario, world, stage, effects, power, thermal, outages, arrival, progress):
            events.extend(logs.job(run))
            jobs.append(_job(scenario, world.profile, run))
        end_ms = scenario.start + int(scenario.duration * 1000)
        events = list(arrival.events(from_the_living(events, world, effects)))
        writer.write_events(event for event in events if scenario.start <= event.timestamp < end_ms)
        if arrival.has("jobs"):
            writer.write_jobs(sorted(jobs, key=lambda job: (job.start, job.job_id)))
        hot = {hold.node for hold in power.caps if hold.thermal}
        labels = labels_of(scenario, world, stage.finished, hot)
        writer.write_labels(labels_in_world(labels, scenario, world, outages, arrival))
        header = {
            "name": name or scenario.name,
            "title": scenario.title,
            "summary": scenario.summary,
            "origin": "synthetic",
            "source": scenario.source,
            "seed": seed,
            "generator": {"fingerprint": made_by},
            "start": scenario.start,
            "end": end_ms,
            "cluster": {"name": world.profile.name},
            **arrival.document(),
        }
        writer.finish(header, world.profile.topology())
    return out


def _write_streams(
    writer: RecordingWriter,
    scenario: Scenario,
    world: World,
    stage: JobTimeline,
    effects: Effects,
    power: PowerModel,
    thermal: ThermalModel,
    outages: Outages,
    arrival: Arrival,
    progress: Progress | None,
) -> Iterable[Run]:
    """Write every stream, stretch by stretch; yield each job's run when it is over, or the recording is."""
    profile, start, seed = world.profile, scenario.start, scenario.seed
    dcgm = DcgmModel(profile, power, thermal, stage.workload, effects, generator(seed, "dcgm"))
    bmc = BmcModel(profile, power, thermal, stage.workload, effects, generator(seed, "bmc"))
    steps: list[StepsModel] = []
    gathered = _Gathered(profile, seed, scenario.duration, outages)
    scrapes = gathered("dcgm", profile.nodes, profile.collector_interval_s, stale=profile.repeated_scrapes)
    scrapes = heard_in_band(scrapes, effects)
    polls = gathered("bmc", profile.nodes, profile.bmc_interval_s)
    mounts = StorageModel(profile, stage.workload, effects, generator(seed, "storage"))
    asked = heard_in_band(gathered("storage", profile.nodes, profile.storage_interval_s), effects)
    network = None if profile.fabric is None else _Network(profile, stage, effects, seed, gathered)
    outputs = {
        "dcgm": _Ordered(writer, "dcgm", profile.collector_interval_s),
        "bmc": _Ordered(writer, "bmc", profile.bmc_interval_s),
        "steps": _Ordered(writer, "steps", None),
        "storage": _Ordered(writer, "storage", profile.storage_interval_s),
    }
    outputs |= {} if network is None else network.outputs(writer)
    stretch = max(_STRETCH_S, profile.bmc_interval_s)
    for number in range(int(np.ceil(scenario.duration / stretch))):
        begin, end = number * stretch, min((number + 1) * stretch, scenario.duration)
        steps += [StepsModel(run, profile, start, generator(seed, f"steps {run.spec.id}")) for run in stage.upto(end)]
        here = scrapes.between(*_ticks(begin, end, profile.collector_interval_s))
        if len(here.times):
            outputs["dcgm"].add(arrival.rows("dcgm", dcgm.rows(here, start)))
        polled = polls.between(*_ticks(begin, end, profile.bmc_interval_s))
        if len(polled.times) and arrival.has("bmc"):
            first, _ = _ticks(begin, end, profile.collector_interval_s)
            outputs["bmc"].add(bmc.rows(polled, dcgm.hottest, first, start))
        clients = asked.between(*_ticks(begin, end, profile.storage_interval_s))
        if len(clients.times):
            outputs["storage"].add(mounts.rows(clients, start))
        if network is not None:
            for stream, rows in network.rows(begin, end, start):
                outputs[stream].add(rows)
        for model in steps:
            outputs["steps"].add(arrival.rows("steps", model.rows(begin, end)))
        for output in outputs.values():
            output.release(start + int(end * 1000))
        yield from stage.clear(end)
        steps = [model for model in steps if any(model.of(run) for run in stage.workload.runs)]
        if progress is not None:
            progress(end / scenario.duration)
    yield from stage.clear(np.inf)


def _ticks(begin: float, end: float, every: float) -> tuple[int, int]:
    """Return which ticks lie in a stretch (the last not included): those that are over by its end."""
    first, last = (int(np.floor(at / every + 1e-9)) for at in (begin, end))
    return first, last


@dataclass(frozen=True)
class _Gathered:
    """Makes the times at which a stream is asked for, by its name."""

    profile: ClusterProfile
    seed: int
    duration_s: float
    outages: Outages

    def __call__(self, stream: str, count: int, interval_s: float, stale: float = 0.0) -> Beats:
        asked = beats(
            count,
            self.duration_s,
            interval_s,
            generator(self.seed, f"collector {stream}"),
            missing=self.profile.missing_scrapes,
            stale=stale,
            jitter_s=self.profile.conditions.number("collector.jitter_s"),
        )
        return Beats(asked.times, asked.kept & self.outages.kept(stream, asked.times), asked.stale)


class _Network:
    """The nic and switch streams of a cluster that has a network."""

    def __init__(
        self, profile: ClusterProfile, stage: JobTimeline, effects: Effects, seed: int, gathered: _Gathered
    ) -> None:
        fabric = profile.fabric
        if fabric is None:
            raise ValueError(f"{profile.name}: has no network")
        settings = fabric.network
        self._ports = Ports(profile, fabric, stage.workload, effects, seed)
        self._every = {"nic": settings.nic_interval_s, "switch": settings.switch_interval_s}
        asked = {
            stream: gathered(stream, count, self._every[stream])
            for stream, count in (("nic", len(fabric.machines)), ("switch", len(fabric.switches)))
        }
        self._asked = asked | {"nic": heard_in_band(asked["nic"], effects)}

    def outputs(self, writer: RecordingWriter) -> dict[str, _Ordered]:
        """Return where its streams go."""
        return {stream: _Ordered(writer, stream, every) for stream, every in self._every.items()}

    def rows(self, begin: float, end: float, start_ms: int) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Yield the rows of a stretch."""
        self._ports.advance(begin, end)
        for stream, make in (("nic", self._ports.nics), ("switch", self._ports.switches)):
            here = self._asked[stream].between(*_ticks(begin, end, self._every[stream]))
            if len(here.times):
                yield stream, make(here, start_ms)


def _job(scenario: Scenario, profile: ClusterProfile, run: Run) -> Job:
    spec = run.spec
    nodes = [profile.node_names[node] for node in run.nodes]
    part = {} if spec.gpus is None else {"gpus": _parts(nodes, run, profile.node.gpus)}
    return Job(
        job_id=spec.id,
        name=spec.name,
        user=spec.user,
        nodes=nodes,
        gpus_per_node=len(run.gpus) // len(run.nodes),
        submit=scenario.start + int(spec.submit * 1000),
        start=scenario.start + int(spec.start * 1000),
        end=None if run.ended is None else scenario.start + int(run.end * 1000),
        state=run.state,
        ranks={"layout": "node-major"},
        **part,
    )


def _parts(nodes: list[str], run: Run, per_node: int) -> dict[str, list[int]]:
    """Return which GPUs a job has of each node."""
    return {name: [int(gpu) % per_node for gpu in run.gpus[run.place == place]] for place, name in enumerate(nodes)}
