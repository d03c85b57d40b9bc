"""Sends what is due, as often as it takes; sorts out the alerts that will never be taken."""

import logging
import random
from collections.abc import Callable, Sequence

from prometheus_client import Counter, Gauge

from services.kit.findings import FindingRecord
from services.notify.alert_store import AlertStore, Post
from services.notify.alertmanager import Alerting

_log = logging.getLogger(__name__)
SENT = Counter("hindcast_notify_alerts_sent_total", "Alerts accepted by Alertmanager, repeats included.", ["state"])
UP = Gauge("hindcast_notify_alertmanager_up", "Whether the last request to Alertmanager was answered with success.")

_FIRST_PAUSE_S = 0.25
_ALERTS_PER_REQUEST = 256


class Delivery:
    """Brings the alerts that are due to Alertmanager. Nothing is given up but what the server refuses for good."""

    def __init__(
        self,
        alerts: AlertStore,
        server: Alerting,
        *,
        refused: Callable[[FindingRecord, str], None],
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int],
        longest_pause_s: float,
    ) -> None:
        self._alerts = alerts
        self._server = server
        self._refused = refused
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._longest_pause_s = longest_pause_s
        self._not_before = 0.0
        self._pause_s = 0.0

    def deliver(self) -> None:
        """Send everything that is due, unless a pause after a failure is on."""
        if self._monotonic() < self._not_before or not self._due():
            return
        started = self._server.started()
        if started is None:
            self._failed("its status cannot be read")
            return
        self._alerts.alertmanager_started(started)
        posts = self._due()
        for start in range(0, len(posts), _ALERTS_PER_REQUEST):
            if not self._send(posts[start : start + _ALERTS_PER_REQUEST]):
                return
        if self._pause_s:
            _log.warning("alertmanager answers again")
        self._pause_s = 0.0
        UP.set(1)

    def _due(self) -> list[Post]:
        return self._alerts.due(now=self._monotonic(), wall_ms=self._wall_ms())

    def _send(self, posts: Sequence[Post]) -> bool:
        self._alerts.sending(posts)
        answer = self._server.post([post.body for post in posts])
        if answer.outcome == "accepted":
            self._alerts.accepted(posts, now=self._monotonic())
            for post in posts:
                SENT.labels(post.state).inc()
            return True
        if answer.outcome == "away":
            self._failed(answer.words)
            return False
        if len(posts) > 1:  # it has taken the good ones, and does not say which these are
            return all(self._send([post]) for post in posts)
        for one in self._alerts.refused(posts[0]):
            self._refused(one, f"Alertmanager refused it: {answer.words}")
        return True

    def _failed(self, words: str) -> None:
        if not self._pause_s:
            _log.warning("alertmanager cannot be used, alerts are kept and tried again reason=%s", words)
        self._pause_s = min(self._longest_pause_s, max(_FIRST_PAUSE_S, self._pause_s * 2))
        # Jitter: several notify must not come back all at once. Nothing secret rests on it.
        self._not_before = self._monotonic() + self._pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - see above
        UP.set(0)
