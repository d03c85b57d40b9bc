"""Readings stop or freeze although the thing itself is evidently alive: look at the collector, not at the machine.

A stream of a node (GPUs, NICs, BMC) or of a switch that is away for five minutes (a BMC for half an hour: updates of
firmware take so long), and longer than such streams are ever away here by chance, is a gap if something shows that the
node lives: another in-band stream of it, or steps of its job after the silence began; for a switch its links that are
up, or the job on its nodes. Of a BMC that is silent nobody sees its node's supplies, fans and inlet. Scrapes get lost
several in a row, and collectors pause for a minute or two: that is nobody's work; where systemd's line says that the
exporter ended, five minutes suffice, however long silences here are. A stream that stutters is away on balance. A GPU
whose every reading is exactly the one before for as long is frozen if its energy counter stands still too, its job goes
on, or the readings show it at work; most GPUs of a node make the node. A switch is frozen if no port counts while NICs
on it move data.

Three or more that stop in the same instant are one collector: one finding, on the first of them by name, with
`affected` saying how many and the pod or rack they share; there its BMC, and no job that stopped, suffice as a sign
of life. One GPU that stops while the node's others go on is `gpu_lost`; a node with no sign of life is `node_down`.

It is wrong about a whole collector gone over idle nodes without BMCs (nothing is reported), about a mount or a NIC that
is taken away for good, about a node without work whose reboot takes longer than a quarter of an hour though it draws
what it did, and it cannot distinguish a frozen NIC from an idle one, so it does not try.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from detectors.base import BaseDetector
from detectors.case_book import OpenCase, in_words
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, Instant, LogRecord
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet
from detectors.fleet.presence import LATE, LEAST_READINGS, Progress
from detectors.fleet.scheduling import Scheduler
from detectors.spec import load_spec
from detectors.telemetry_gap.cases import MOST, TOGETHER, TOGETHER_INTERVALS, Case, Cases
from detectors.telemetry_gap.config import TelemetryGapConfig
from detectors.telemetry_gap.exits import Exits
from detectors.telemetry_gap.freeze import REPEATS, Freeze
from detectors.telemetry_gap.streams import Streams

_BACK = 0.8
"""A collector is back when so many of its nodes are: one of them may be down for another reason."""
_RELEASE_MS: Final = 200_000
"""A collector that stutters, or restarts again and again, is one gap; as long as a resolve within five minutes allows
(policy)."""


class TelemetryGap(BaseDetector):
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = TelemetryGapConfig

    KEPT = ("_streams", "_freezes", "_progress", "_scheduler", "_cases", "_exits")
    _config: TelemetryGapConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        # In the cases' memos: `members`, the nodes or switches it stands for; the case's what, mode, stream, since and
        # usual interval; `back_at` since when it is heard again, or -1.
        config = self._config
        self._streams = Streams(config, fleet, self.tails)
        gauges = [name for name in self.spec.fields["dcgm"] if "ENERGY" not in name]
        self._freezes = {
            "dcgm": Freeze(config, "dcgm", gauges, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
            "switch": Freeze(config, "switch", self.spec.fields["switch"][1:], None),
            "nic": Freeze(config, "nic", self.spec.fields["nic"][1:], None),
        }
        self._progress = Progress(fleet)
        self._scheduler, self._exits = Scheduler(fleet), Exits()
        self._cases = Cases(config, fleet, self._streams, self._freezes, self._progress, self._scheduler, self._exits)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what the scheduler says of nodes, and systemd of exporters."""
        self._scheduler.take(records)
        self._exits.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note who is heard, and whose readings change; what follows is decided at the next point of the grid."""
        self._progress.take(batch)
        if batch.kind == "steps":
            return ()
        self._streams.take(batch)
        if batch.kind in self._freezes:
            self._freezes[batch.kind].take(batch)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is back, and what is missing."""
        self._progress.settle(now)
        self._streams.measure(now, self._cases.excused)
        self._cases.excuse(now)
        for freeze in self._freezes.values():
            freeze.measure(now)
        found = self._close(now)
        for case in self._cases.all(now):  # one after the other: a case that fires may cover the next
            if not self._is_covered(case):
                found += self._fire(now, case)
        return found

    def go_on_with(self, survivors: Survivors) -> None:
        """Let findings that stand for several stand for the rest of them."""
        gone = survivors.names("machine")
        for case in self._book.cases():
            case.memo["members"] = [name for name in case.memo["members"] if name not in gone]

    def _is_covered(self, case: Case) -> bool:
        """Return whether an open finding stands for a case, or may: then the case joins it."""
        for entry in self._book.cases():
            memo = entry.memo
            if (memo["what"] == "switch") != (case.what == "switch"):
                continue
            if case.name in memo["members"] and (memo["what"] != "gpu" or entry.entity.get("gpu") == case.gpu):
                return True
            span = 2 * TOGETHER_INTERVALS * max(case.usual_ms, memo["usual_ms"])
            same = memo["mode"] == case.mode and abs(memo["since"] - case.since) <= span
            if same and len(memo["members"]) >= TOGETHER:
                memo["members"].append(case.name)
                return True
        return False

    def _fire(self, now: Instant, case: Case) -> list[Finding]:
        grouped = len(case.beside) >= TOGETHER
        members = sorted(case.beside) if grouped else [case.name]
        what = "node" if grouped and case.what == "gpu" else case.what
        entity = {what: members[0]} if grouped else case.entity
        silent_s = (now - case.since) / 1000
        evidence: dict[str, float | int | str] = {
            "mode": case.mode,
            "stream": case.stream,
            "since_s": silent_s,
            "usual_interval_s": case.usual_ms / 1000,
            "intervals_missed": (now - case.since) / max(case.usual_ms, 1.0),
            "alive_by": case.alive,
            "affected": len(members),
        }
        if case.needed_ms:
            evidence["longest_by_chance_s"] = case.needed_ms / 1000
        if shared := self._shared(members) if grouped else "":
            evidence["shared"] = shared
        whom = f"{len(members)} {'switches' if what == 'switch' else 'nodes'}, {members[0]} the first,"
        did = "have stopped" if case.mode == "silent" else "have not changed"
        shows = "it is alive" if case.mode == "silent" else "they are stale"
        return self._book.fire(
            now,
            "telemetry_gap",
            entity,
            started_at=min(case.since + int(case.usual_ms), now),
            severity="ticket",
            score=min(1.0, 0.8 + (0.2 if "steps" in case.alive else 0.0)),
            summary=f"{case.stream} readings of {whom if grouped else in_words(entity)} {did} for {silent_s:.0f} s; "
            f"{shows}, as shown by {case.alive}",
            action="restart the collector; until then nothing is known of what it watches",
            evidence=evidence,
            aspect=case.mode,
            memo={
                "what": what,
                "members": members,
                "mode": case.mode,
                "stream": case.stream,
                "since": case.since,
                "usual_ms": case.usual_ms,
                "back_at": -1,
            },
        )

    def _shared(self, nodes: list[str]) -> str:
        """Return the rack or pod that all of some nodes share."""
        for level in ("rack", "pod"):
            places = {str((self._fleet.nodes.get(node) or {}).get(level) or "") for node in nodes}
            if len(places) == 1 and places != {""}:
                return f"{level} {places.pop()}"
        return ""

    def _close(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for entry in self._book.cases():
            memo = entry.memo
            if np.mean([self._is_back(entry, member, now) for member in memo["members"]]) < _BACK:
                memo["back_at"] = -1
            elif memo["back_at"] < 0:
                memo["back_at"] = now
            if memo["back_at"] < 0 or now - memo["back_at"] < max(_RELEASE_MS, 2 * memo["usual_ms"]):
                continue
            lasted = {
                "lasted_s": (memo["back_at"] - entry.started_at) / 1000,
                "affected": len(memo["members"]),
            }
            over.append(self._book.resolve(entry, now, f"its {memo['stream']} readings are back", lasted))
        return over

    def _is_back(self, entry: OpenCase, member: str, now: Instant) -> bool:
        memo = entry.memo
        if memo["mode"] == "frozen":
            return self._moves(entry, member)
        switch = memo["what"] == "switch"
        number = (self._streams.switches if switch else self._streams.nodes).number(member)
        heard = self._streams.of[memo["stream"]].heard
        # Once it is back, single scrapes that get lost do not begin the wait anew.
        late = LATE if memo["back_at"] < 0 else LEAST_READINGS
        return bool(heard.last[number] > memo["since"] + memo["usual_ms"] and heard.missed(now)[number] < late)

    def _moves(self, entry: OpenCase, member: str) -> bool:
        memo, streams = entry.memo, self._streams
        freeze = self._freezes[memo["stream"]]
        if memo["what"] == "switch":
            those = streams.ports_of(streams.switches.number(member))
        else:
            those = streams.gpus_of(streams.nodes.number(member))
        if memo["what"] == "gpu":
            keys = self._fleet.entities(memo["stream"])
            those = those[[int(keys[index][1]) == entry.entity["gpu"] for index in those.tolist()]]
        those = those[(those < len(freeze)) & (freeze.since[those] >= 0)]
        fresh = (freeze.since[those] > memo["since"]) & (freeze.repeats[those] < REPEATS)
        return bool(len(those) and fresh.mean() >= MOST)
