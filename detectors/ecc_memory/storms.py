"""Storms of corrected errors: raised by evidence or by the driver's own word, over when they calm down."""

import numpy as np

from detectors.case_book import CaseBook, in_words
from detectors.contract import Fault, Finding, Instant
from detectors.core.counting import LOOK_MS, RECENT_S, Bursts
from detectors.core.evidence import odds_in_words
from detectors.core.survivors import Survivors
from detectors.ecc_memory.readings import MemoryReadings
from detectors.gpus import GpuLayout
from detectors.xid import Xid
from detectors.xid_watch import XidEvent

STORM: Fault = "ecc_correctable_storm"
_CALM_MS = 240_000
"""Bursts less than four minutes apart are one storm: it is over within the five minutes of a usual resolve."""
_RETURN_MS = 3_600_000
"""A storm that is back within the hour is the same trouble, and must stay away for `_RETURNED_CALM_MS` then."""
_RETURNED_CALM_MS = 1_800_000
_HABIT = "habit"
_HABIT_LOOKS = 180
"""After an hour, what a GPU always had is its habit."""


class Storms:
    """Decides on the bursts of `single`-bit errors, of which `least` beyond habit within some minutes make a storm."""

    def __init__(self, least: int, layout: GpuLayout, memory: MemoryReadings, single: Bursts, book: CaseBook) -> None:
        self._least, self._layout, self._memory, self._single, self._book = least, layout, memory, single, book
        self.over_at: dict[int, Instant] = {}
        """When a GPU's storm was last over, for the time in which a return is the same trouble."""

    def go_on_with(self, survivors: Survivors) -> None:
        """Give the GPUs new numbers; -1 stands for the nodes whose GPU is not known."""
        over = ((gpu, survivors.number("dcgm", gpu), at) for gpu, at in self.over_at.items())
        self.over_at = {new: at for old, new, at in over if (new < 0) == (old < 0)}

    def complaint(self, now: Instant, event: XidEvent, xid: Xid) -> list[Finding]:
        """Raise what the driver itself says of a GPU's rate of corrected errors."""
        where = self._layout.named(event.node, event.gpu)
        held = self._book.get(STORM, where)
        if held is not None:
            held.last_at = max(held.last_at, event.at)
            return []
        if event.again:
            return []
        summary = f"{in_words(where)}: the driver reports a high rate of corrected memory errors (XID {event.code})"
        return self._storm(now, event.node, event.gpu, event.at, summary, self._says(event.gpu) | told_by(event, xid))

    def advance(self, now: Instant) -> list[Finding]:
        """At a point of the grid: return what is over, and what began."""
        single, found = self._single, self._calmed(now)
        held = np.zeros(len(single), bool)
        held[[entry.gpu for entry in self._book.cases(STORM) if not entry.aspect and entry.gpu >= 0]] = True
        if not single.look(now, len(self._layout.names), held):
            return found
        beyond = single.beyond_chance()
        added = single.recent[beyond] - single.level[beyond] * (RECENT_S * 1000 / LOOK_MS)
        for gpu in beyond[(added >= self._least) & ~held[beyond]].tolist():
            a_minute = 60_000 / LOOK_MS
            where = in_words(self._layout.entity(gpu))
            said = self._says(gpu) | {
                "single_bit_errors_of_late": float(single.recent[gpu]),
                "of_late_s": RECENT_S,
                "single_bit_errors_per_min": float(single.now[gpu]) * a_minute,
                "single_bit_errors_per_min_usual": float(single.level[gpu]) * a_minute,
                "single_bit_errors_per_min_peers": single.usual_of_peers * a_minute,
                "by_chance": odds_in_words(float(single.evidence.wealth[gpu]), single.watched, LOOK_MS / 1000),
            }
            summary = (
                f"{where}: {single.recent[gpu]:.0f} single-bit memory errors within minutes, usually "
                f"{single.level[gpu] * a_minute:.1f} a minute: uncorrectable ones may follow"
            )
            began = int(single.evidence.since[gpu]) - LOOK_MS
            found += self._storm(now, self._layout.names[self._layout.node[gpu]], gpu, began, summary, said)
        return found + self._habits(now)

    def _storm(
        self, now: Instant, node: str, gpu: int, at: Instant, summary: str, said: dict[str, float | int | str]
    ) -> list[Finding]:
        again = now - self.over_at.pop(gpu, -_RETURN_MS) < _RETURN_MS
        return self._book.fire(
            now,
            STORM,
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=at,
            severity="ticket",
            score=0.8,
            summary=summary,
            action="watch for uncorrectable errors and a pending row remap; test the memory when the node is free",
            evidence=said,
            memo={"again": again},
        )

    def _calmed(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        self.over_at = {gpu: at for gpu, at in self.over_at.items() if now - at < _RETURN_MS}
        for entry in self._book.cases(STORM):
            if entry.aspect:
                continue
            heard = now
            if entry.gpu >= 0:
                entry.last_at = max(entry.last_at, int(self._single.hot_at[entry.gpu]))
                if (at := int(self._single.counter.at[entry.gpu])) >= 0:
                    heard = at  # a GPU that is silent has not calmed down
            if heard - entry.last_at >= (_RETURNED_CALM_MS if entry.memo["again"] else _CALM_MS):
                said = self._says(entry.gpu)
                over.append(self._book.resolve(entry, now, "no more single-bit errors than usual", said))
                if entry.gpu >= 0:
                    self._single.begin_anew(entry.gpu)
                    self.over_at[entry.gpu] = now
        return over

    def _habits(self, now: Instant) -> list[Finding]:
        """Tell once of a GPU that has always corrected errors, in number: it harms nobody."""
        single = self._single
        an_hour = single.level * 3_600_000 / LOOK_MS
        found: list[Finding] = []
        for gpu in np.flatnonzero((single.learnt >= _HABIT_LOOKS) & (an_hour >= self._least)).tolist():
            where = self._layout.entity(gpu)
            if self._book.get(STORM, where, _HABIT) is not None:
                continue
            found += self._book.fire(
                now,
                STORM,
                where,
                gpu=gpu,
                started_at=int(self._memory.first_at[gpu]),
                severity="info",
                score=0.1,
                summary=f"{in_words(where)}: corrects {an_hour[gpu]:.0f} single-bit memory errors an hour, by habit",
                action="none: its habit is known, and what exceeds it is told",
                evidence={
                    "single_bit_errors_per_h": float(an_hour[gpu]),
                    "single_bit_errors_per_h_peers": single.usual_of_peers * 3_600_000 / LOOK_MS,
                },
                aspect=_HABIT,
            )
        return found

    def _says(self, gpu: int) -> dict[str, float | int | str]:
        return self._memory.says(gpu, self._single.counter) if gpu >= 0 else {}


def told_by(event: XidEvent, xid: Xid) -> dict[str, float | int | str]:
    """Return what an XID says, and where it was seen, for evidence."""
    told = {"xid_seen_in": event.seen_in, "xid_text": event.text, "pci_bus_id": event.address}
    return xid.evidence() | {name: value for name, value in told.items() if value}
