"""Other faults that make a GPU slow and have a name: then that is the finding, and the straggler its consequence.

The GPU itself says most of it (throttled by hardware or by heat, a host link trained down or that sends packets
again, NVLink errors); the kernel's and the fabric manager's logs say the rest, of a node. A GPU that is hot and runs
at a lower clock for it is throttled by heat, whether or not it gives a reason.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, LogRecord
from detectors.core.columns import Columns, column, keep_known
from detectors.core.statistics import clamp, median_of
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import GpuLayout, reported
from detectors.signals.bmc_alarms import alarm_line
from detectors.signals.brakes import BY_TWO, COSTS, HALVED, NODE_LEFT, SLOWED, UNSPENT
from detectors.signals.heat_limits import HeatLimits
from detectors.signals.link_lines import BACK, LOST
from detectors.signals.power_limits import SAME_W, power_limits
from detectors.signals.set_clocks import SetClocks
from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN, SW_POWER_CAP, THERMAL, bits_of
from detectors.signals.xid import XIDS, parse_line
from detectors.signals.xid_watch import XID_FIELD
from detectors.straggler.suspects import Suspect

Drew = Callable[[IntArray], FloatArray]
CLOCK, HEAT, LIMIT, LINK, CRC, RETRIES, RESENT, WATTS, ALLOWED = range(9)
_NAMED: Final = HW_SLOWDOWN | THERMAL | HW_POWER_BRAKE
_WARMER_C: Final = 10.0
"""GPUs of a kind under one load are up to 8 degrees apart for good, and a slow one draws less and so is cooler."""
_SLOWED: Final = 0.98
"""Clocks move in steps of 15 MHz, a hundredth: two steps are a loss."""
_LANE: Final = np.array([np.nan, *2.0 ** np.arange(1, 17)])
"""What a lane of each generation of the host link carries, relative to others; a link of none is not read."""
_LIMIT_LEFT, _LINK_LEFT = 0.95, 0.9
_DRAWS: Final = 0.9
"""Of its limit: what a GPU that the limit holds draws on the mean of a minute, with communication in it."""
_CRC_PER_S: Final = 1.0
"""NVLink CRC errors: DCGM warns of any and calls 100 a second a failure; links lose bandwidth in between."""
_REPLAYS_PER_S, _FULL_LINK = 0.5, float(2**5 * 16)
"""Packets sent again on a host link: DCGM's bar for sixteen lanes of the fifth generation, the highest that it has; of
slower and narrower links it is lower by what these carry."""
_HOLDS_MS: Final = 180_000
"""Throttling by heat comes and goes within some scrapes; three minutes hold at 60 s scrapes."""
_MEAN_MS: Final = 60_000.0
"""Clocks under a cap, or in heat, move by some per cent from one reading to the next."""
_MOVES: Final = -np.expm1(-np.arange(_HOLDS_MS + 1) / _MEAN_MS)
"""How far the mean moves to a reading that comes so many ms after the one before: to look it up takes a tenth."""
_LINES_MS: Final = 600_000
"""A line about a fault comes minutes before or after what it does to a job."""
_SUPPLY_MS: Final = 120_000
"""Firmware brakes within seconds of a supply's failure; its line comes up to a minute late, and clocks are means."""
_RECONNECTS_MS: Final = 60_000
"""What a link did to a step is over in the minute after it is back: transports send again within seconds."""
_KEEP_MS: Final = 86_400_000
_LEARNT_MS: Final = 300_000
"""So long into a job it is known what its nodes draw."""
_QUIET: Final = frozenset({"follow_on", "application", "information", "remap_recorded", "correctable_memory"})
"""Classes of XIDs that explain no slowness."""
_SERIOUS: Final = frozenset({"error", "critical"})
_NVLINK: Final = "DCGM_FI_DEV_NVLINK_"
_GOES_ON_FROM: Final = (0, 3, 4, 5, 6, 7, 8)
"""Rows of `KnownCauses.now` that the next reading is held against; heat and limit just follow it."""
_SENT, _RECEIVED = "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"
_LINKS_LEFT: Final = 0.85
"""Of what its mates exchange over NVLink, and of its own before: what `nvlink` calls a bottleneck."""
_USUAL_MINUTES: Final = 30
_REPLAYS, _RECOVERIES = f"{_NVLINK}REPLAY_ERROR_COUNT_TOTAL", f"{_NVLINK}RECOVERY_ERROR_COUNT_TOTAL"


class KnownCauses(Columns):
    """Columns over all GPUs.

    `at` last reading (ms); `now` what it reads: its clock's mean over a minute of work (MHz), heat (degrees), power
    limit (W), what its host link should carry (2^generation times lanes) or once did, NVLink's counts, the host link's,
    its power's mean over a minute (W), and the highest limit that it had; `named_at` when it last read as held by
    something that has a name, `linked_at` as one with NVLink errors, `capped_at` as held by its software power cap
    alone, `hot_at` as hot; `stated` whether it ever gave its reasons; `xid` the last code it reported; `latest` its
    clock, `peak` the highest it had; `exchanged` what it sends and receives over NVLink at work, in the means of a
    minute and of half an hour (bytes a second).
    """

    axis = "dcgm"
    at: IntArray = column(-1)
    now: FloatArray = column(np.nan, 9)
    named_at: IntArray = column(-(2**61))
    linked_at: IntArray = column(-(2**61))
    capped_at: IntArray = column(-(2**61))
    hot_at: IntArray = column(-(2**61))
    stated: BoolArray = column(False)
    xid: FloatArray = column(np.nan)
    latest: FloatArray = column(np.nan)
    peak: FloatArray = column(np.nan)
    exchanged: Any = column(np.nan, 2, dtype=np.float32)
    KEPT = ("lines", "links_lost", "links_back", "set_clocks", "supplies")

    def __init__(self, fleet: Fleet, layout: GpuLayout) -> None:
        super().__init__()
        self._fleet, self._layout = fleet, layout
        self.lines: dict[str, Instant] = {}
        """By node, when its log last reported a fault of its hardware."""
        self.links_lost: dict[str, Instant] = {}
        self.links_back: dict[str, Instant] = {}
        self.supplies: dict[str, Instant] = {}
        """By node, when its BMC first reported a power supply as failed, until it reports it as well again."""
        self.set_clocks = SetClocks()
        self._heat_limits = HeatLimits(layout)

    def begin_afresh(self, name: str) -> None:
        """Go on without the links, clocks and supplies that older versions did not note."""
        if name not in ("links_lost", "links_back", "set_clocks", "supplies"):
            super().begin_afresh(name)

    def take_lines(self, records: Sequence[LogRecord]) -> None:
        """Note when lines reported a fault of a node's hardware, or that a NIC lost its link."""
        for record in records:
            alarm = alarm_line(record)
            if alarm is not None and record.node and alarm[0] == "supply":
                if alarm[2]:
                    self.supplies.pop(record.node, None)
                else:
                    self.supplies.setdefault(record.node, record.at)
            if record.source == "kernel" and record.node:
                if LOST.search(record.message):
                    self.links_lost[record.node] = record.at
                elif BACK.search(record.message):
                    self.links_back[record.node] = record.at
            line = parse_line(record.message) if record.source == "kernel" else None
            known = XIDS.get(line.code) if line else None
            faulty = "SXid" in record.message if known is None else known.group not in _QUIET
            fabric = record.source == "fabricmanager" and record.severity in _SERIOUS
            if record.node and (fabric or (record.source == "kernel" and faulty)):
                self.lines[record.node] = record.at

    def take(self, batch: Batch) -> None:
        """Take readings of GPUs."""
        self.extend()
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        def of(name: str) -> FloatArray:
            return reported(batch, name, tick, here)

        gpus, at, where = batch.entities[here], batch.at[tick, here], batch.index(here, len(self))
        mean, once_carried, once_crc, once_retried, once_resent, drawn, allowed = (
            self.now[row][where] for row in _GOES_ON_FROM
        )
        since_ms = clamp(at - self.at[where], 0, _HOLDS_MS)
        if XID_FIELD in batch.sound:
            self._take_xids(gpus, at, of(XID_FIELD))
        reasons, clock = of("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"), of("DCGM_FI_DEV_SM_CLOCK")
        stated = np.isfinite(reasons)
        self.stated[where] |= stated
        keep_known(self.latest, where, clock)
        self.peak[where] = np.fmax(self.peak[where], clock)
        watts, moves = of("DCGM_FI_DEV_POWER_USAGE"), _MOVES.take(since_ms)
        busy = ~(of("DCGM_FI_DEV_GPU_UTIL") < 50)  # without work nothing holds its clock, and links train down
        moved, drawn = mean + moves * busy * (clock - mean), drawn + moves * (watts - drawn)
        for middle, value in ((moved, clock), (drawn, watts)):
            first = np.isnan(middle)
            if np.count_nonzero(first):
                middle[first] = value[first]
        gen, lanes = of("DCGM_FI_DEV_PCIE_LINK_GEN"), of("DCGM_FI_DEV_PCIE_LINK_WIDTH")
        carries = np.where(busy, _LANE.take(np.minimum(np.fmax(gen, 0), 16).astype(np.int64)) * lanes, np.nan)
        crc = of(f"{_NVLINK}CRC_FLIT_ERROR_COUNT_TOTAL")
        retries = of(_REPLAYS)
        if _RECOVERIES in batch.sound:
            recoveries = of(_RECOVERIES)
            retries = np.fmax(retries + recoveries, np.fmax(retries, recoveries))  # what is not reported is none
        linked, more = retries > once_retried, crc - once_crc
        if np.count_nonzero(more >= _CRC_PER_S):  # mostly none
            linked |= more >= _CRC_PER_S * clamp(since_ms / 1000, 1.0, 60.0)
        resent = of("DCGM_FI_DEV_PCIE_REPLAY_COUNTER")
        named, more = linked | (carries < _LINK_LEFT * once_carried), resent - once_resent
        if np.count_nonzero(more >= 1):  # mostly none
            allowed_per_s = _REPLAYS_PER_S * np.fmin(once_carried / _FULL_LINK, 1.0)
            named |= (more >= 1) & (more >= allowed_per_s * clamp(since_ms / 1000, 1.0, 60.0))
        if np.count_nonzero(reasons >= (_NAMED & -_NAMED)):
            named |= stated & ((bits_of(reasons) & _NAMED) != 0)
        cut = ~self.stated[where] & busy & (clock <= BY_TWO * self.peak[where])
        if np.count_nonzero(cut):  # a brake that comes and goes is not in the mean of a minute
            named |= cut
        if len(capped := (reasons == SW_POWER_CAP).nonzero()[0]):
            self.capped_at[gpus[capped]] = at[capped]
        heat = of("DCGM_FI_DEV_GPU_TEMP")
        hot = self._heat_limits.reached(where, heat, of("DCGM_FI_DEV_MEMORY_TEMP"))
        if np.count_nonzero(hot):
            self.hot_at[gpus[hot]] = at[hot]
        self.named_at[gpus[named]], self.linked_at[gpus[linked]] = at[named], at[linked]
        if _SENT in batch.sound or _RECEIVED in batch.sound:
            self._take_exchanged(where, of(_SENT), of(_RECEIVED), busy, moves)
        limit, carried = power_limits(batch, tick, here), np.fmax(once_carried, carries)
        read = (moved, heat, limit, carried, crc, retries, resent, drawn, np.fmax(allowed, limit))
        for row, value in zip(self.now, read, strict=True):
            keep_known(row, where, value)
        self.at[where] = at

    def _take_exchanged(
        self, where: Any, sent: FloatArray, received: FloatArray, busy: BoolArray, moves: FloatArray
    ) -> None:
        both = np.where(np.isnan(sent + received), np.fmax(sent, received), sent + received)
        both = np.where(busy, both, np.nan)
        for kept, weight in zip(self.exchanged, (moves, moves / _USUAL_MINUTES), strict=True):
            before = kept[where]
            keep_known(kept, where, np.where(np.isnan(before), both, before + weight * (both - before)))

    def _take_xids(self, gpus: IntArray, at: IntArray, code: FloatArray) -> None:
        """Note as a line of the kernel's what a GPU reports instead: its last XID, where it is not that of before."""
        for one in np.flatnonzero((code > 0) & (code != self.xid[gpus]) & np.isfinite(self.xid[gpus])).tolist():
            known = XIDS.get(int(code[one]))
            if known is not None and known.group not in _QUIET:
                self.lines[self._layout.names[self._layout.node[gpus[one]]]] = int(at[one])
        self.xid[gpus] = np.where(np.isfinite(code), code, self.xid[gpus])

    def extend(self) -> None:
        """Make room for GPUs that are new."""
        self._layout.extend()
        start = self.count
        self.grow(len(self._layout))
        self._heat_limits.extend()
        for index in range(start, self.count):
            entity = self._layout.entity(index)
            for facts in self._fleet.nodes.get(str(entity["node"]), {}).get("gpus", ()):
                if int(facts["gpu"]) != entity["gpu"]:
                    continue
                if facts.get("pcie_gen") and facts.get("pcie_width"):
                    self.now[LINK, index] = 2.0 ** float(facts["pcie_gen"]) * float(facts["pcie_width"])
                self.now[[LIMIT, ALLOWED], index] = float(facts.get("power_limit_w") or np.nan)

    def explain(self, one: Suspect, peers: IntArray, drew: Drew, now: Instant) -> bool:
        """Return whether something else explains that a suspect has been slow since then.

        `peers` are the indices of all GPUs of the job; `drew` returns what some drew at work before, (n,) W. GPUs
        that do report, and have not done so since, may still give a reason: that explains it for as long.
        """
        node, those, since = str(one.entity["node"]), one.gpus, one.since
        if self.lines.get(node, -_LINES_MS) >= since - _LINES_MS:
            return True
        if not len(those):
            return False
        others = np.setdiff1d(peers, those)
        given_less = len(those) > 1 and self._capped(node, those, self._alike(node, others))
        spread = len(those) == 1 and self._capped_with_mates(node, those, drew)
        capped = given_less or spread or self._capped_to_a_cost(node, peers) or self._held_with_peers(those, peers)
        if capped or self._lost_a_supply(node, peers, since) or self._exchanges_less(node, those, peers):
            return True
        if len(those) > 1 and one.clock <= SLOWED:
            held = now - self.capped_at[those] <= _HOLDS_MS
            if np.count_nonzero(held & (self.now[WATTS, those] <= UNSPENT * self.now[LIMIT, those])) > len(those) / 2:
                return True
        at = int(self.at[those].max())
        if at >= 0 and at < since and now - since < _HOLDS_MS:
            return True
        if self._unread(one, others, drew(those), now):
            self.named_at[those] = now
        named = self.named_at[those] >= now - _HOLDS_MS
        mates = self._layout.members(node)
        linked = self.linked_at[mates[mates < self.count]] >= now - _HOLDS_MS
        return bool(2 * np.count_nonzero(named) >= len(those) or linked.any())

    def _alike(self, node: str, those: IntArray) -> IntArray:
        """Return those GPUs that are of a node's model."""
        nodes = self._fleet.nodes
        model = nodes.get(node, {}).get("gpu_model")
        same = np.array([nodes.get(name, {}).get("gpu_model") == model for name in self._layout.names], bool)
        return np.asarray(those[same[self._layout.node[those]]])

    def _unread(self, one: Suspect, others: IntArray, watts: FloatArray, now: Instant) -> bool:
        """Return whether something without a reason holds the clock of GPUs: heat, or where they give no reasons at
        all, hardware that halves it, or of a whole node its power. It is as good as named then, and holds for as long.

        That a node has lost power nobody sees of one that is slow since its job began, or since it was first seen.
        """
        node, those = str(one.entity["node"]), one.gpus
        hot = 2 * np.count_nonzero(self.hot_at[those] >= now - _HOLDS_MS) >= len(those)  # checkpoints cool them a while
        warmer = median_of(self.now[HEAT, those]) - median_of(self.now[HEAT, others]) >= _WARMER_C
        if one.clock <= _SLOWED and (hot or warmer):
            return True
        if self.stated[those].any():
            return False
        halves = BY_TWO if len(those) == 1 else HALVED
        at_once = median_of(self.latest[those]) <= halves * median_of(self.latest[others])
        drawn = median_of(self.now[WATTS, those]), median_of(self.now[WATTS, others])
        # A minute's mean shows it later. Peers that wait draw less themselves.
        halved = not drawn[0] > HALVED * drawn[1] or median_of(self.now[WATTS, those] / watts) <= HALVED
        if (at_once or one.clock <= halves) and halved:
            return True
        # Less power takes little of the clock at first.
        lost = median_of(self.now[WATTS, those] / watts) <= NODE_LEFT or drawn[0] <= NODE_LEFT * drawn[1]
        spared = one.clock <= SLOWED and lost
        if len(those) == 1 or not (one.clock <= NODE_LEFT or spared):
            return False
        if self.set_clocks.are_set(node, one.since, now, self.now[CLOCK, those], self.now[WATTS, those]):
            return False
        job, seen = self._fleet.job_of(node), median_of(self.now[CLOCK, those] / self.peak[those]) <= SLOWED
        return seen and (job is None or one.since >= job.start + _LEARNT_MS)

    def network_lost(self, nodes: Iterable[str], since: Instant) -> bool:
        """Return whether a NIC of one of the nodes has lost its link since then, or shortly before and was without.

        It stalls the job's collectives, unevenly as scrapes see it.
        """
        return any(
            self.links_lost.get(node, -_LINES_MS) >= since - _LINES_MS
            and not self.links_lost[node] < self.links_back.get(node, -_LINES_MS) <= since - _RECONNECTS_MS
            for node in nodes
        )

    def _capped(self, node: str, those: IntArray, others: IntArray) -> bool:
        """Return whether a node has a lower power limit than its peers, on all its GPUs, and another node the same: a
        rack that somebody gives less power. That of one node, or of one GPU, may be nobody's choice.
        """
        if self.limits(those, others) is None:
            return False
        watts = median_of(self.now[LIMIT, those])
        same = np.abs(self.now[LIMIT] - watts) < SAME_W
        nodes = self._layout.node[: self.count]
        whole = np.bincount(nodes, same) >= np.bincount(nodes)
        return bool(whole[self._layout.number(node)] and np.count_nonzero(whole) > 1)

    def _capped_to_a_cost(self, node: str, peers: IntArray) -> bool:
        """Return whether the limits of all of a node's GPUs were lowered, and their clocks lie a tenth below those of
        the job's others: `power_throttle` reports that.
        """
        members = self._layout.members(node)
        lowered = self.now[LIMIT, members] < _LIMIT_LEFT * self.now[ALLOWED, members]
        clock, others = self.now[CLOCK, members], self.now[CLOCK, np.setdiff1d(peers, members)]
        return bool(lowered.all() and median_of(clock) <= COSTS * median_of(others))

    def _lost_a_supply(self, node: str, peers: IntArray, since: Instant) -> bool:
        """Return whether a power supply of a node has failed, and the clocks of its GPUs lie below those of the job's
        others since: firmware brakes all of them, to a clock that may be the same for each, as one that was set.
        """
        lost = self.supplies.get(node)
        if lost is None or since < lost - _SUPPLY_MS:
            return False
        members = self._layout.members(node)
        members = members[members < self.count]
        others = median_of(self.now[CLOCK, np.setdiff1d(peers, members)])
        own = self.now[CLOCK, members]
        return bool(median_of(own / self.peak[members]) <= _SLOWED and not median_of(own) > _SLOWED * others)

    def _exchanges_less(self, node: str, those: IntArray, peers: IntArray) -> bool:
        """Return whether a GPU's NVLinks carry less than those of its mates in the job, and than they used to beside
        theirs: it is in its collectives for longer. Who computes longer exchanges as much as ever in each step.
        """
        mates = np.intersect1d(np.setdiff1d(self._layout.members(node), those), peers)
        if len(those) > 1 or len(mates) < 2:
            return False
        now, usual = (kept[those[0]] / median_of(kept[mates]) for kept in self.exchanged)
        return bool(now <= _LINKS_LEFT * min(1.0, usual))

    def _held_with_peers(self, those: IntArray, peers: IntArray) -> bool:
        """Return whether some GPUs, as most of their peers, draw all of a power limit that was lowered for all of them:
        at like power chips run at unlike clocks (Sinha et al., SC22), and the cap is somebody's decision.
        """
        limit, drawn, allowed = self.now[LIMIT], self.now[WATTS], self.now[ALLOWED]
        held = (limit < _LIMIT_LEFT * allowed) & (drawn >= _DRAWS * limit)
        return bool(held[those].all() and 2 * np.count_nonzero(held[peers]) > len(peers))

    def _capped_with_mates(self, node: str, those: IntArray, drew: Drew) -> bool:
        """Return whether a GPU draws as much as its node's others, which have lost power and clock themselves: a cap of
        the node spreads what ran at one clock, as at like power chips run at unlike ones.

        Others that wait for a slow one draw less, too, but at full clocks.
        """
        mates = np.setdiff1d(self._layout.members(node), those)
        slow = median_of(self.now[CLOCK, mates] / self.peak[mates]) <= SLOWED
        lost = slow and median_of(self.now[WATTS, mates] / drew(mates)) <= SLOWED
        return lost and bool(self.now[WATTS, those[0]] >= SLOWED * median_of(self.now[WATTS, mates]))

    def limits(self, those: IntArray, peers: IntArray) -> tuple[float, float] | None:
        """Return the power limit (W) of some GPUs and that of their peers, where it is the lower one."""
        own, others = median_of(self.now[LIMIT, those]), median_of(self.now[LIMIT, peers])
        return (own, others) if own < _LIMIT_LEFT * others else None

    def forget(self, now: Instant) -> None:
        """Drop the lines that nothing will ask for any more."""
        self.lines = {node: at for node, at in self.lines.items() if now - at <= _KEEP_MS}
        self.links_lost = {node: at for node, at in self.links_lost.items() if now - at <= _KEEP_MS}
        self.links_back = {node: at for node, at in self.links_back.items() if node in self.links_lost}
        self.supplies = {node: at for node, at in self.supplies.items() if now - at <= _KEEP_MS}
        self.set_clocks.forget(now - _KEEP_MS)
