"""Which alerts there are, and what is to be sent of them: findings, replay states and time in, alerts out.

Nothing here does I/O or reads a clock: `now` is monotonic seconds, `wall_ms` wall time in epoch milliseconds.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.kit.findings import FindingKey, FindingRecord
from services.kit.replays import ReplayState
from services.notify.alert_lifecycle import ENDS_AFTER_RESENDS, AlertLifecycle, Policy, State
from services.notify.ledger import Ledger
from services.notify.payload import Labels, alert, annotations_of, labels_of

REPLAY_ENDED = "replay ended"


@dataclass(frozen=True, slots=True)
class Post:
    """One alert that is to be sent now; `body` is an element of `POST /api/v2/alerts`."""

    lifecycle: AlertLifecycle
    state: State
    body: Mapping[str, Any]


class AlertStore:
    """All alerts that are firing, held back, or resolved a short while ago.

    An alert is firing as long as any finding with its labels is open. Findings are closed by a resolved record, or by
    the end of the stream they were found in: its last record, a stop, its removal, a new generation.
    """

    def __init__(self, policy: Policy, ledger: Ledger, *, runbook_base_url: str | None = None) -> None:
        self._policy = policy
        self._ledger = ledger
        self._runbook_base_url = runbook_base_url
        # Of each set of labels the alert that is being sent, and those that wait for its resolve to be out.
        self._alerts: dict[Labels, deque[AlertLifecycle]] = {}
        # By finding, open or cut off, its alert.
        self._alert_of: dict[FindingKey, AlertLifecycle] = {}
        self._seen: set[tuple[FindingKey, str]] = set()
        self._replays: dict[str, ReplayState] = {}
        self._starts_seen: set[str] = set()

    def take(self, one: FindingRecord, *, now: float, wall_ms: int) -> None:
        """Take a record of the findings topic, in the order of its partition. A repeated one changes nothing.

        One in shadow, or of severity info, is not alerted; its resolve counts, as it may have fired before its detector
        was put there.
        """
        self._ledger.read(one.at)
        if (one.shadow or one.finding.severity == "info") and one.finding.state == "firing":
            return
        seen = (one.key, one.finding.state)
        if seen in self._seen:
            return
        self._seen.add(seen)
        if one.finding.state == "resolved":
            self._close(one, now)
            return
        self._fire(one)
        if self._stream_is_over(one.key):
            self._end_stream(one.key, wall_ms)

    def follow(self, replays: Mapping[str, ReplayState], *, wall_ms: int) -> None:
        """Take the present states of all replays; what was open in a stream that is over is resolved."""
        if replays == self._replays:
            return
        gone = self._replays.keys() - replays.keys()
        self._replays = dict(replays)
        for key, lifecycle in self._alert_of.items():
            if key in lifecycle.open and (key.unit in gone or self._stream_is_over(key)):
                self._end_stream(key, wall_ms)
        # A removed replay may be made again under its name, and then finds again what it found.
        removed = gone | {unit for unit, state in replays.items() if state.state == "removed"}
        self._seen = {seen for seen in self._seen if seen[0].unit not in removed}

    def alertmanager_started(self, start: str) -> None:
        """Take the moment at which Alertmanager was started, by its own account.

        It keeps alerts in memory: when it was restarted, all is sent again at once, and a resolve waits until the
        firing has been heard. Several behind one address each have a start of their own, seen once.
        """
        restarted = bool(self._starts_seen) and start not in self._starts_seen
        self._starts_seen.add(start)
        if restarted:
            for queue in self._alerts.values():
                queue[0].forgotten()

    def due(self, *, now: float, wall_ms: int) -> list[Post]:
        """Return what is to be sent now, and forget what is long over. What is not accepted stays due."""
        posts = []
        for labels, queue in list(self._alerts.items()):
            while queue and queue[0].is_over(now, self._policy, followed=len(queue) > 1):
                self._drop(queue.popleft())
            if not queue:
                del self._alerts[labels]
                continue
            lifecycle = queue[0]
            durable = all(self._ledger.is_durable(firing.at) for firing in lifecycle.firings)
            state = lifecycle.to_send(now, self._policy, durable=durable)
            if state is not None:
                posts.append(Post(lifecycle, state, self._body(lifecycle, state, wall_ms)))
        return posts

    def sending(self, posts: Iterable[Post]) -> None:
        """Note that `posts` are about to be sent: whether they arrive may never be known."""
        for post in posts:
            post.lifecycle.releasing = post.state == "resolved"

    def accepted(self, posts: Iterable[Post], *, now: float) -> None:
        """Note that Alertmanager has taken `posts`."""
        for post in posts:
            for one in post.lifecycle.accepted(post.state, now, self._policy):
                self._ledger.delivered(one.at)

    def refused(self, post: Post) -> list[FindingRecord]:
        """Note that Alertmanager will never take `post`; return the findings that go undelivered by that."""
        lifecycle = post.lifecycle
        lifecycle.refused = True
        undelivered = lifecycle.firings if post.state == "firing" else lifecycle.resolves
        for one in [*lifecycle.firings, *lifecycle.resolves]:
            self._ledger.delivered(one.at)
        self._drop(lifecycle)
        return [*undelivered] or [lifecycle.latest]

    def counts(self) -> dict[str, int]:
        """Return how many alerts are firing, held back (over, but not resolved yet), and resolved a short while ago."""
        found = {"firing": 0, "held": 0, "resolved": 0}
        for queue in self._alerts.values():
            for lifecycle in queue:
                state = "firing" if lifecycle.open else "resolved" if lifecycle.releasing else "held"
                found[state] += 1
        return found

    def _fire(self, one: FindingRecord) -> None:
        queue = self._alerts.setdefault(labels_of(one), deque())
        delivered = self._ledger.was_delivered(one.at, firing=True)
        if queue and queue[-1].joins(one, self._policy):
            lifecycle = queue[-1]
            for superseded in lifecycle.resolves:
                self._ledger.delivered(superseded.at)
            lifecycle.resolves.clear()
            lifecycle.starts_ms = min(lifecycle.starts_ms, one.onset_ms)
            lifecycle.latest = one
        else:
            lifecycle = AlertLifecycle(labels_of(one), one, one.onset_ms)
            queue.append(lifecycle)
        if delivered:
            lifecycle.heard, lifecycle.unsaid = True, False
        else:
            lifecycle.firings.append(one)
            lifecycle.unsaid = True
            self._ledger.await_firing(one.at)
        lifecycle.open[one.key] = one
        self._alert_of[one.key] = lifecycle

    def _close(self, one: FindingRecord, now: float) -> None:
        lifecycle = self._alert_of.pop(one.key, None)
        if lifecycle is None:
            return  # nothing is known of a firing, or its alert was resolved with its stream
        lifecycle.open.pop(one.key, None)
        if lifecycle.releasing:
            return
        lifecycle.cut.pop(one.key, None)
        lifecycle.over_ms = max(lifecycle.over_ms, one.reported_ms)
        if self._ledger.was_delivered(one.at, firing=False):
            if not lifecycle.open:
                lifecycle.releasing = lifecycle.settled = True
                lifecycle.resolved_at = now - self._policy.keep_s
        elif not lifecycle.open:
            lifecycle.latest = one
            lifecycle.resolves.append(one)
            self._ledger.await_resolve(one.at)

    def _drop(self, lifecycle: AlertLifecycle) -> None:
        for key in [*lifecycle.open, *lifecycle.cut]:
            self._alert_of.pop(key, None)
        lifecycle.open.clear()

    def _stream_is_over(self, key: FindingKey) -> bool:
        state = self._replays.get(key.unit)
        return state is not None and (state.generation != key.generation or state.over)

    def _end_stream(self, key: FindingKey, wall_ms: int) -> None:
        lifecycle = self._alert_of[key]
        del lifecycle.open[key]
        state = self._replays.get(key.unit)
        ended = state is not None and state.generation == key.generation and state.state == "ended"
        # Where the recording has ended, its end; a stop or a seek may come anywhere, and is noted when it comes.
        lifecycle.cut[key] = state.to_ms + state.shift_ms if state is not None and ended else wall_ms

    def _body(self, lifecycle: AlertLifecycle, state: State, wall_ms: int) -> Mapping[str, Any]:
        annotations = annotations_of(lifecycle.latest, runbook_base_url=self._runbook_base_url)
        if state == "firing":
            ends_ms = wall_ms + round(ENDS_AFTER_RESENDS * self._policy.resend_s * 1000)
        else:
            # Shifted times may lie ahead of the clock, and an end in the future would leave the alert firing.
            ends_ms = min(lifecycle.ends_ms, wall_ms)
            if lifecycle.cut:
                annotations["resolve_reason"] = REPLAY_ENDED
        return alert(lifecycle.labels, annotations, starts_ms=min(lifecycle.starts_ms, wall_ms), ends_ms=ends_ms)
