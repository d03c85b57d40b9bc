"""A live run in the terminal: how far it is, and findings as they open and close, each with the alert that it is."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detectors.contract import Finding
from services.detect.warmup import Line
from services.kit import topics
from services.kit.errors import UsageError, UserError
from services.kit.times import to_the_second
from services.live.alerts import alerted, finding_record
from services.live.poll_loop import News
from services.live.start import Run
from services.live.stretches import Stretches
from services.notify.payload import Labels
from services.recording.model import Topology

_PROGRESS = 10
"""So many times the lookback says how far it is."""
_MINUTE_MS = 60_000
_UNSAID = frozenset({"alertname", "fault", "severity", "source", "detector", "replay"})
"""Labels that the line of the finding says already, or that all live alerts share."""


class Progress:
    """Prints, line by line, by `say`, how far a live run is; `until`: the end of its lookback (epoch ms)."""

    def __init__(self, feed: Stretches, say: Callable[[str], None], until: int) -> None:
        self._feed, self._say = feed, say
        self._since = self._progress = feed.at
        self._until = until
        self._catching_up, self._away = True, False
        self._delay_ms = -1

    def begin(self, cluster: str, words: str) -> None:
        """Say what is looked at, and what comes first."""
        self._say(f"{self._feed.server}, cluster {cluster}: {_machines(self._feed.topology)}")
        self._say(words)

    def news(self, news: News) -> None:
        """Say now and then how far the lookback is read."""
        if self._catching_up and news.step.at - self._progress >= (self._until - self._since) / _PROGRESS:
            self._progress = news.step.at
            self._say(f"... read up to {to_the_second(news.step.at)}")
        self._say_delay()

    def following(self) -> None:
        """Say that the present is reached."""
        if self._catching_up or self._away:
            self._catching_up = self._away = False
            self._delay_ms = -1
            self._say_delay()

    def _say_delay(self) -> None:
        """Say how far behind the clock it follows, where that is news."""
        delay_ms = self._feed.lateness.delay_ms
        if not self._catching_up and delay_ms != self._delay_ms:
            self._delay_ms = delay_ms
            self._say(f"{to_the_second(self._feed.at)} following, {delay_ms / 1000:g} s behind the clock")

    def away(self, error: UserError) -> None:
        """Say once that a server does not answer."""
        if not self._away:
            at = to_the_second(self._feed.at)
            self._say(
                f"{error.message}\n  nothing is concluded from that: what came after {at} is read when it answers"
            )
        self._away = True

    def end(self, *, kept: bool) -> None:
        """Say how far it came."""
        self._say(f"ended at {to_the_second(self._feed.at)}{'; --state goes on from there' if kept else ''}")


class Terminal(Progress):
    """Prints what a run finds, too. `alertmanager`: where alerts go, None where nobody is alerted."""

    def __init__(self, run: Run, say: Callable[[str], None], alertmanager: str | None) -> None:
        super().__init__(run.feed, say, run.warmup.from_ms or run.feed.at)
        self._run = run
        self._alert = f"alert goes to {alertmanager}" if alertmanager else "no --alertmanager; would alert"
        self._found = self._over = self._odd = 0
        self._held: list[Line] = []
        self._began = run.goes_on
        self._linked: set[str] = set()

    def begin_run(self) -> None:
        """Say what is looked at, from when on, and what is open."""
        since, open_lines = to_the_second(self._feed.at), self._run.open_lines if self._run.goes_on else ()
        words = f"reading what happened since {since}, so that habits are known"
        if self._run.goes_on:
            words = f"going on from {since} with {len(open_lines)} open finding(s)"
        self.begin(self._run.origin.cluster, words)
        for line in open_lines:
            self._report(line)

    def news(self, news: News) -> None:
        """Print what is reported; of the lookback what was found, as it is found."""
        if self._began:
            self._say_delay()
            for line in news.reported:
                if line.topic == topics.FINDINGS:
                    self._report(line)
                else:
                    self._link(json.loads(line.body))
            return
        for finding in news.step.findings:
            self._recall(finding)
        self._held += news.reported
        super().news(news)

    def following(self) -> None:
        """Say that the present is reached; the first time what the lookback has shown."""
        if not self._began:
            self._began = True
            self._summary()
            if unseen := self._run.feed.unseen():
                more = f"`hindcast coverage --url {self._feed.server}` says what would show more"
                self._say("\n".join([*unseen, more]))
        super().following()

    def _recall(self, finding: Finding) -> None:
        head = f"{to_the_second(finding.detected_at)} {finding.fault} {_entity(finding.entity)}"
        if finding.state == "resolved":
            self._over += finding.severity != "info"
            self._say(f"was over {head}")
            return
        self._odd += finding.severity == "info"
        self._found += finding.severity != "info"
        self._say(f"was {head}: {finding.severity}\n  {finding.summary}")

    def _summary(self) -> None:
        notes = f"; {self._odd} more that alert nobody" if self._odd else ""
        span = f"{to_the_second(self._since)} to {to_the_second(self._feed.at)}"
        self._say(f"{span}: {self._found} finding(s), {self._found - self._over} still open{notes}")
        for line in self._held:
            if line.topic == topics.FINDINGS:
                self._report(line)

    def _report(self, line: Line) -> None:
        one = finding_record(self._run.origin, line, self._feed.topology)
        finding = one.finding
        head = f"{to_the_second(finding.detected_at)} {finding.fault} {_entity(finding.entity)}"
        if finding.state == "resolved":
            lasted = (finding.detected_at - finding.started_at) / _MINUTE_MS
            by_hand = f"\n  {one.closed}" if one.closed is not None else ""
            self._say(f"CLOSED {head}, after {lasted:.0f} min{by_hand}")
            return
        self._say(f"OPEN {head}: {finding.severity}\n  {finding.summary}\n  do: {finding.recommended_action}")
        labels = alerted(one)
        if labels is None:
            self._say(f"  alerts nobody: {'its detector is in shadow' if one.shadow else 'it harms nobody'}")
        else:
            self._say(f"  {self._alert}: {_words(labels)}")

    def _link(self, incident: dict[str, Any]) -> None:
        """Say once that findings belong together."""
        if len(incident["members"]) > 1 and incident["id"] not in self._linked and incident["state"] == "open":
            self._linked.add(incident["id"])
            self._say(f"INCIDENT {incident['id']}: {incident['title']}")


class FindingsFile:
    """Appends findings to a file, one JSON object a line. UserError (exit code 2) where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._append("")

    def news(self, news: News) -> None:
        """Append what was found."""
        self._append("".join(f"{finding.to_json()}\n" for finding in news.step.findings))

    def following(self) -> None:
        """Nothing is to be written of that."""

    def away(self, error: UserError) -> None:
        """Nothing is to be written of that."""

    def _append(self, text: str) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            remedy = "name a file in a folder that is there"
            raise UsageError(f"{self._path}: cannot be written: {error.strerror}", remedy=remedy) from None


def _machines(topology: Topology) -> str:
    gpus = sum(len(node.gpus) for node in topology.nodes)
    models = sorted({node.gpu_model for node in topology.nodes if node.gpu_model})
    nics = sum(len(node.nics) for node in topology.nodes)
    parts = [f"{len(topology.nodes)} node(s)", f"{gpus} GPU(s)" + (f" ({', '.join(models)})" if models else "")]
    parts += [f"{nics} NIC(s)"] if nics else []
    parts += [f"{len(topology.switches)} switch(es)"] if topology.switches else []
    return ", ".join(parts)


def _words(labels: Labels) -> str:
    known = dict(labels)
    inner = ", ".join(f'{name}="{value}"' for name, value in labels if name not in _UNSAID)
    return f"{known['alertname']}{{{inner}}}"


def _entity(entity: Mapping[str, str | int]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(entity.items(), reverse=True))
