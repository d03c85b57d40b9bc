"""Storms of corrected errors: raised by evidence or by the driver's own word, over when they calm down."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.case_book import CaseBook, in_words
from detectors.contract import BoolArray, Fault, Finding, FloatArray, Instant, IntArray, index_of
from detectors.core.columns import Columns, column
from detectors.core.counting import LOOK_MS, RECENT_S, UNEVEN, Bursts
from detectors.core.evidence import odds_in_words
from detectors.ecc_memory.readings import MemoryReadings
from detectors.fleet.gpus import GpuLayout
from detectors.signals.xid import Xid
from detectors.signals.xid_watch import XidEvent

STORM: Fault = "ecc_correctable_storm"
_LASTING_MS, _LASTING_LOOKS = 600_000, 10
"""An event of errors is one fault that a scrub or a read ran into, and is over in minutes (Delta, SC'25); a GPU that is
struck again and again for ten of them, far more often than ever, has memory that goes on failing."""
_GOES_ON_MS, _NEARLY_ALL = 400_000, 0.9
"""Bouts that a GPU has by habit last for five minutes at most, in recordings of others; what has not paused for longer
is none."""
_LASTING_APART_MS = 90_000
"""Fewer errors than one in a minute and a half (40 an hour) are no storm, however new they are: they harm nothing."""
_LASTING_CALM_MS = 900_000
"""At one error in a minute and a half a gap of a quarter of an hour is no chance."""
_CALM_MS = 240_000
"""Bursts less than four minutes apart are one storm: it is over within the five minutes of a usual resolve."""
_CALM_LOOKS = _CALM_MS // LOOK_MS
_REMEMBERED_MS = 86_400_000
"""A storm that comes back, no larger, is one ticket a day at most (policy)."""
_LARGER = 1.5
"""Half as many errors again, and a storm's worth more, are no scatter of the same waves (judgement)."""
_HABIT = "habit"
_HABIT_LOOKS = 180
"""After an hour, what a GPU always had is its habit."""


class Bouts(Columns):
    """What GPUs came back from by themselves: errors a look, kept up for three looks as a storm's are.

    By GPU: the errors of its last two looks (`before`); the most that it kept up in the bout that goes on (`highest`),
    and in those that were over and no storm (`usual`). As many again say nothing that is new of it. A bout is over
    once a GPU has kept up half as many at most for as many looks (`calm`) as end a storm: a lull is none.

    Of storms that were found it is how many errors they had that counts: `found` in the largest that was over by
    itself, last seen at `found_at` (-1: none). As many again are the same trouble.
    """

    axis = "dcgm"
    before: NDArray[np.float32] = column(0.0, 2, dtype=np.float32)
    highest: NDArray[np.float32] = column(0.0, dtype=np.float32)
    usual: NDArray[np.float32] = column(0.0, dtype=np.float32)
    calm: NDArray[np.int32] = column(0, dtype=np.int32)
    found: NDArray[np.float32] = column(0.0, dtype=np.float32)
    found_at: IntArray = column(-1)

    def look(self, gpus: IntArray, errors: NDArray[np.float32], held: BoolArray) -> None:
        """Take a look at `gpus` (n,), and their `errors` (n,).

        Nothing is learnt of those that are `held` (all GPUs,), of which a storm is found.
        """
        where, (older, last) = index_of(gpus, self.count), self.before
        kept_up = np.minimum(errors, np.minimum(older[where], last[where]))
        older[where], last[where] = last[where], errors
        highest, usual, known = self.highest[where], self.usual[where], held[where]
        calm = np.where(~known & (kept_up <= highest / 2), self.calm[where] + 1, 0)
        over = calm >= _CALM_LOOKS
        self.usual[where] = np.where(over, np.maximum(usual, highest), usual)
        self.highest[where] = np.where(known, 0.0, np.where(over, kept_up, np.maximum(highest, kept_up)))
        self.calm[where] = np.where(over, 0, calm)


class Storms:
    """Decides on the bursts of `single`-bit errors, of which `least` beyond habit within some minutes make a storm.

    Habit is what a GPU corrects when it corrects most: `UNEVEN` times its mean, or what it kept up in a bout before
    (`bouts`), if that is more.
    """

    def __init__(
        self, least: int, layout: GpuLayout, memory: MemoryReadings, single: Bursts, bouts: Bouts, book: CaseBook
    ) -> None:
        self._least, self._layout, self._memory, self._single, self._book = least, layout, memory, single, book
        self._bouts = bouts

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
        return self._storm(
            now, event.node, event.gpu, event.at, summary, self._says(event.gpu) | line_evidence(event, xid)
        )

    def advance(self, now: Instant) -> list[Finding]:
        """At a point of the grid: return what is over, and what began."""
        single, found = self._single, self._calmed(now)
        if not single.due(now):
            return found
        held = np.zeros(len(single), bool)
        held[[entry.gpu for entry in self._book.cases(STORM) if not entry.aspect and entry.gpu >= 0]] = True
        read = np.flatnonzero(single.counter.spent_ms > 0)
        single.look(now, len(self._layout.names), held)
        self._bouts.look(read, single.now[read], held)
        self._part(now, held)
        beyond = single.beyond_chance()
        scatter = UNEVEN * single.level
        habit = np.where(self._bouts.found_at >= 0, scatter, np.maximum(scatter, self._bouts.usual))
        added = single.recent - habit * (RECENT_S * 1000 / LOOK_MS)
        # What goes on at ten a minute is counted from its first error on: none of it is forgotten meanwhile.
        since = single.evidence.since
        goes_on = (since >= 0) & (now - since >= _GOES_ON_MS) & (now - since <= _LASTING_MS)
        goes_on &= single.struck >= _NEARLY_ALL * single.evidence.looks
        looks = (now - since) / LOOK_MS + 1
        added = np.where(goes_on, np.maximum(added, self._errors(slice(None)) - habit * looks), added)
        bursts = beyond[added[beyond] >= self._least]
        lasting = np.setdiff1d(single.lasting(now, _LASTING_LOOKS, _LASTING_MS), bursts)
        lasting = lasting[self._errors(lasting) * _LASTING_APART_MS >= now - single.evidence.since[lasting]]
        lasting = lasting[added[lasting] > 0]  # waves no faster than one that was over by itself are habit
        for gpu in np.concatenate([bursts, lasting]).tolist():
            if held[gpu]:
                continue
            a_minute = 60_000 / LOOK_MS
            where = in_words(self._layout.entity(gpu))
            figures = self._says(gpu) | {
                "single_bit_errors_of_late": float(single.recent[gpu]),
                "of_late_s": RECENT_S,
                "single_bit_errors_per_min": float(single.now[gpu]) * a_minute,
                "single_bit_errors_per_min_usual": float(single.level[gpu]) * a_minute,
                "single_bit_errors_per_min_in_bouts_before": float(self._bouts.usual[gpu]) * a_minute,
                "single_bit_errors_per_min_peers": single.usual_of_peers * a_minute,
                "by_chance": odds_in_words(float(single.evidence.wealth[gpu]), single.watched, LOOK_MS / 1000),
            }
            began = int(single.evidence.since[gpu]) - LOOK_MS
            many = added[gpu] >= self._least
            count = (
                f"{single.recent[gpu]:.0f} single-bit memory errors within minutes"
                if many
                else f"single-bit memory errors again and again for {(now - began) / 60_000:.0f} min"
            )
            usual = f"usually {single.level[gpu] * a_minute:.1f} a minute: uncorrectable ones may follow"
            node = self._layout.names[self._layout.node[gpu]]
            found += self._storm(now, node, gpu, began, f"{where}: {count}, {usual}", figures, slow=not many)
        return found + self._habits(now)

    def _storm(
        self,
        now: Instant,
        node: str,
        gpu: int,
        at: Instant,
        summary: str,
        figures: dict[str, float | int | str],
        *,
        slow: bool = False,
    ) -> list[Finding]:
        """Raise a storm; one that is back, and no larger, is information."""
        where = self._layout.named(node, gpu)
        if gpu >= 0 and self._as_before(gpu):
            self._bouts.found_at[gpu] = now
            figures = figures | {"single_bit_errors_in_storm_before": float(self._bouts.found[gpu])}
            return self._information(now, gpu, at, f"{summary}; back, and no more than before", figures)
        return self._book.fire(
            now,
            STORM,
            where,
            gpu=gpu,
            started_at=at,
            severity="ticket",
            score=0.8,
            summary=summary,
            action="watch for uncorrectable errors and a pending row remap; test the memory when the node is free",
            evidence=figures,
            memo={"slow": slow},
        )

    def _information(
        self, now: Instant, gpu: int, at: Instant, summary: str, figures: dict[str, float | int | str]
    ) -> list[Finding]:
        """Report once what is a GPU's habit: it harms nobody."""
        return self._book.fire(
            now,
            STORM,
            self._layout.entity(gpu),
            gpu=gpu,
            started_at=at,
            severity="info",
            score=0.1,
            summary=summary,
            action="none: its habit is known, and what exceeds it is reported",
            evidence=figures,
            aspect=_HABIT,
        )

    def _calmed(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for entry in self._book.cases(STORM):
            if entry.aspect:
                continue
            heard = now
            if entry.gpu >= 0:
                struck_at = self._single.struck_at if entry.memo.get("slow") else self._single.hot_at
                entry.last_at = max(entry.last_at, int(struck_at[entry.gpu]))
                if (at := int(self._single.counter.at[entry.gpu])) >= 0:
                    heard = at  # a GPU that is silent has not calmed down
            calm_ms = _LASTING_CALM_MS if entry.memo.get("slow") else _CALM_MS
            if heard - entry.last_at >= calm_ms:
                figures = self._says(entry.gpu)
                over.append(self._book.resolve(entry, now, "no more single-bit errors than usual", figures))
                if entry.gpu >= 0:
                    found = self._bouts.found
                    found[entry.gpu] = max(found[entry.gpu], float(self._errors(entry.gpu)))
                    self._bouts.found_at[entry.gpu] = now
                    self._single.begin_anew(entry.gpu)
        return over

    def _part(self, now: Instant, held: BoolArray) -> None:
        """Take each wave by itself that follows a storm; forget storms of long ago, or of before a reset."""
        single, bouts = self._single, self._bouts
        over = (now - bouts.found_at > _REMEMBERED_MS) | (single.counter.fell_at > bouts.found_at)
        bouts.found[over], bouts.found_at[over] = 0.0, -1
        since, hot_at = single.evidence.since, single.hot_at
        waves = (bouts.found_at >= 0) & ~held & (since >= 0) & (hot_at >= since) & (now - hot_at >= _CALM_MS)
        single.begin_anew(np.flatnonzero(waves))

    def _as_before(self, gpu: int) -> bool:
        """Return whether a storm is no more, until now, than one that was found and was over by itself."""
        found = float(self._bouts.found[gpu])
        return bool(self._bouts.found_at[gpu] >= 0) and float(self._errors(gpu)) < max(
            found + self._least, _LARGER * found
        )

    def _errors(self, gpus: Any) -> FloatArray:
        """Return how many errors GPUs (an index of n) have had since the evidence against them began, (n,)."""
        errors: FloatArray = self._single.totals[0, gpus] - self._single.before[0, gpus]
        return errors

    def _habits(self, now: Instant) -> list[Finding]:
        """Report a GPU that has always corrected errors, in number."""
        single = self._single
        an_hour = single.level * 3_600_000 / LOOK_MS
        found: list[Finding] = []
        for gpu in np.flatnonzero((single.learnt >= _HABIT_LOOKS) & (an_hour >= self._least)).tolist():
            where = self._layout.entity(gpu)
            if self._book.get(STORM, where, _HABIT) is not None:
                continue
            summary = f"{in_words(where)}: corrects {an_hour[gpu]:.0f} single-bit memory errors an hour, by habit"
            figures: dict[str, float | int | str] = {
                "single_bit_errors_per_h": float(an_hour[gpu]),
                "single_bit_errors_per_h_peers": single.usual_of_peers * 3_600_000 / LOOK_MS,
            }
            found += self._information(now, gpu, int(self._memory.first_at[gpu]), summary, figures)
        return found

    def _says(self, gpu: int) -> dict[str, float | int | str]:
        return self._memory.says(gpu, self._single.counter) if gpu >= 0 else {}


def line_evidence(event: XidEvent, xid: Xid) -> dict[str, float | int | str]:
    """Return what an XID says, and where it was seen, for evidence."""
    line = {"xid_seen_in": event.seen_in, "xid_text": event.text, "pci_bus_id": event.address}
    return xid.evidence() | {name: value for name, value in line.items() if value}
