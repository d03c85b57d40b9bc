"""What a result depends on, as a hash: the data, the detector's configuration and code, and the code that all share.

A detector whose folder or setting is changed has other keys, and nobody else has; a change of what detectors share (the
engine, jobs, the core) changes them all.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from detectors.engine.engine import Choice
from detectors.registry import discover
from services.backtest.windows import Window
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.writer import sha256_of

_SHARED = (("services.kit", "columns.py"), ("services.backtest", "work.py"))
"""Beside `detectors` and `services.recording`: what reads a recording and hands it to the engine."""
_CODE = (".py", ".yaml")
_DOCUMENTS = ("events.jsonl", "jobs.jsonl", "topology.json")


def hash_of(value: Any) -> str:
    """Return the SHA-256, in hex, of what JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@cache
def shared_code() -> str:
    """Return the hash of the code that all detectors' results depend on."""
    roots = (resources.files(package) for package in ("detectors", "detectors.core", "services.recording"))
    files = [file for root in roots for file in _files(root)]
    return _hashed([*files, *(resources.files(package) / name for package, name in _SHARED)])


@cache
def code_of(detector: str) -> str:
    """Return the hash of a detector's own code and data."""
    return _hashed(_files(resources.files(f"detectors.{detector}")))


def _files(folder: Traversable) -> list[Traversable]:
    found = [one for one in folder.iterdir() if one.is_file() and one.name.endswith(_CODE)]
    apart = ("test_", "rules", "examples", "conftest")
    return sorted((one for one in found if not one.name.startswith(apart)), key=lambda one: one.name)


def _hashed(files: Iterable[Traversable]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


def data_of(recording: Recording) -> str:
    """Return the hash of a recording's content, its labels apart: they change no finding."""
    manifest = recording.manifest
    intervals = {name: info.interval_s for name, info in sorted(manifest.streams.items())}
    known = {"start": manifest.start, "end": manifest.end, "cluster": manifest.cluster.name, "intervals": intervals}
    return hash_of([known, recording.left_out, _content_of(recording)])


def flaws_key(recording: Recording) -> str:
    """Return the key of what is wrong with a recording, of which its labels are a part."""
    labels = _content_of(recording, ("labels.jsonl",))
    return hash_of(["flaws", shared_code(), data_of(recording), labels])


def _content_of(recording: Recording, documents: Sequence[str] = _DOCUMENTS) -> dict[str, str]:
    streams = (STREAMS[name].file for name in recording.streams())
    paths = (recording.path / name for name in (*streams, *documents))
    return {path.name: _content(path, path.stat().st_mtime_ns) for path in paths if path.is_file()}


@cache
def _content(path: Path, _changed_ns: int) -> str:
    return sha256_of(path)


def detector_key(choice: Choice, data: str, window: Window, grid_ms: int) -> str:
    """Return the key of what one detector finds in a window; whether it is in shadow changes nothing of that."""
    kind, config = choice
    name = kind.spec.name
    own = code_of(name) if name in discover() else ""
    settings = config.model_dump(mode="json")
    return hash_of(["detector", name, shared_code(), own, settings, data, grid_ms, _span(window)])


def days_key(data: str, window: Window) -> str:
    """Return the key of how many node-days of telemetry a window has."""
    return hash_of(["node-days", shared_code(), data, _span(window)])


def rules_key(files: Sequence[Path], settings: Sequence[str], evaluator: Path, data: str, window: Window) -> str:
    """Return the key of what rule files fire in a window. UserError is left to who reads them."""
    texts = [sha256_of(file) for file in files]
    return hash_of(["rules", texts, list(settings), sha256_of(evaluator), shared_code(), data, _span(window)])


def _span(window: Window) -> list[int]:
    return [window.read_from, window.begin, window.end, window.read_to]
