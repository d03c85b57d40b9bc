"""All replays of this service: started, found by name, taken up again after a crash, removed."""

import logging
import threading
from pathlib import Path

from services.kit import replays, topics
from services.kit.errors import UsageError, UserError
from services.kit.kafka import KafkaSettings, admin, producer
from services.kit.replay_directory import ReplayDirectory
from services.kit.times import wall_ms
from services.kit.units import partition_of
from services.recording.reader import Recording
from services.recording.tidy import open_tidy
from services.replay.journal import Entry, Journal
from services.replay.metrics import unwatch, watch
from services.replay.orders import Order, Pause, Resume, Seek, SetSpeed, Stop
from services.replay.replay import Replay, sought
from services.replay.settings import ReplaySettings
from services.replay.spec import ReplayRequest, ReplaySpec, Speed, moment, plan, speed_of

_log = logging.getLogger(__name__)
_ORDER_TIMEOUT_S = 30.0


class Manager:
    """The replays by name. Methods raise UserError; they may be called from several threads."""

    def __init__(self, settings: ReplaySettings, kafka: KafkaSettings) -> None:
        self._settings = settings
        self._kafka = kafka
        self._journal = Journal(settings.state_dir)
        self._lock = threading.RLock()
        self._replays: dict[str, Replay] = {}

    def take_up(self) -> None:
        """Go on with what ran or was paused when the service ended; the others can be looked at and sought."""
        for entry in self._journal.load():
            replay = self._adopt(entry)
            if not entry.over:
                _log.info("taking up replay=%s position_ms=%d", entry.spec.name, entry.position_ms)
                replay.start()

    def start(self, request: ReplayRequest) -> Replay:
        """Begin a replay."""
        with self._lock:
            recording = open_tidy(self._allowed(request.recording), strict=request.strict)
            self._check_topics()
            cluster = recording.manifest.cluster.name
            known = {unit.removeprefix(f"{cluster}/"): state for unit, state in self._announced().items()}
            taken = {*self._replays, *(name for name, state in known.items() if not state.over)}
            spec = plan(request, recording, taken, wall_ms())
            self._check_tenant(spec)
            # A name used again goes on counting: no consumer may take the new data for the old.
            generation = known[spec.name].generation + 1 if spec.name in known else 0
            entry = Entry(
                spec=spec,
                speed=speed_of(request.speed),
                state="running",
                generation=generation,
                warm_from_ms=spec.from_ms,
                from_ms=spec.from_ms,
                position_ms=spec.from_ms - 1,
            )
            return self._begun(entry)

    def _check_tenant(self, spec: ReplaySpec) -> None:
        data = self._settings.receive_data
        if spec.target == "receive" and data is not None and (data / spec.name / replays.REMOVED_MARK).exists():
            raise UsageError(
                f"Receive still holds the removed replay {spec.name}, until it starts next",
                remedy="choose another --name, or restart the stack first",
            )

    def get(self, name: str) -> Replay:
        """Return a replay by its name."""
        try:
            return self._replays[name]
        except KeyError:
            known = ", ".join(sorted(self._replays)) or "none"
            raise UsageError(f"there is no replay named {name}", remedy=f"the replays here are: {known}") from None

    def all(self) -> list[Replay]:
        """Return all replays by name."""
        return [replay for _, replay in sorted(self._replays.items())]

    def pause(self, name: str) -> Replay:
        """Stop the schedule of a replay."""
        return self._ordered(name, Pause())

    def resume(self, name: str) -> Replay:
        """Let a paused replay go on; one that has failed goes on in a new generation from where it was safe."""
        replay = self.get(name)
        if replay.entry.state == "failed":
            entry = replay.entry
            return self._restarted(replay, sought(entry, max(entry.spec.from_ms, entry.position_ms), self._warm_ms))
        return self._ordered(name, Resume())

    def set_speed(self, name: str, speed: Speed) -> Replay:
        """Change the speed of a replay."""
        if self.get(name).entry.spec.shift == "start-now" and speed != 1:
            raise UsageError(
                f"replay {name} runs with shift start-now, in step with the clock: its speed is 1",
                remedy="start another with --shift now",
            )
        return self._ordered(name, SetSpeed(speed_of(speed)))

    def seek(self, name: str, to: str) -> Replay:
        """Play on from another time, in a new generation; also a replay that is over."""
        replay = self.get(name)
        entry = replay.entry
        to_ms = moment(to, "seek", Recording.open(entry.spec.recording))
        moved = sought(entry, to_ms, self._warm_ms)
        return self._restarted(replay, moved) if entry.over else self._ordered(name, Seek(to_ms))

    def stop(self, name: str) -> Replay:
        """End a replay where it is."""
        replay = self.get(name)
        return replay if replay.entry.over else self._ordered(name, Stop())

    def remove(self, name: str) -> None:
        """Stop a replay, say so, and forget it, with its tenant's data in Receive where those can be reached."""
        with self._lock:
            replay = self.stop(name)
            replay.join(_ORDER_TIMEOUT_S)
            entry = replay.entry
            client = producer(self._kafka)
            try:
                replays.announce(client, entry.public(removed=True)).get(_ORDER_TIMEOUT_S)
            finally:
                client.close()
            self._journal.remove(name)
            del self._replays[name]
            unwatch(name)
            if entry.spec.target == "receive" and self._settings.receive_data is not None:
                mark_removed(self._settings.receive_data, name)
            _log.info("removed replay=%s", name)

    def close(self) -> None:
        """Leave all replays where they are: the next start goes on with them."""
        for replay in self.all():
            if not replay.entry.over:
                replay.suspend()

    @property
    def _warm_ms(self) -> int:
        return round(self._settings.warm_s * 1000)

    def _adopt(self, entry: Entry) -> Replay:
        replay = Replay(
            entry,
            self._journal,
            lambda: producer(self._kafka),
            lambda unit: partition_of(self._kafka, unit),
            in_flight_bytes=self._settings.in_flight_bytes,
            warm_ms=self._warm_ms,
        )
        self._replays[entry.spec.name] = replay
        watch(replay)
        return replay

    def _restarted(self, old: Replay, entry: Entry) -> Replay:
        with self._lock:
            old.join(_ORDER_TIMEOUT_S)
            return self._begun(entry)

    def _begun(self, entry: Entry) -> Replay:
        self._journal.save(entry)
        replay = self._adopt(entry)
        replay.start()
        return replay

    def _ordered(self, name: str, order: Order) -> Replay:
        replay = self.get(name)
        replay.ask(order, _ORDER_TIMEOUT_S)
        return replay

    def _allowed(self, path: Path) -> Path:
        """Return the path if it may be read. Without configured roots that is any, as only this machine can ask."""
        full = path.resolve()
        roots = [root.resolve() for root in self._settings.recordings]
        if roots and not any(full.is_relative_to(root) for root in roots):
            raise UsageError(
                f"{path}: not in a folder that this service may replay from",
                remedy=f"recordings may lie in {', '.join(str(root) for root in roots)} (HINDCAST_REPLAY_RECORDINGS)",
            )
        return full

    def _check_topics(self) -> None:
        with admin(self._kafka) as client:
            missing = sorted({*topics.declared().streams(), topics.REPLAYS, topics.UNITS} - set(client.list_topics()))
        if missing:
            raise UsageError(f"Kafka lacks the topic(s) {', '.join(missing)}", remedy="run `hindcast topics create`")

    def _announced(self) -> dict[str, replays.ReplayState]:
        directory = ReplayDirectory(self._kafka)
        try:
            return directory.states
        finally:
            directory.close()


def mark_removed(receive_data: Path, tenant: str) -> None:
    """Mark a tenant's folder below Receive's data folder as to be deleted, and no other: no link is followed.

    Receive holds the tenant open and fails when its files vanish: the folder goes when Receive starts next.
    """
    folder = receive_data / tenant
    if folder.is_symlink() or folder.resolve().parent != receive_data.resolve():
        raise UserError(f"{folder}: not a folder of its own below {receive_data}; nothing was marked there")
    if folder.is_dir():
        (folder / replays.REMOVED_MARK).touch()
        _log.info("marked tenant=%s", tenant)
