"""Makes a recording from a scenario, a stretch of time after the other, so that memory stays small."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from services.recording.model import Job
from services.recording.reader import times_of
from services.recording.writer import RecordingWriter
from services.synth.bmc import BmcModel
from services.synth.collector import beats
from services.synth.dcgm import DcgmModel
from services.synth.effects import Effect, Effects
from services.synth.job import Run
from services.synth.labels import labels_of
from services.synth.logs import Logs
from services.synth.power import PowerModel, caps_of
from services.synth.profile import ClusterProfile, load_profile
from services.synth.randomness import generator
from services.synth.scenario import Scenario, load_scenario
from services.synth.stage import Stage
from services.synth.steps import StepsModel
from services.synth.thermal import ThermalModel
from services.synth.world import World

_FORMAT_SOURCES = ("instants.py", "model.py", "schema.py", "writer.py")  # what else decides a recording's bytes
_STRETCH_S = 300.0  # made at a time

Progress = Callable[[float], None]
FELT: tuple[Callable[[World, Effects], Iterable[Effect]], ...] = ()
"""What each piece of physics adds when asked what of the effects jobs feel: PCIe, NVLink, the network, storage."""


@dataclass(frozen=True)
class Variant:
    """What is made otherwise than the scenario says: another seed, size, cluster, length, or DCGM interval."""

    seed: int | None = None
    scale: float = 1.0
    profile: Path | None = None
    duration_s: float | None = None
    interval_s: float | None = None

    @property
    def suffix(self) -> str:
        """Return what tells its recording from the scenario's own, as part of a name; empty if nothing differs."""
        parts = {
            "seed": self.seed,
            "scale": None if self.scale == 1.0 else self.scale,
            "on": None if self.profile is None else self.profile.stem,
            "for": self.duration_s,
            "every": self.interval_s,
        }
        named = [
            f"{name}-{value:g}" if isinstance(value, float) else f"{name}-{value}"
            for name, value in parts.items()
            if value is not None
        ]
        return "".join(f"-{part}" for part in named).replace(".", "-")


AS_WRITTEN = Variant()


def stage_of(path: Path, variant: Variant = AS_WRITTEN) -> tuple[Scenario, World]:
    """Return a scenario and the cluster it is made on. UserError names the file and every field that is wrong."""
    scenario, written_for, _ = load_scenario(path, variant.seed)
    profile = written_for if variant.profile is None else load_profile(variant.profile)
    changed: dict[str, object] = {"nodes": max(1, round(profile.nodes * variant.scale))}
    if variant.interval_s is not None:
        changed["collector_interval_s"] = variant.interval_s
    profile = ClusterProfile.model_validate(profile.model_dump() | changed)
    if variant.duration_s is not None:
        scenario = scenario.model_copy(update={"duration": variant.duration_s})
    return scenario, World(profile, written_for, scenario.start, scenario.duration)


class _Ordered:
    """Rows of one stream on their way to the writer: released in order once no earlier row can follow."""

    def __init__(self, writer: RecordingWriter, stream: str, interval_s: float | None) -> None:
        self._writer, self._stream, self._interval = writer, stream, interval_s
        self._waiting: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
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
    for path in (*sources, scenario_path, variant.profile or profile_path):
        digest.update(path.read_bytes())
    made_otherwise = (variant.scale, variant.duration_s, variant.interval_s)
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

    The same scenario, profile, variant and code give the same bytes. ``progress`` is told the share done, 0 to 1.
    UserError: the scenario is wrong, or ``out`` exists already.
    """
    scenario, world = stage_of(scenario_path, variant)
    made_by, seed = fingerprint(scenario_path, variant), scenario.seed
    effects = Effects(effect for happening in scenario.happenings for effect in happening.effects(world))
    for felt in FELT:
        effects = effects.and_also(felt(world, effects))
    power = PowerModel(world.profile, caps_of(world.profile, effects), generator(seed, "power"))
    stage = Stage(scenario, world, power, effects, seed)
    logs = Logs(world.profile, scenario.start, scenario.duration, generator(seed, "logs"))
    with RecordingWriter(out) as writer:
        events = [event for happening in scenario.happenings for event in happening.lines(world, logs)]
        events.extend(logs.background())
        jobs = []
        for run in _write_streams(writer, scenario, world, stage, effects, power, progress):
            events.extend(logs.job(run))
            jobs.append(_job(scenario, world.profile, run))
        end_ms = scenario.start + int(scenario.duration * 1000)
        writer.write_events(event for event in events if scenario.start <= event.timestamp < end_ms)
        writer.write_jobs(jobs)
        writer.write_labels(labels_of(scenario, world, stage.finished))
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
        }
        writer.finish(header, world.profile.topology())
    return out


def _write_streams(
    writer: RecordingWriter,
    scenario: Scenario,
    world: World,
    stage: Stage,
    effects: Effects,
    power: PowerModel,
    progress: Progress | None,
) -> Iterable[Run]:
    """Write every stream, stretch by stretch; yield each job's run when it begins."""
    profile, start, seed = world.profile, scenario.start, scenario.seed
    thermal = ThermalModel(profile, generator(seed, "thermal"))
    dcgm = DcgmModel(profile, power, thermal, stage.workload, effects, generator(seed, "dcgm"))
    bmc = BmcModel(profile, power, thermal, stage.workload, effects, generator(seed, "bmc"))
    steps: list[StepsModel] = []
    scrapes = beats(
        profile.nodes,
        scenario.duration,
        profile.collector_interval_s,
        generator(seed, "collector dcgm"),
        missing=profile.missing_scrapes,
        stale=profile.repeated_scrapes,
    )
    polls = beats(
        profile.nodes,
        scenario.duration,
        profile.bmc_interval_s,
        generator(seed, "collector bmc"),
        missing=profile.missing_scrapes,
        stale=0.0,
    )
    outputs = {
        "dcgm": _Ordered(writer, "dcgm", profile.collector_interval_s),
        "bmc": _Ordered(writer, "bmc", profile.bmc_interval_s),
        "steps": _Ordered(writer, "steps", None),
    }
    stretch = max(_STRETCH_S, profile.bmc_interval_s)
    ticks, minutes = round(stretch / profile.collector_interval_s), round(stretch / profile.bmc_interval_s)
    for number in range(int(np.ceil(scenario.duration / stretch))):
        begin, end = number * stretch, min((number + 1) * stretch, scenario.duration)
        for run in stage.upto(end):
            steps.append(StepsModel(run, profile, start, generator(seed, f"steps {run.spec.id}")))
            yield run
        here = scrapes.between(number * ticks, (number + 1) * ticks)
        if len(here.times):
            outputs["dcgm"].add(dcgm.rows(here, start))
        polled = polls.between(number * minutes, (number + 1) * minutes)
        if len(polled.times):
            outputs["bmc"].add(bmc.rows(polled, dcgm.hottest, number * ticks, start))
        for model in steps:
            outputs["steps"].add(model.rows(begin, end))
        for output in outputs.values():
            output.release(start + int(end * 1000))
        stage.clear(end)
        steps = [model for model in steps if any(model.of(run) for run in stage.workload.runs)]
        if progress is not None:
            progress(end / scenario.duration)
    stage.clear(np.inf)


def _job(scenario: Scenario, profile: ClusterProfile, run: Run) -> Job:
    spec = run.spec
    over = spec.end is not None and spec.end <= scenario.duration
    return Job(
        job_id=spec.id,
        name=spec.name,
        user=spec.user,
        nodes=[profile.node_names[node] for node in run.nodes],
        gpus_per_node=profile.node.gpus,
        submit=scenario.start + int(spec.submit * 1000),
        start=scenario.start + int(spec.start * 1000),
        end=scenario.start + int(spec.end * 1000) if spec.end is not None and over else None,
        state="COMPLETED" if over else "RUNNING",
        ranks={"layout": "node-major"},
    )
