"""Makes a recording from a scenario, a stretch of time after the other, so that memory stays small."""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from services.kit.errors import UserError
from services.recording.model import Job
from services.recording.reader import read_manifest, times_of
from services.recording.writer import RecordingWriter
from services.synth.bmc import BmcModel
from services.synth.collector import beats
from services.synth.dcgm import DcgmModel
from services.synth.job import Run, simulate
from services.synth.labels import labels_of
from services.synth.logs import Logs
from services.synth.power import PowerModel, brakes_of
from services.synth.profile import ClusterProfile
from services.synth.randomness import generator
from services.synth.scenario import HostMemoryError, OldXid, PowerBrake, Scenario, load_scenario
from services.synth.steps import StepsModel
from services.synth.thermal import ThermalModel

LIBRARY = Path(__file__).resolve().parents[2] / "replay-data"
_FORMAT_SOURCES = ("instants.py", "model.py", "schema.py", "writer.py")  # what else decides a recording's bytes
_STRETCH_S = 300.0  # made at a time

Progress = Callable[[float], None]


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


def fingerprint(scenario_path: Path, seed: int | None = None) -> str:
    """Return a hash of all that decides a recording's bytes: scenario, profile, seed, generator, libraries."""
    scenario, _, profile_path = load_scenario(scenario_path)
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parent
    sources = [path for path in sorted(package.glob("*.py")) if not path.name.startswith("test_")]
    sources += [package.parent / "recording" / name for name in _FORMAT_SOURCES]
    for path in (*sources, scenario_path, profile_path):
        digest.update(path.read_bytes())
    digest.update(f"{scenario.seed if seed is None else seed} {np.__version__} {pa.__version__}".encode())
    return digest.hexdigest()


def make_recording(scenario_path: Path, out: Path, seed: int | None = None, progress: Progress | None = None) -> Path:
    """Make the recording of a scenario file in ``out`` and return ``out``.

    The same scenario, profile, seed and code give the same bytes. ``seed`` replaces the scenario's own;
    ``progress`` is told the share done, 0 to 1. UserError: the scenario is wrong, or ``out`` exists already.
    """
    scenario, profile, _ = load_scenario(scenario_path)
    chosen = scenario.seed if seed is None else seed
    made_by = fingerprint(scenario_path, seed)
    faults = scenario.of_kind(PowerBrake)
    brakes = brakes_of(profile, faults)
    power = PowerModel(profile, brakes, generator(chosen, "power"))
    thermal = ThermalModel(profile, generator(chosen, "thermal"))
    runs = [
        simulate(spec, profile, power, generator(chosen, f"job {spec.id}"), scenario.duration) for spec in scenario.jobs
    ]
    with RecordingWriter(out) as writer:
        _write_streams(writer, scenario, profile, (power, thermal), runs, chosen, progress)
        logs = Logs(profile, scenario.start, scenario.duration, generator(chosen, "logs"))
        events = [*logs.power_supply(faults), *logs.host_memory(scenario.of_kind(HostMemoryError)), *logs.background()]
        for run in runs:
            events.extend(logs.job(run))
        end_ms = scenario.start + int(scenario.duration * 1000)
        writer.write_events(event for event in events if scenario.start <= event.timestamp < end_ms)
        writer.write_jobs(_job(scenario, profile, run) for run in runs)
        writer.write_labels(labels_of(scenario, runs, brakes))
        header = {
            "name": scenario.name,
            "title": scenario.title,
            "summary": scenario.summary,
            "origin": "synthetic",
            "source": scenario.source,
            "seed": chosen,
            "generator": {"fingerprint": made_by},
            "start": scenario.start,
            "end": end_ms,
            "cluster": {"name": profile.name},
        }
        writer.finish(header, profile.topology())
    return out


def _write_streams(
    writer: RecordingWriter,
    scenario: Scenario,
    profile: ClusterProfile,
    physics: tuple[PowerModel, ThermalModel],
    runs: list[Run],
    seed: int,
    progress: Progress | None,
) -> None:
    faults, start = scenario.of_kind(PowerBrake), scenario.start
    power, thermal = physics
    xids = scenario.of_kind(OldXid)
    dcgm = DcgmModel(profile, power, thermal, runs, xids, generator(seed, "dcgm"))
    bmc = BmcModel(profile, power, thermal, runs, faults, generator(seed, "bmc"))
    steps = [StepsModel(run, profile, start, generator(seed, f"steps {run.spec.id}")) for run in runs]
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
        if progress is not None:
            progress(end / scenario.duration)


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


def scenario_paths() -> dict[str, Path]:
    """Return the scenario files of the library by name."""
    return {path.parent.name: path for path in sorted(LIBRARY.glob("*/scenario.yaml"))}


def find_scenario(name: str) -> Path:
    """Return the file of a scenario given by name or path; UserError if there is none."""
    path = Path(name)
    if path.is_dir() and (path / "scenario.yaml").exists():
        return path / "scenario.yaml"
    if path.is_file():
        return path
    found = scenario_paths()
    if name not in found:
        raise UserError(f"no scenario {name!r}", remedy=f"there are: {', '.join(found) or 'none'}", exit_code=2)
    return found[name]


def cache_dir() -> Path:
    """Return the folder of made recordings: ``$XDG_CACHE_HOME/hindcast/recordings``, or below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hindcast" / "recordings"


def is_made(scenario_path: Path, out: Path, seed: int | None = None) -> bool:
    """Return whether ``out`` already holds what making the scenario would give."""
    if not (out / "recording.yaml").exists():
        return False
    made_by = (read_manifest(out).model_extra or {}).get("generator")
    return isinstance(made_by, dict) and made_by.get("fingerprint") == fingerprint(scenario_path, seed)


@dataclass(frozen=True)
class Made:
    """A recording that is there now, and whether it was there before."""

    path: Path
    cached: bool


def ensure_recording(
    scenario: str, out: Path | None = None, seed: int | None = None, progress: Progress | None = None
) -> Made:
    """Make the recording of a scenario (name or file) unless ``out`` already holds just that.

    Without ``out`` it goes to the cache, where an outdated one of the same name is replaced. UserError: ``out`` is
    given and holds something else.
    """
    path = find_scenario(scenario)
    target = out or cache_dir() / load_scenario(path)[0].name
    if is_made(path, target, seed):
        return Made(target, cached=True)
    if out is not None:
        return Made(make_recording(path, target, seed, progress), cached=False)
    staged = target.with_name(f".{target.name}.{os.getpid()}.made")
    shutil.rmtree(staged, ignore_errors=True)
    make_recording(path, staged, seed, progress)
    if not is_made(path, target, seed):  # another process may have been quicker
        outdated = target.with_name(f".{target.name}.{os.getpid()}.outdated")
        if target.exists():
            target.rename(outdated)
        staged.rename(target)
        shutil.rmtree(outdated, ignore_errors=True)
    shutil.rmtree(staged, ignore_errors=True)
    return Made(target, cached=False)


def cached_recording(name: str) -> Path:
    """Return the recording of a scenario of the library from the cache; make it first if it is not there."""
    return ensure_recording(name).path
