"""One replay as a thread: keeps its schedule, follows orders, and records how far it has got, in case of a crash."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from services.kit import replays
from services.kit.errors import UsageError, UserError
from services.kit.problems import RefusedError
from services.kit.topics import declared
from services.recording.reader import Recording
from services.recording.tidy import open_tidy
from services.replay.feeds import open_feeds
from services.replay.generation import Generation, step_ms
from services.replay.journal import Entry, Journal
from services.replay.orders import Mailbox, Order, Pause, Resume, Seek, SetSpeed, Stop, Suspend
from services.replay.outbox import Abandoned, Checkpoint, Outbox, SendError
from services.replay.pacer import MAX, Pacer

_log = logging.getLogger(__name__)

# A row is sent at most this late (a finding is due 250 ms after its sample), and at most 50 cycles a second are made.
CYCLE_S = 0.02
# How long the watermarks stand still while no row is due.
MARK_S = 0.25
# How much of its schedule a crash may make it send again, besides what was on its way.
SAVE_S = 1.0
_FAREWELL_S = 5.0
UNREACHABLE = 3  # the exit code of a UserError about a server that does not answer


class Replay:
    """One replay. All its work is done in its own thread; the public methods may be called from any."""

    def __init__(
        self,
        entry: Entry,
        journal: Journal,
        make_producer: Callable[[], KafkaProducer],
        place: Callable[[str], int],
        *,
        in_flight_bytes: int,
        warm_ms: int,
    ) -> None:
        self.entry = entry
        self.max_lag_s = 0.0
        """The greatest lag seen since this process took the replay up."""
        self._journal = journal
        self._make_producer = make_producer
        self._place = place
        self._limit = in_flight_bytes
        self._warm_ms = warm_ms
        self._mailbox = Mailbox(entry.spec.name)
        self._suspended = threading.Event()
        self._pacer = self._line(entry)
        self._next_ms: int | None = None
        self._saved_s = -math.inf
        self._thread = threading.Thread(target=self._run, name=f"replay-{entry.spec.name}", daemon=True)
        self._step_ms = 0
        # Made by the thread.
        self._recording: Recording | None = None
        self._producer: KafkaProducer = None
        self._partition = 0
        self._generation: Generation | None = None
        self._outbox: Outbox | None = None

    def start(self) -> None:
        """Begin, or go on from the position of the entry, which is in the journal."""
        self._thread.start()

    def ask(self, order: Order, timeout_s: float = 10.0) -> None:
        """Have an order carried out; raise UserError where that cannot be."""
        self._mailbox.ask(order, timeout_s)

    def suspend(self) -> None:
        """Leave the replay where it is, also while Kafka is away, and wait for its thread to end."""
        self._suspended.set()
        self._mailbox.send(Suspend())
        self._thread.join(2 * _FAREWELL_S)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the replay's thread has ended."""
        self._thread.join(timeout_s)

    def safe(self) -> Checkpoint:
        """Return up to where Kafka has acknowledged everything."""
        if self._outbox is not None:
            return self._outbox.safe
        return Checkpoint(self.entry.position_ms, self.entry.rows, self.entry.samples)

    def in_flight_bytes(self) -> int:
        """Return the bytes sent and not acknowledged."""
        return 0 if self._outbox is None else self._outbox.in_flight_bytes

    def event_ms(self) -> int:
        """Return the event time that the schedule has reached; without a schedule, the data."""
        generation = self._generation
        if generation is None or self.entry.over:
            return self.safe().position_ms
        if self.entry.speed == MAX or self._warming(generation):
            return generation.position_ms
        return min(self._pacer.event_at(time.monotonic()), self.entry.spec.to_ms)

    def lag_s(self) -> float:
        """Return for how long (wall seconds) the oldest row that Kafka has not acknowledged has been due."""
        generation, outbox = self._generation, self._outbox
        if generation is None or outbox is None or self.entry.state != "running" or self._warming(generation):
            return 0.0
        sent_ms = outbox.oldest_ms()
        lag = self._pacer.lag_s(self._next_ms if sent_ms is None else sent_ms, time.monotonic())
        self.max_lag_s = max(self.max_lag_s, lag)
        return lag

    # What follows runs in the replay's thread.

    def _run(self) -> None:
        try:
            self._recording = open_tidy(self.entry.spec.recording, strict=self.entry.spec.strict)
            self._step_ms = step_ms(self._recording.manifest)
            self._producer = self._connected()
            self._open(self._recording, self.entry)
            while not self.entry.over:
                self._obey(self._cycle())
        except Abandoned:
            _log.info("suspended replay=%s position_ms=%d", self.entry.spec.name, self.safe().position_ms)
        except (UserError, KafkaError, SendError, OSError) as error:
            self._fail(error)
        finally:
            self._mailbox.close()
            self._close()

    def _connected(self) -> KafkaProducer:
        """Return a producer; wait for the broker where a crash or a restart finds it away."""
        while not self._suspended.is_set():
            try:
                self._partition = self._place(self.entry.public().unit)
                producer = self._make_producer()
                for topic in declared().streams():
                    producer.partitions_for(topic)  # asked for now, or the first rows of each topic wait for it
            except UserError as error:
                if error.exit_code != UNREACHABLE:
                    raise
                self._wait_for_kafka(error.message)
            except KafkaTimeoutError as error:
                self._wait_for_kafka(str(error))
            else:
                return producer
        raise Abandoned

    def _wait_for_kafka(self, words: str) -> None:
        _log.warning("waiting for Kafka replay=%s error=%s", self.entry.spec.name, words)
        self._suspended.wait(SAVE_S)

    def _close(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout=_FAREWELL_S)
        self._save()

    def _fail(self, error: Exception) -> None:
        message = error.message if isinstance(error, UserError) else f"Kafka refused what was sent: {error}"
        _log.error("failed replay=%s error=%s", self.entry.spec.name, message)
        self.entry = self.entry.model_copy(update={"state": "failed", "error": message})
        if self._producer is not None:
            replays.announce(self._producer, self.entry.public())

    def _line(self, entry: Entry) -> Pacer:
        """Return the schedule that begins at the entry's position, or behind its warming."""
        at_ms = max(entry.position_ms + 1, entry.from_ms)
        return Pacer(entry.speed, float(at_ms), time.monotonic(), paused=entry.state == "paused")

    def _open(self, recording: Recording, entry: Entry) -> None:
        """Announce a generation and open its feeds behind the entry's position."""
        start = Checkpoint(entry.position_ms, entry.rows, entry.samples)
        feeds = open_feeds(recording, entry.warm_from_ms, entry.spec.to_ms, entry.position_ms)
        known = {"streams": tuple(feed.stream for feed in feeds), "intervals_s": _intervals_s(recording)}
        self.entry = entry.model_copy(update=known)
        public = self.entry.public()
        self._outbox = Outbox(self._producer, start, limit_bytes=self._limit, abandoned=self._suspended.is_set)
        self._generation = Generation(public.origin, feeds, self._outbox, self._partition)
        topology = recording.topology.model_dump(mode="json", exclude_unset=True)
        self._outbox.track(replays.announce_topology(self._producer, public.unit, topology))
        self._outbox.drain()
        self._announce(self._outbox)
        self._pacer = self._line(entry)
        self._next_ms = self._generation.next_ms()
        _log.info(
            "started replay=%s generation=%d position_ms=%d speed=%g shift_ms=%d target=%s",
            entry.spec.name,
            entry.generation,
            entry.position_ms,
            entry.speed,
            entry.spec.shift_ms,
            entry.spec.target,
        )

    def _announce(self, outbox: Outbox) -> None:
        outbox.track(replays.announce(self._producer, self.entry.public()))
        outbox.drain()

    def _opened(self) -> tuple[Recording, Generation, Outbox]:
        if self._recording is None or self._generation is None or self._outbox is None:
            raise RuntimeError("no generation is open")
        return self._recording, self._generation, self._outbox

    def _change(self, **changes: Any) -> None:
        """Take over a new state: journal first, then the world. RefusedError where the journal cannot be written."""
        changed = self._as_of_now(**changes)
        self._journal.save(changed)
        self.entry = changed
        self._announce(self._opened()[2])
        _log.info("changed replay=%s %s", self.entry.spec.name, " ".join(f"{k}={v}" for k, v in changes.items()))

    def _as_of_now(self, **changes: Any) -> Entry:
        safe = self.safe()
        done = {"position_ms": safe.position_ms, "rows": dict(safe.rows), "samples": dict(safe.samples)}
        return self.entry.model_copy(update=done | changes)

    def _save(self) -> None:
        """Note how far it has got; where the disk is full it goes on: a crash then repeats more of it."""
        self.entry = self._as_of_now()
        self._journal.keep(self.entry)
        self._saved_s = time.monotonic()

    def _warming(self, generation: Generation) -> bool:
        return generation.position_ms + 1 < self.entry.from_ms

    def _cycle(self) -> float | None:
        """Send what is due; return for how long (s) nothing will be, None for as long as nobody orders anything."""
        if self._suspended.is_set():
            raise Abandoned
        _, generation, _ = self._opened()
        now = time.monotonic()
        if now - self._saved_s >= SAVE_S:
            self._save()
        warming = self._warming(generation)
        if self.entry.state == "paused" and not warming:
            return None
        end_ms = self.entry.from_ms - 1 if warming else self.entry.spec.to_ms
        due_ms = end_ms if warming else min(self._pacer.event_at(now), end_ms)
        upto_ms = min(due_ms, generation.position_ms + self._step_ms)
        soonest_ms = self._soonest_ms(generation, end_ms)
        if upto_ms < soonest_ms and upto_ms < generation.position_ms + self._step_ms:
            return max(0.0, self._pacer.wall_at(soonest_ms) - now)
        self.lag_s()
        generation.advance(upto_ms)
        self._next_ms = generation.next_ms()
        if warming and upto_ms == end_ms:
            self._pacer = self._pacer.anchored(self.entry.from_ms, time.monotonic())
        elif upto_ms == end_ms:
            self._finish("ended")
        return 0.0 if upto_ms < due_ms or warming or self.entry.speed == MAX else CYCLE_S

    def _soonest_ms(self, generation: Generation, end_ms: int) -> int:
        """Return at which event time there is something to send: a row, watermarks that stood still, or the end."""
        mark_ms = generation.position_ms + max(1, int(MARK_S * 1000 * self.entry.speed))
        return min(mark_ms, end_ms, self._next_ms if self._next_ms is not None else end_ms)

    def _finish(self, state: str) -> None:
        """Close the generation: all data acknowledged, the last watermarks, then the state, once the journal has it."""
        _, generation, _ = self._opened()
        generation.finish()
        while not self._suspended.is_set():
            try:
                return self._change(state=state)
            except RefusedError as refused:
                held = self._mailbox.next(SAVE_S)
                if held is not None:
                    held[1].set_exception(refused)
        raise Abandoned

    def _obey(self, wait_s: float | None) -> None:
        if self.entry.over:
            return
        held = self._mailbox.next(wait_s)
        if held is None:
            return
        order, answer = held
        try:
            self._carry_out(order)
        except UserError as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    def _carry_out(self, order: Order) -> None:
        recording, generation, _ = self._opened()
        now = time.monotonic()
        match order:
            case Pause():
                if self.entry.state == "running":
                    self._change(state="paused")
                    self._pacer = self._pacer.stopped(position_ms=generation.position_ms, wall_s=now)
            case Resume():
                if self.entry.state == "paused":
                    self._change(state="running")
                    self._pacer = self._pacer.resumed(wall_s=now)
            case SetSpeed(speed):
                self._change(speed=speed)
                self._pacer = self._pacer.with_speed(speed, position_ms=generation.position_ms, wall_s=now)
            case Seek(to_ms):
                moved = sought(self.entry, to_ms, self._warm_ms)
                self._journal.save(moved)
                generation.finish()
                self._open(recording, moved)
                self._save()
            case Stop():
                self._journal.save(self._as_of_now())  # refused before the end is in Kafka, or not at all
                self._finish("stopped")
            case Suspend():
                raise Abandoned


def sought(entry: Entry, to_ms: int, warm_ms: int) -> Entry:
    """Return the entry of the generation that begins at `to_ms`, warmed from one window before; UserError (exit code
    2) where the replay cannot be moved.
    """
    spec = entry.spec
    if spec.shift == "start-now":
        raise UsageError(
            f"replay {spec.name} runs with shift start-now, in step with the clock: it cannot be moved",
            remedy="start another with --from, or use --shift now",
        )
    if not spec.from_ms <= to_ms < spec.to_ms:
        raise UsageError(
            f"the target lies outside the window of replay {spec.name}",
            remedy="seek inside its window (see `hindcast replay status`), or start another replay",
        )
    warm_from_ms = max(spec.from_ms, to_ms - warm_ms)
    return entry.model_copy(
        update={
            "generation": entry.generation + 1,
            "warm_from_ms": warm_from_ms,
            "from_ms": to_ms,
            "position_ms": warm_from_ms - 1,
            "rows": {},
            "samples": {},
            "state": "paused" if entry.state == "paused" else "running",
            "error": None,
        }
    )


def _intervals_s(recording: Recording) -> dict[str, float]:
    """Return the sampling interval by stream; of an import none, as its readings drift across the ticks of a clock."""
    if recording.manifest.origin == "imported":
        return {}
    streams = recording.manifest.streams
    return {name: info.interval_s for name, info in streams.items() if info.interval_s is not None}
