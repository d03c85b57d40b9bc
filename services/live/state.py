"""What a live run needs to go on where it ended: one file, replaced as a whole."""

from pathlib import Path
from typing import Any, NamedTuple

from detectors.engine.state import StateError, pack, unpack
from services.kit.durable import replace_file, state_folder

_FORMAT = 1


class Saved(NamedTuple):
    """What is known when all samples up to `document["at"]` (epoch ms) were handed over; `engine`: its snapshot."""

    document: dict[str, Any]
    engine: bytes


class StateFile:
    """A folder with the state of one live run, `name`. UserError (exit code 2) if it cannot be written to."""

    def __init__(self, directory: Path, name: str = "live.state") -> None:
        self.folder = state_folder(directory, "--state")
        self._path = self.folder / name

    def save(self, saved: Saved) -> None:
        """Replace what was saved before; after a crash at any moment either the old or the new is there."""
        head = pack({"format": _FORMAT, **saved.document})
        replace_file(self._path, (len(head).to_bytes(8, "little"), head, saved.engine))

    def load(self) -> Saved | None:
        """Return what was saved, None if nothing was. Raises StateError if it is damaged or of another version."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        end = 8 + int.from_bytes(content[:8], "little")
        document, _ = unpack(content[8:end])
        if document.get("format") != _FORMAT:
            raise StateError(f"{self._path}: written by another version of hindcast")
        return Saved(document, content[end:])
