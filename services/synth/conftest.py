"""A small cluster and a short story, made once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from services.recording.reader import Recording
from services.synth.make import make_recording
from services.synth.physics.effects import Floats
from tests.small import braked_vela, written

NODES, GPUS = 4, 2
BRAKE_AT, BRAKE_UNTIL = 300.0, 450.0
CAP_W = 150.0
BRAKED = "t02"

Write = Callable[..., Path]


def _profile() -> dict[str, Any]:
    _, content = braked_vela()
    content |= {"name": "tiny", "nodes": NODES, "node_name": "t{:02d}", "nodes_per_rack": 2}
    content["node"]["gpus"] = GPUS
    return content


def _scenario() -> dict[str, Any]:
    content, _ = braked_vela()
    training = content["jobs"][0]["training"]
    training |= {"launch_s": 10, "load_s": 10, "warm_up": [3.0, 1.5], "checkpoint_every": 38, "checkpoint_s": 20}
    training["log_every"] = 5
    content["jobs"][0] |= {"submit": "+00:00:20", "start": "+00:00:30"}
    brake = content["happenings"][0] | {"node": BRAKED, "at": "+00:05:00", "until": "+00:07:30", "gpu_cap_w": CAP_W}
    content |= {"name": "tiny-brake", "profile": "tiny", "duration": "+00:10:00", "seed": 7}
    content |= {"happenings": [brake], "distractors": []}
    return content


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the small scenario and profile, changed as asked, and return the scenario's path."""

    def files(scenario: dict[str, Any] | None = None, profile: dict[str, Any] | None = None) -> Path:
        return write_files(tmp_path, scenario, profile)

    return files


def write_files(folder: Path, scenario: dict[str, Any] | None = None, profile: dict[str, Any] | None = None) -> Path:
    return written(folder, _scenario() | (scenario or {}), _profile() | (profile or {}))


class Telemetry:
    """A made recording's streams as whole tables, with times in seconds since its start."""

    def __init__(self, path: Path) -> None:
        self.recording = Recording.open(path)
        self._tables = {
            stream: pa.Table.from_batches(self.recording.batches(stream)).unify_dictionaries()
            for stream in self.recording.streams()
        }

    def table(self, stream: str) -> pa.Table:
        return self._tables[stream]

    def seconds(self, stream: str) -> Floats:
        times = self._tables[stream]["timestamp"].cast(pa.int64()).to_numpy()
        return np.asarray((times - self.recording.manifest.start) / 1000, dtype=np.float64)

    def column(self, stream: str, name: str) -> Floats:
        column = self._tables[stream][name]
        return np.asarray(column.to_numpy())

    def dcgm(self, field: str, begin: float, end: float, node: str | None = None, *, but: str | None = None) -> Floats:
        """Values of a field in a stretch, of one node, or of all nodes but one."""
        seconds, nodes = self.seconds("dcgm"), np.array(self.column("dcgm", "node"))
        pick = (seconds >= begin) & (seconds < end)
        if node is not None:
            pick &= nodes == node
        if but is not None:
            pick &= nodes != but
        return self.column("dcgm", field)[pick]

    def of(self, field: str, node: str, gpu: int, begin: float = 0.0, end: float = np.inf) -> Floats:
        """Values of a field of one GPU in a stretch."""
        seconds = self.seconds("dcgm")
        pick = (seconds >= begin) & (seconds < end) & self.rows_of(node, gpu)
        return np.asarray(self.column("dcgm", field)[pick])

    def rows_of(self, node: str, gpu: int) -> NDArray[np.bool_]:
        """Which rows are of one GPU."""
        return np.asarray((self.column("dcgm", "node") == node) & (self.column("dcgm", "gpu") == gpu))


def made_of(folder: Path, happenings: list[Any]) -> Telemetry:
    """Return the small story's recording with other happenings."""
    return Telemetry(make_recording(write_files(folder, {"happenings": happenings}), folder / "out" / "tiny-brake"))


@pytest.fixture(scope="session")
def brake(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    """The small story's recording: a job from 30 s on, t02 braked from 302 s to 452 s."""
    folder = tmp_path_factory.mktemp("synth")
    return Telemetry(make_recording(write_files(folder), folder / "out" / "tiny-brake"))
