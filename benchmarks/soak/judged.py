"""One round of the soak: two replays and a live cluster at once, struck, and what is wrong when all has settled."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.soak.blows import Blow
from benchmarks.soak.brokers import Brokers
from benchmarks.soak.clocks import Clocks
from benchmarks.soak.live import Feed, found_in
from benchmarks.soak.network import Network
from benchmarks.soak.releases import Releases
from benchmarks.soak.striking import Striker
from services.cli.expected_samples import expected
from services.cli.pipeline import DETECT_GROUP, NOTIFY_GROUP, Pipeline, sink_group
from services.cli.stored_samples import differences, held
from services.kit.errors import UserError
from services.kit.wait import until
from services.recording.reader import Recording
from services.stack.runner import Stack

_SETTLE_S = 240.0


@dataclass(frozen=True)
class Played:
    """A replay of the round: what, as what, how fast, and which sink it is for ("prometheus" or "receive")."""

    recording: Path
    name: str
    speed: float
    sink: str

    def start(self, pipeline: Pipeline) -> None:
        """Start it; again where the service is struck as it is asked."""
        shift = "keep" if self.sink == "receive" else "now"

        def started() -> bool:
            try:
                pipeline.start_replay(str(self.recording), speed=self.speed, name=self.name, shift=shift)
            except UserError:  # it may have been taken before the answer was lost, or not
                with suppress(UserError):
                    return bool(pipeline.status(self.name))
                return False
            return True

        until(started, timeout_s=_SETTLE_S, what=f"{self.name} to be started", interval_s=1)

    def violations(self, pipeline: Pipeline, url: str) -> list[str]:
        """Return what the server at `url` lacks or has too much of it, and how its findings and alerts differ."""
        status = pipeline.status(self.name)
        shift_ms, opened = int(status["shift_ms"]), Recording.open(self.recording)
        start_ms, end_ms = opened.manifest.start, opened.manifest.end
        got = held(url, replay=self.name, start_ms=start_ms + shift_ms, end_ms=end_ms + shift_ms)
        want = expected(opened, start_ms=start_ms, end_ms=end_ms)
        wrong = [f"{self.name}: {line}" for line in differences(got, want)]
        due = Counter(finding.to_json() for finding in found_in(self.recording))
        seen = Counter(pipeline.findings(f"{status['cluster']}/{self.name}"))
        wrong += [f"{self.name}: not found: {line}" for line in due - seen]
        return wrong + [f"{self.name}: found, and not in an undisturbed run: {line}" for line in seen - due]

    def alerts(self) -> list[str]:
        """Return the alerts that are to be raised."""
        return alerts_of(self.recording)


@dataclass
class Round:
    """Replays and a live feed on a running stack, each under a name that no other round has."""

    stack: Stack
    pipeline: Pipeline
    replays: Sequence[Played]
    feed: Feed | None = None
    network: Network | None = None
    """Where blows may be cuts."""
    releases: Releases | None = None
    """Where they may be upgrades."""
    brokers: Brokers | None = None
    """Where they may be elections."""
    clocks: Clocks | None = None
    """Where they may be steps of clocks."""

    def run(self, blows: Sequence[Blow]) -> list[str]:
        """Play all of it while `blows` fall, wait until it has settled, and return what is wrong then."""
        striker = Striker(self.stack, self.network, self.releases, self.brokers, self.clocks)
        due = {played.name: played.alerts() for played in self.replays}
        if self.feed is not None:
            due |= {self.feed.cluster: alerts_of(self.feed.recording.path)}
        wrong: list[str] = []
        with striker.striking(blows) if blows else nullcontext():
            if self.feed is not None:
                self.feed.begin()
            for played in self.replays:
                played.start(self.pipeline)
        try:
            self._settle(due)
        except UserError as error:
            wrong.append(str(error))
        finally:
            if self.feed is not None:
                self.feed.end()
        return wrong + striker.faults + self._violations(due)

    def _settle(self, due: dict[str, list[str]]) -> None:
        for played in self.replays:
            self.pipeline.wait_over(played.name, timeout_s=_SETTLE_S)
        sinks = {sink_group(played.sink) for played in self.replays}
        if self.feed is None:
            self.pipeline.wait_caught_up(*sinks, DETECT_GROUP, NOTIFY_GROUP, timeout_s=_SETTLE_S)

        def all_sent() -> bool:
            return all(len(self._heard(name)) >= 2 * len(alerts) for name, alerts in due.items())

        until(all_sent, timeout_s=_SETTLE_S, what="every alert and its end at the webhook", interval_s=1)
        if self.feed is not None:
            self.feed.end()
            self.pipeline.wait_caught_up(*sinks, DETECT_GROUP, NOTIFY_GROUP, timeout_s=_SETTLE_S)

    def _violations(self, due: dict[str, list[str]]) -> list[str]:
        at = self.stack.addresses
        wrong = []
        for played in self.replays:
            servers = [at.thanos_query] + ([at.prometheus] if played.sink == "prometheus" else [])
            wrong += [line for url in servers for line in played.violations(self.pipeline, url)]
        if self.feed is not None:
            found = self.pipeline.findings(f"{self.feed.cluster}/live")
            wrong += self.feed.violations(found)
        for name, alerts in due.items():
            wanted = Counter(f"{word} {alert}" for alert in alerts for word in ("firing", "resolved"))
            heard = Counter(self._heard(name))
            wrong += [f"{name}: not sent: {line}" for line in wanted - heard]
            wrong += [f"{name}: sent once too often: {line}" for line in heard - wanted]
        return wrong

    def _heard(self, name: str) -> list[str]:
        """Return what webhooks got of a replay, or of the live cluster, by detectors: one entry a notification."""
        live = self.feed is not None and name == self.feed.cluster
        return [
            f"{hook['body']['status']} {alert}"
            for hook in self.pipeline.webhooks("live" if live else name)
            for alert in _detectors_alerts(hook["body"]["alerts"], name if live else None)
        ]


def alerts_of(recording: Path) -> list[str]:
    """Return the alerts that the detectors raise on a recording, in short, as often as they do."""
    raised = [one for one in found_in(recording) if one.state == "firing" and one.severity != "info"]
    return [_alert(one.fault, one.entity) for one in raised]


def _detectors_alerts(alerts: Iterable[dict[str, Any]], cluster: str | None) -> Iterable[str]:
    for alert in alerts:
        labels = alert["labels"]
        if labels["source"] == "detector" and cluster in (None, labels["cluster"]):
            yield _alert(labels["fault"], labels)


def _alert(fault: str, labels: Mapping[str, Any]) -> str:
    places = ("node", "gpu", "nic", "switch", "port", "mount", "job_id")
    return " ".join([fault, *(f"{name}={labels[name]}" for name in places if name in labels)])
