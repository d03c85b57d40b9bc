"""What is kept of a replay so that it goes on after a crash: one small file each, replaced whole or not at all."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from services.kit.durable import Keeper, replace_file, set_aside, state_folder, sync_folder
from services.kit.problems import RefusedError
from services.kit.replays import ReplayState
from services.replay.spec import ReplaySpec

State = Literal["running", "paused", "ended", "stopped", "failed"]


class Entry(BaseModel):
    """One replay: what it is, which generation runs, and how far Kafka has acknowledged it.

    `position_ms`: every row of the generation with a time up to it is acknowledged; `rows` and `samples` count them by
    stream. `warm_from_ms` is where the generation's data begin, `from_ms` where it is paced from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["hindcast.replay-journal/v1"] = "hindcast.replay-journal/v1"
    spec: ReplaySpec
    speed: float
    state: State
    generation: int
    warm_from_ms: int
    from_ms: int
    position_ms: int
    rows: dict[str, int] = {}
    samples: dict[str, int] = {}
    streams: tuple[str, ...] = ()
    """The streams that are fed; known once the recording has been opened."""
    intervals_s: dict[str, float] = {}
    """How often each periodic stream is sampled, by the recording."""
    error: str | None = None

    @property
    def over(self) -> bool:
        """Return whether nothing more is sent unless someone asks."""
        return self.state in ("ended", "stopped", "failed")

    def public(self, *, removed: bool = False) -> ReplayState:
        """Return what the `replays` topic says of it."""
        return ReplayState(
            cluster=self.spec.cluster,
            replay=self.spec.name,
            generation=self.generation,
            shift_ms=self.spec.shift_ms,
            target=self.spec.target,
            recording=self.spec.recording,
            from_ms=self.from_ms,
            to_ms=self.spec.to_ms,
            warm_from_ms=self.warm_from_ms,
            speed=self.speed,
            state="removed" if removed else self.state,
            streams=self.streams,
            intervals_s=self.intervals_s,
            detectors=self.spec.detectors,
            calibration=self.spec.calibration,
        )


class Journal:
    """The state files of all replays of one service, in one folder. UserError (exit code 2) if it cannot be made."""

    def __init__(self, folder: Path) -> None:
        self._folder = state_folder(folder, "HINDCAST_REPLAY_STATE_DIR")
        self._keeper = Keeper(self._folder)

    def keep(self, entry: Entry) -> bool:
        """Write an entry where that can be done, and return whether it was."""
        return self._keeper.kept(lambda: self._write(entry))

    def save(self, entry: Entry) -> None:
        """Write an entry: after a crash at any moment the file holds the old entry or the new one.

        Raises RefusedError (507) where it cannot be written.
        """
        if not self.keep(entry):
            raise RefusedError(
                507,
                f"replay {entry.spec.name}: its state cannot be written to {self._folder}",
                remedy="make room there (HINDCAST_REPLAY_STATE_DIR), and ask again",
            )

    def load(self) -> list[Entry]:
        """Return all entries by name; a file that is none is set aside, and that replay has to be started anew."""
        entries = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                entries.append(Entry.model_validate_json(path.read_bytes()))
            except ValidationError as error:
                set_aside(path, f"not the state of a replay: {error.errors()[0]['msg']}")
        return entries

    def remove(self, name: str) -> None:
        """Forget a replay."""
        self._path(name).unlink(missing_ok=True)
        sync_folder(self._folder)

    def _write(self, entry: Entry) -> None:
        replace_file(self._path(entry.spec.name), [entry.model_dump_json().encode()])

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"
