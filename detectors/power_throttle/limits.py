"""A power limit that is lower on some GPU than on the others of its model.

A limit lowered on the whole fleet is somebody's decision, and so is one that all GPUs of a node have had since they
were first seen: no fault, and at most worth a note. What harms is one that was lowered meanwhile, or on one card of a
node, and that binds: the card draws what it may, and its clock stays below its peers'.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, LogRecord
from detectors.core.columns import Columns, column, keep_known
from detectors.core.statistics import median_of
from detectors.fleet.gpus import GpuLayout, reported
from detectors.signals.brakes import SLOWED, UNSPENT
from detectors.signals.gpus_at_work import FEWEST_PEERS, GpusAtWork
from detectors.signals.power_limits import ASKED_FOR, IN_FORCE, SAME_W, power_limits
from detectors.signals.throttle_bits import SW_POWER_CAP

_PLAUSIBLE_W: Final = 1e5
_LOWER: Final = 0.9
"""Limits are set in steps of a tenth and more (500 or 600 W on cards of 700 W); boards of one model differ by less."""
_BINDS: Final = 0.9
"""A card that is held draws its limit; a mean over steps with communication in them lies a little lower."""
_STANDS_MS: Final = 30_000
"""A limit is set once and stays: half a minute passes over a change that is being rolled out."""
_SETS: Final = re.compile(
    r"nvidia-smi\b[^|;]*\s(?:-pl|--power-limit)[= ]+(\d+)|\bpower limit\b[^.;]{0,40}\bset to (\d+)[\d.]* ?W\b",
    re.IGNORECASE,
)
_OF_GPUS: Final = re.compile(r"\s(?:-i|--id)[= ]+([\d,]+)")
_OF_ALL: Final = re.compile(r"\ball\b.*\bnodes\b", re.IGNORECASE)
"""How logs show that somebody sets a limit: sudo's and shells' own lines, nvidia-smi's answer, operators' notes."""
_REMEMBERED_MS: Final = 7 * 86_400_000
_LOGS_MS: Final = 3_600_000
"""Where logs come at all, some line comes within the hour."""
_NAME: Final = re.compile(r"[\w.-]*\w")


class Limits(Columns):
    """The `enforced` limit of every GPU (W; NaN not reported), since when it has stood there (ms), and the `first`;
    the one that was `asked` for, by a reading or a line of a log, and by such a line alone (`commanded`).
    """

    axis = "dcgm"
    enforced: FloatArray = column(np.nan)
    since: IntArray = column(-1)
    first: FloatArray = column(np.nan)
    asked: FloatArray = column(np.nan)
    commanded: FloatArray = column(np.nan)

    def __init__(self) -> None:
        super().__init__()
        self.orders: dict[str, tuple[Instant, float]] = {}
        """When and what (W) a job asked for, by its id: it may start after the line of its prolog."""
        self.heard_at: Instant = -1
        """When a log was read last."""

    def take(self, batch: Batch, count: int) -> None:
        """Take a batch; `count` GPUs are known."""
        self.grow(count)
        if not {IN_FORCE, ASKED_FOR} & batch.values.keys():
            return
        for tick, here in batch.ticks():
            watts, at = power_limits(batch, tick, here), batch.at[tick, here]
            if ASKED_FOR in batch.sound:
                keep_known(self.asked, batch.index(here, len(self)), reported(batch, ASKED_FOR, tick, here))
            stands = np.abs(self.enforced[batch.index(here, len(self))] - watts) < SAME_W
            moved = np.flatnonzero(~stands & (watts > 0) & (watts < _PLAUSIBLE_W))  # mostly none
            those = batch.entities[here][moved]
            fresh = np.isnan(self.first[those])
            self.first[those] = np.where(fresh, watts[moved], self.first[those])
            self.enforced[those], self.since[those] = watts[moved], at[moved]

    def take_lines(self, records: Sequence[LogRecord], layout: GpuLayout) -> None:
        """Note the limits that somebody sets, by lines of logs: of the nodes that these are from, or name."""
        for record in records:
            self.heard_at = max(self.heard_at, record.at)
            if record.source not in {"kernel", "scheduler", "job"} or (found := _SETS.search(record.message)) is None:
                continue
            if record.job_id:
                self.orders = {
                    job: order for job, order in self.orders.items() if record.at - order[0] <= _REMEMBERED_MS
                }
                self.orders[record.job_id] = record.at, float(found[1] or found[2])
            named = [record.node] if record.node else _NAME.findall(record.message)
            nodes = layout.names if not record.node and _OF_ALL.search(record.message) else named
            gpus = np.concatenate([np.empty(0, np.int64), *(layout.members(node) for node in nodes)])
            if (which := _OF_GPUS.search(record.message)) is not None:
                gpus = gpus[np.isin(layout.gpu[gpus], [int(one) for one in which[1].split(",") if one])]
            gpus = gpus[gpus < self.count]
            self.asked[gpus] = self.commanded[gpus] = float(found[1] or found[2])

    def lowered(self, now: Instant, gpus: GpusAtWork) -> tuple[BoolArray, BoolArray]:
        """Return which GPUs' limits lie below their model's, (count,), and which of these nobody can have decided."""
        below, lower = np.zeros(self.count, bool), ~(self.enforced >= _LOWER * gpus.limit)
        if not np.count_nonzero(lower):  # as mostly
            return below, below
        known = gpus.fresh(now) & np.isfinite(self.enforced)
        lower &= known & (now - self.since >= _STANDS_MS)
        if not np.count_nonzero(lower):
            return below, below
        for model in np.unique(gpus.model[lower]).tolist():
            alike = known & (gpus.model == model)
            below |= alike & lower & (self.enforced < _LOWER * self.usual(alike))
        if not below.any():
            return below, below
        whole = np.bincount(gpus.layout.node[known & ~below], minlength=len(gpus.layout.names)) == 0
        policy = whole[gpus.layout.node] & (np.abs(self.first - self.enforced) < SAME_W)
        return below, below & ~policy

    def binds(self, gpus: GpusAtWork, clock_peers: FloatArray) -> BoolArray:
        """Return which GPUs their limit holds down, at a clock well below their peers'.

        They draw it, or the driver says that power holds their clock: it is the peaks of a step that the limit cuts.
        """
        slow, stated = gpus.clock <= SLOWED * clock_peers, (np.maximum(gpus.reasons, 0) & SW_POWER_CAP) != 0
        return np.asarray(gpus.busy & (stated | (gpus.power >= _BINDS * self.enforced)) & slow)

    def is_read(self, those: IntArray) -> BoolArray:
        """Return of which GPUs the limit is read: of others nobody knows whether it was lowered."""
        return np.isfinite(self.enforced[those])

    def unspent(self, gpus: GpusAtWork, those: IntArray, watts: FloatArray) -> BoolArray:
        """Return which of some GPUs may draw far more than `watts`: by the limit that is read, else the topology's."""
        read = self.enforced[those]
        return np.asarray(watts <= UNSPENT * np.where(np.isfinite(read), read, gpus.limit[those]))

    def decided(self, gpus: GpusAtWork, those: IntArray, watts: FloatArray) -> BoolArray:
        """Return which of some GPUs draw, with `watts`, all of a limit that somebody has set lower meanwhile.

        What the platform itself lowers, as for a supply that is lost, nobody has asked for.
        """
        return self.set_lower(gpus, those) & (watts >= _BINDS * self.asked[those])

    def set_lower(self, gpus: GpusAtWork, those: IntArray) -> BoolArray:
        """Return of which of some GPUs somebody has set the limit lower meanwhile."""
        first = self.first[those]
        before = np.where(np.isfinite(first), first, gpus.limit[those])
        return np.asarray(self.asked[those] <= _LOWER * before)

    def ordered(self, those: IntArray, job_id: str) -> BoolArray:
        """Return of which of some GPUs a log shows that somebody, or their job, set the limit that they have now.

        Who lowers it need not get what they ask for: it may be rounded, go down in steps, or be set again by hand.
        """
        _, watts = self.orders.get(job_id, (0, np.nan))
        now, commanded = self.enforced[those], self.commanded[those]
        near = (commanded <= _LOWER * self.first[those]) & (now >= _BINDS * commanded)
        return np.asarray(near | (np.abs(commanded - now) < SAME_W) | (np.abs(watts - now) < SAME_W))

    def logs_come(self, now: Instant) -> bool:
        """Return whether logs are read: then they show who sets a limit."""
        return now - self.heard_at <= _LOGS_MS

    def spent(self, gpus: GpusAtWork, those: IntArray, watts: FloatArray) -> BoolArray:
        """Return which of some GPUs count throttled time for a limit that is lower than it was at first.

        They draw all of it with `watts`, or give their reasons: a brake would be among them.
        """
        by_it = (watts >= _BINDS * self.enforced[those]) | (gpus.reasons[those] >= 0)
        return np.asarray(self.fell(those) & by_it)

    def fell(self, those: IntArray) -> BoolArray:
        """Return of which of some GPUs the limit is lower than it was at first, whoever lowered it."""
        return np.asarray(self.enforced[those] <= _LOWER * self.first[those])

    def usual(self, alike: BoolArray) -> float:
        """Return the limit that most of some GPUs have, W; NaN where they are too few to say."""
        if np.count_nonzero(alike) < FEWEST_PEERS:
            return float("nan")
        return median_of(self.enforced[alike])
