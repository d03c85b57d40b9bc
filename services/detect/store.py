"""Snapshots on disk: one file a unit, with the offsets it belongs to, replaced atomically."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from detectors.engine.state import StateError, pack, unpack
from services.kit.durable import replace_file, state_folder

_SUFFIX = ".state"


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known of a unit when all records before `offsets` (next offset by topic) have been taken."""

    unit: str
    generation: int
    offsets: Mapping[str, int]
    warm: str
    """Findings of the warm-up that are held back, as JSON."""
    announced: bool
    """Whether the unit was in the directory of replays: it is forgotten when it is there no more."""
    engine: bytes


class SnapshotStore:
    """A directory of snapshots. Raises UserError (exit code 2) if it cannot be written to.

    `topics` identifies the topics that the offsets are of, id by name.
    """

    def __init__(self, directory: Path, topics: Mapping[str, str]) -> None:
        self._directory = state_folder(directory, "HINDCAST_DETECT_STATE_DIR")
        self._topics = dict(topics)

    def _path(self, unit: str) -> Path:
        return self._directory / f"{quote(unit, safe='')}{_SUFFIX}"

    def save(self, stored: Stored) -> None:
        """Replace a unit's snapshot; after a crash at any moment either the old or the new one is there."""
        head = pack(
            {
                "unit": stored.unit,
                "generation": stored.generation,
                "offsets": dict(stored.offsets),
                "warm": stored.warm,
                "announced": stored.announced,
                "topics": self._topics,
            }
        )
        replace_file(self._path(stored.unit), (len(head).to_bytes(8, "little"), head, stored.engine))

    def load(self, unit: str) -> Stored | None:
        """Return a unit's snapshot, None if there is none. Raises StateError if it is damaged or outdated."""
        try:
            content = self._path(unit).read_bytes()
        except FileNotFoundError:
            return None
        if len(content) < 8:
            raise StateError(f"{self._path(unit)}: too short to be a snapshot")
        end = 8 + int.from_bytes(content[:8], "little")
        try:
            head, _ = unpack(content[8:end])
        except ValueError as error:  # what the head's checksum does not cover is how long its JSON is
            raise StateError(f"{self._path(unit)}: {error}") from error
        if head["topics"] != self._topics:
            raise StateError(f"{self._path(unit)}: its offsets are those of topics that were since made anew")
        return Stored(head["unit"], head["generation"], head["offsets"], head["warm"], head["announced"], content[end:])

    def units(self) -> list[str]:
        """Return the units that have a snapshot."""
        return sorted(unquote(path.name.removesuffix(_SUFFIX)) for path in self._directory.glob(f"*{_SUFFIX}"))

    def forget(self, unit: str) -> None:
        """Remove a unit's snapshot, if there is one."""
        self._path(unit).unlink(missing_ok=True)
