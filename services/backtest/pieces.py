"""A history in pieces: windows of the recordings that it lies in, cluster by cluster."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectors.contract import Instant
from detectors.engine.engine import GRID_MS
from services.backtest.keys import data_of, flaws_key
from services.backtest.results import Results
from services.backtest.windows import Cuts, Window, windows
from services.kit.errors import UsageError
from services.recording.model import Job, Label, Topology
from services.recording.reader import Recording
from services.recording.stretch import stretch_of
from services.recording.tidy import Known, flaws_of, tidied


@dataclass(frozen=True)
class Piece:
    """One window of a history, the recording that it lies in, and the hash of that recording's content."""

    recording: Recording
    data: str
    window: Window
    grid_ms: int = GRID_MS
    """How often detectors decide."""


@dataclass(frozen=True)
class Part:
    """The history of one cluster: its pieces, in order of time, of one recording or of several."""

    cluster: str
    pieces: Sequence[Piece]

    @property
    def begin(self) -> Instant:
        """The first instant of it that is looked at."""
        return self.pieces[0].window.begin

    @property
    def end(self) -> Instant:
        """The instant before which all of it lies."""
        return self.pieces[-1].window.end

    @property
    def recordings(self) -> list[Recording]:
        """Its recordings, each once."""
        return list({piece.data: piece.recording for piece in self.pieces}.values())

    @property
    def topology(self) -> Topology:
        """The machines of all its recordings; of one that is in several, what the last says."""
        named: dict[str, dict[str, Any]] = {"nodes": {}, "switches": {}, "mounts": {}}
        for one in (recording.topology for recording in self.recordings):
            named["nodes"] |= {node.name: node for node in one.nodes}
            named["switches"] |= {switch.name: switch for switch in one.switches}
            named["mounts"] |= {mount.mount: mount for mount in one.mounts}
        return Topology(**{what: list(machines.values()) for what, machines in named.items()})

    def jobs(self) -> list[Job]:
        """Return the jobs of all its recordings; one that is in several has its first start and its last end."""
        found: dict[str, Job] = {}
        for job in (job for recording in self.recordings for job in recording.jobs()):
            known = found.get(job.job_id)
            start = job.start if known is None else min(known.start, job.start)
            found[job.job_id] = job.model_copy(update={"start": start})
        return list(found.values())

    def labels(self) -> list[Label] | None:
        """Return the labels of the time that is looked at; None where nobody has labelled any of it."""
        if not any(recording.labelled for recording in self.recordings):
            return None
        stretches = (stretch_of(one, self.begin, self.end - 1) for one in self.recordings)
        return [label for one in stretches for label in one.labels()]


def opened(path: Path, results: Results, *, strict: bool = False) -> Recording:
    """Return a recording as `open_tidy` does. What is wrong with it is kept in `results`, so that the next run need not
    read all of it only to know.
    """
    recording = Recording.open(path)
    if strict:
        return recording
    key = flaws_key(recording)
    stored = results.get(key)
    known = flaws_of(recording) if stored is None else Known(*stored)
    if stored is None:
        results.put(key, known)
    return tidied(recording, known)


def pieces_of(recording: Recording, cuts: Cuts, asked: tuple[Instant, Instant]) -> list[Piece]:
    """Return the windows of a recording within the time asked for (ms, both included)."""
    lie = windows(cuts, (recording.manifest.start, recording.manifest.end), asked)
    data = data_of(recording) if lie else ""
    return [Piece(recording, data, window, cuts.grid_ms) for window in lie]


def parts_of(pieces: Iterable[Piece]) -> list[Part]:
    """Return the histories of the clusters. UserError (exit code 2): there is none, or recordings of one overlap."""
    found: dict[str, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.window.begin):
        of = found.setdefault(piece.recording.manifest.cluster.name, [])
        if of and of[-1].window.end > piece.window.begin:
            raise UsageError(
                f"{of[-1].recording.path} and {piece.recording.path} are of the same cluster and time",
                remedy="`hindcast merge` puts them together",
            )
        of.append(piece)
    if not found:
        raise UsageError("nothing lies in the time asked for", remedy="see --from and --to")
    return [Part(name, of) for name, of in sorted(found.items())]
