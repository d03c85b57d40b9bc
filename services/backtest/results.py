"""What windows came to, kept by key in a folder: a run that was broken off, or comes again, takes what is there."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from detectors.contract import Finding
from services.kit.durable import replace_file


class Results:
    """A folder of results by key; one that is damaged counts as missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> Any | None:
        """Return what is kept under a key; None where there is nothing that can be read."""
        try:
            return json.loads(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None

    def put(self, key: str, value: Any) -> None:
        """Keep what JSON can say under a key; it is there whole or not at all."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [json.dumps(value, separators=(",", ":")).encode()])

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings as JSON can say them, without loss."""
    return [asdict(finding) for finding in findings]


def from_json(stored: Sequence[dict[str, Any]]) -> list[Finding]:
    """Return what `to_json` was given."""
    return [Finding(**one) for one in stored]
