"""Which alerts there are, and what is to be said of them: findings, replay states and time in, alerts out.

Nothing here does I/O or reads a clock: `now` is monotonic seconds, `wall_ms` wall time in epoch milliseconds.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.kit.replays import ReplayState
from services.notify.episode import ENDS_AFTER_RESENDS, Episode, Policy, Say
from services.notify.ledger import Ledger
from services.notify.payload import Labels, alert, annotations_of, labels_of
from services.notify.sighting import FindingKey, Sighting

REPLAY_ENDED = "replay ended"


@dataclass(frozen=True, slots=True)
class Post:
    """One alert that is to be sent now; `body` is an element of `POST /api/v2/alerts`."""

    episode: Episode
    say: Say
    body: Mapping[str, Any]


class Board:
    """All alerts that are firing, held back, or resolved a short while ago.

    An alert is firing as long as any finding with its labels is open. Findings are closed by a resolved record, or by
    the end of the stream they were found in: its last record, a stop, its removal, a new generation.
    """

    def __init__(self, policy: Policy, ledger: Ledger, *, runbook_base_url: str | None = None) -> None:
        self._policy = policy
        self._ledger = ledger
        self._runbook_base_url = runbook_base_url
        # Of each set of labels the alert that is being said, and those that wait for its resolve to be out.
        self._alerts: dict[Labels, deque[Episode]] = {}
        # By finding, open or cut off, the alert that tells of it.
        self._told_by: dict[FindingKey, Episode] = {}
        self._seen: set[tuple[FindingKey, str]] = set()
        self._replays: dict[str, ReplayState] = {}
        self._starts_seen: set[str] = set()

    def take(self, sighting: Sighting, *, now: float, wall_ms: int) -> None:
        """Take a record of the findings topic, in the order of its partition. A repeated one changes nothing.

        One in shadow, or of severity info, is not alerted; its resolve counts, as it may have fired before its detector
        was put there.
        """
        self._ledger.read(sighting.at)
        if (sighting.shadow or sighting.finding.severity == "info") and sighting.finding.state == "firing":
            return
        mark = (sighting.key, sighting.finding.state)
        if mark in self._seen:
            return
        self._seen.add(mark)
        if sighting.finding.state == "resolved":
            self._close(sighting, now)
            return
        self._fire(sighting)
        if self._stream_is_over(sighting.key):
            self._end_stream(sighting.key, wall_ms)

    def follow(self, replays: Mapping[str, ReplayState], *, wall_ms: int) -> None:
        """Take the present states of all replays; what was open in a stream that is over is resolved."""
        if replays == self._replays:
            return
        gone = self._replays.keys() - replays.keys()
        self._replays = dict(replays)
        for key, episode in self._told_by.items():
            if key in episode.open and (key.unit in gone or self._stream_is_over(key)):
                self._end_stream(key, wall_ms)
        # A removed replay may be made again under its name, and then finds again what it found.
        removed = gone | {unit for unit, state in replays.items() if state.state == "removed"}
        self._seen = {mark for mark in self._seen if mark[0].unit not in removed}

    def alertmanager_started(self, start: str) -> None:
        """Take the moment at which Alertmanager says it was started.

        It keeps alerts in memory: when it was restarted, all is said again at once, and a resolve waits until the
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
            episode = queue[0]
            durable = all(self._ledger.is_durable(firing.at) for firing in episode.firings)
            say = episode.say(now, self._policy, durable=durable)
            if say is not None:
                posts.append(Post(episode, say, self._body(episode, say, wall_ms)))
        return posts

    def sending(self, posts: Iterable[Post]) -> None:
        """Note that `posts` are about to be sent: whether they arrive may never be known."""
        for post in posts:
            post.episode.releasing = post.say == "resolved"

    def accepted(self, posts: Iterable[Post], *, now: float) -> None:
        """Note that Alertmanager has taken `posts`."""
        for post in posts:
            for sighting in post.episode.accepted(post.say, now, self._policy):
                self._ledger.delivered(sighting.at)

    def refused(self, post: Post) -> list[Sighting]:
        """Note that Alertmanager will never take `post`; return the findings that go undelivered by that."""
        episode = post.episode
        episode.refused = True
        undelivered = episode.firings if post.say == "firing" else episode.resolves
        for sighting in [*episode.firings, *episode.resolves]:
            self._ledger.delivered(sighting.at)
        self._drop(episode)
        return [*undelivered] or [episode.latest]

    def counts(self) -> dict[str, int]:
        """Return how many alerts are firing, held back (over, but not resolved yet), and resolved a short while ago."""
        found = {"firing": 0, "held": 0, "resolved": 0}
        for queue in self._alerts.values():
            for episode in queue:
                state = "firing" if episode.open else "resolved" if episode.releasing else "held"
                found[state] += 1
        return found

    def _fire(self, sighting: Sighting) -> None:
        queue = self._alerts.setdefault(labels_of(sighting), deque())
        delivered = self._ledger.was_delivered(sighting.at, firing=True)
        if queue and queue[-1].joins(sighting, self._policy):
            episode = queue[-1]
            for superseded in episode.resolves:
                self._ledger.delivered(superseded.at)
            episode.resolves.clear()
            episode.starts_ms = min(episode.starts_ms, sighting.onset_ms)
            episode.latest = sighting
        else:
            episode = Episode(labels_of(sighting), sighting, sighting.onset_ms)
            queue.append(episode)
        if delivered:
            episode.heard, episode.unsaid = True, False
        else:
            episode.firings.append(sighting)
            episode.unsaid = True
            self._ledger.await_firing(sighting.at)
        episode.open[sighting.key] = sighting
        self._told_by[sighting.key] = episode

    def _close(self, sighting: Sighting, now: float) -> None:
        episode = self._told_by.pop(sighting.key, None)
        if episode is None:
            return  # nothing is known of a firing, or its alert was resolved with its stream
        episode.open.pop(sighting.key, None)
        if episode.releasing:
            return
        episode.cut.pop(sighting.key, None)
        episode.over_ms = max(episode.over_ms, sighting.said_ms)
        if self._ledger.was_delivered(sighting.at, firing=False):
            if not episode.open:
                episode.releasing = episode.settled = True
                episode.resolved_at = now - self._policy.keep_s
        elif not episode.open:
            episode.latest = sighting
            episode.resolves.append(sighting)
            self._ledger.await_resolve(sighting.at)

    def _drop(self, episode: Episode) -> None:
        for key in [*episode.open, *episode.cut]:
            self._told_by.pop(key, None)
        episode.open.clear()

    def _stream_is_over(self, key: FindingKey) -> bool:
        state = self._replays.get(key.unit)
        return state is not None and (state.generation != key.generation or state.over)

    def _end_stream(self, key: FindingKey, wall_ms: int) -> None:
        episode = self._told_by[key]
        del episode.open[key]
        state = self._replays.get(key.unit)
        ended = state is not None and state.generation == key.generation and state.state == "ended"
        # Where the recording has ended, its end; a stop or a seek may come anywhere, and is noted when it comes.
        episode.cut[key] = state.to_ms + state.shift_ms if state is not None and ended else wall_ms

    def _body(self, episode: Episode, say: Say, wall_ms: int) -> Mapping[str, Any]:
        annotations = annotations_of(episode.latest, runbook_base_url=self._runbook_base_url)
        if say == "firing":
            ends_ms = wall_ms + round(ENDS_AFTER_RESENDS * self._policy.resend_s * 1000)
        else:
            # Shifted times may lie ahead of the clock, and an end in the future would leave the alert firing.
            ends_ms = min(episode.ends_ms, wall_ms)
            if episode.cut:
                annotations["resolve_reason"] = REPLAY_ENDED
        return alert(episode.labels, annotations, starts_ms=min(episode.starts_ms, wall_ms), ends_ms=ends_ms)
