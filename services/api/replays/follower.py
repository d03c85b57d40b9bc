"""Follows replays by way of Kafka: what the services there find comes into the store as that of a run, as it is found.

One thread. It asks the replay service where its replays are, and only while that has any does it read Kafka: without
servers the API does nothing here. The topics are read from their start each time, and what is known changes nothing.
"""

import json
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from services.api.replays.alerting import Alerts
from services.api.replays.findings_consumer import Offsets, Topics, owned
from services.api.replays.generations import Generation, Generations, Running
from services.api.replays.replays import Replays
from services.api.runs.runs import Runs
from services.api.runs.writer import RunWriter
from services.kit.errors import UserError
from services.kit.findings import finding_record_of, placed
from services.kit.kafka import KafkaSettings
from services.kit.problems import RefusedError
from services.kit.replays import ReplayState
from services.kit.times import parse_time
from services.kit.topics import INCIDENTS

if TYPE_CHECKING:
    from services.replay.status import ReplayStatus

_log = logging.getLogger(__name__)
_POLL_MS = 200
_LOOK_S = 0.5
"""So often the replay service is asked while a replay is followed."""
_REST_S = 2.0
"""So often otherwise."""
_ALERTS_S = 1.0
_AFTER_S = 60.0
"""So long after its end a replay's alerts are looked at: notify holds a resolve back, and a group waits."""
_ENDS = {"ended": "done", "stopped": "cancelled"}


@dataclass
class _Followed:
    """A generation that is followed; `fed`: the end of what detect is to read, `reported`: of what it reported then."""

    notes: RunWriter
    recording: str
    fed: Offsets | None = None
    reported: Offsets | None = None
    over_s: float | None = None


class Follower:
    """The thread, and where each replay was when it was last asked for."""

    def __init__(
        self, kafka: KafkaSettings, generations: Generations, replays: Replays, runs: Runs, alertmanager_url: str
    ) -> None:
        self._kafka = kafka
        self._generations = generations
        self._replays = replays
        self._runs = runs
        self._alertmanager_url = alertmanager_url
        self._closing = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replays", daemon=True)
        self._followed: dict[Generation, _Followed] = {}
        self._states: dict[str, ReplayState] = {}
        self._strange: set[Generation] = set()
        self.statuses: dict[str, ReplayStatus] = {}

    def begin(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Have it look at once: a replay was started, or steered."""
        self._woken.set()

    def close(self) -> None:
        """End."""
        self._closing.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if self._ask():
                    self._follow()
            except (KafkaError, UserError) as error:
                _log.warning("replays cannot be followed, trying again error=%s", error)
            except Exception:  # noqa: BLE001 - whatever it is, replays are followed again
                _log.exception("following replays ended in a defect, trying again")
            if not self._closing.is_set():
                self._woken.wait(_REST_S)
                self._woken.clear()

    def _ask(self) -> bool:
        """Ask the replay service where its replays are; return whether there are any."""
        try:
            self.statuses = {status.name: status for status in self._replays.statuses()}
        except RefusedError:  # where they were is still the best that is known
            return False
        return bool(self.statuses)

    def _follow(self) -> None:
        """Read what is found until there is no replay any more; KafkaError, UserError: it cannot be read."""
        topics, alerts = Topics(self._kafka), Alerts(self._alertmanager_url)
        self._followed, self._states, self._strange = {}, {}, set()
        looked_s = alerted_s = 0.0
        try:
            while not self._closing.is_set():
                every_s = _LOOK_S if any(one.over_s is None for one in self._followed.values()) else _REST_S
                if time.monotonic() - looked_s >= every_s or self._woken.is_set():
                    self._woken.clear()
                    looked_s = time.monotonic()
                    there_are = self._ask()
                    self._look(topics, alerts)
                    if not there_are:
                        return
                self._take(topics, alerts)
                if time.monotonic() - alerted_s >= _ALERTS_S:
                    alerted_s = time.monotonic()
                    alerts.look({one: followed.notes for one, followed in self._alerting(alerts)})
                for followed in self._followed.values():
                    if followed.notes.unwritten:
                        followed.notes.write()
        finally:
            topics.close()
            alerts.close()

    def _alerting(self, alerts: Alerts) -> list[tuple[Generation, _Followed]]:
        """Return the generations that may have alerts, or have them still."""
        now_s = time.monotonic()
        return [
            (one, followed)
            for one, followed in self._followed.items()
            if followed.over_s is None or now_s - followed.over_s < _AFTER_S or alerts.open(one)
        ]

    def _take(self, topics: Topics, alerts: Alerts) -> None:
        """Take what was found since, of the generations that are known here."""
        for record, one, origin in owned(topics.poll(_POLL_MS)):
            if origin.replay == "live":
                continue
            if one not in self._followed and one not in self._strange:
                self._open(topics, alerts)  # a generation is announced before its first record
                if one not in self._followed:
                    self._strange.add(one)
            followed = self._followed.get(one)
            if followed is None:
                continue
            try:
                if record.topic == INCIDENTS:
                    followed.notes.hear_incident(json.loads(record.value or b""))
                    continue
                found = placed(finding_record_of(record), topics.topologies)
                alerts.take(one, found)
                followed.notes.hear_finding(found.finding, shadow=found.shadow)
            except (ValueError, KeyError, TypeError) as error:
                _log.warning("passed over topic=%s offset=%d error=%s", record.topic, record.offset, error)

    def _open(self, topics: Topics, alerts: Alerts) -> dict[str, Generation]:
        """Follow what is being replayed now; return the present generations by run."""
        self._states = topics.replays()
        now: dict[str, Generation] = {}
        for unit, state in self._states.items():
            one = Generation(unit, state.generation, state.shift_ms)
            if state.state == "removed":
                continue
            now[one.run] = one
            if one not in self._followed and self._generations.opened(one, state.recording, state.detectors):
                notes = self._generations.notes(one, state.warm_from_ms, state.to_ms)
                self._followed[one] = _Followed(notes, state.recording)
                alerts.restore(one, self._runs.alerts(one.run).items)
        return now

    def _look(self, topics: Topics, alerts: Alerts) -> None:
        """Follow what is being replayed now, and see to the end of what is over."""
        now = self._open(topics, alerts)
        running = self._generations.running()
        for run, one in now.items():
            if one not in self._followed:
                continue
            if run in running:
                self._see(topics, one, self._states[one.unit])
            elif self._followed[one].over_s is None:  # as at a start
                self._followed[one].over_s = time.monotonic()
        for run, one_running in running.items():
            if run not in now and self._is_gone(one_running):
                self._generations.end(run, "cancelled")
        for one, followed in list(self._followed.items()):
            if one.run in now:  # it may be played on from where it is
                continue
            if followed.over_s is None:
                followed.over_s = time.monotonic()
            elif time.monotonic() - followed.over_s > _AFTER_S:
                del self._followed[one]
                alerts.forget(one)

    def _is_gone(self, one: Running) -> bool:
        """Return whether a generation that is not announced will never be: one that was asked for just now will."""
        state = self._states.get(one.unit)
        if state is not None and (one.number < state.generation or state.state == "removed"):
            return one.number <= state.generation
        return one.for_s > _AFTER_S

    def _see(self, topics: Topics, one: Generation, state: ReplayState) -> None:
        """Note how far a generation has come, and its end once everything that detect reports of it was read."""
        followed = self._followed[one]
        if followed.over_s is not None:
            return
        status = self.statuses.get(state.replay)
        if status is not None and status.generation == one.number and status.shift_ms == one.shift_ms:
            at_ms = parse_time(status.event_time)
            if at_ms != followed.notes.event_ms:
                followed.notes.event_ms = at_ms
                followed.notes.write()
        if not state.over:
            return
        if state.state == "failed":
            error = status.error if status is not None else None
            followed.notes.write("failed", error or "the replay failed")
            followed.over_s = time.monotonic()
            return
        if followed.fed is None:
            followed.fed = topics.fed()
        if followed.reported is None and topics.detected(followed.fed):
            followed.reported = topics.ends()
        if followed.reported is not None and topics.have_read(followed.reported):
            self._finish(followed, _ENDS[state.state])

    def _finish(self, followed: _Followed, state: str) -> None:
        if Path(followed.recording).is_dir():
            self._generations.judge(followed.notes, followed.recording)
        followed.notes.write(state)
        followed.over_s = time.monotonic()
