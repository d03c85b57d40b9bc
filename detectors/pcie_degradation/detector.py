"""A GPU's host link carries less than it should: trained down, resending, or moving a fraction of what it did.

Stated: the link's generation or width lies below what the topology says (else what DCGM says is its most) while the GPU
is at work, for half a minute; XID 167. Inferred, by evidence within the budget of false alarms: packets are sent again
at more than DCGM's rate for the link that the machine should have, in several looks (a counter that jumps once, as at a
reset of the link, has no rate), and far more often than this GPU's and its peers' are (`detectors.core.counting`); the
peak of what it moves lies below 0.6 of its peers' in the job and of its own before (`detectors.core.shares`), which is
the effect on the work that a slow link has. In a synchronous job every rank moves the same in a step, however slow its
link: means hide the culprit, the peak of half a minute shows it. Contention on a shared PCIe switch shows on the
neighbours, too, and must last half an hour. A link that is low while its GPU idles is by design; where most of the
fleet's are low, the topology is wrong.

It is wrong about one GPU that alone gets less to do than its peers for minutes, where it was given as much before (a
false alarm), and misses a link that is slow without saying so since its job began, or in jobs that hardly use it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Fault, Finding, Instant, LogRecord
from detectors.core import counting, shares
from detectors.core.evidence import odds_in_words
from detectors.core.tails import Tails
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import WHOLE_NODE, GpuLayout, reported
from detectors.pcie_degradation.links import STALE_MS, Links
from detectors.signals.effort import effort
from detectors.signals.energy import Energy
from detectors.signals.xid import XidCatalogue
from detectors.signals.xid_watch import XidEvent, XidWatch
from detectors.spec import load_spec

_FAULT: Fault = "pcie_degraded"
_ACTION = "reset the device or reboot the node when it is free, which cures most; if it comes back, reseat or replace"
_GB = 1e9
_LINK, _REPLAYS, _BANDWIDTH, _XID = "link", "replays", "bandwidth", "xid"
_SCORE = {_LINK: 0.9, _REPLAYS: 0.7, _BANDWIDTH: 0.7, _XID: 1.0}
_LEAST = 1e9
"""bytes/s: below what a lane of generation 3 carries, a slow link costs nothing, and rates are chatter."""
_FULL = 5e7
"""bytes/s: a link that holds up the work is full, and one lane of generation 1 carries 250 MB/s; a fifth, as rates are
means in which the work also computes. Who moves less has nothing to move."""
_CONTENTION_LOOKS = 60
"""Half an hour; somebody's copy over a shared switch lasts some minutes."""
_RELEASE_MS, _RELEASE_LOOKS = 120_000, 5
"""A healthy link for so long ends a finding, so that one that flutters is one finding."""
_UNSEEN_MS = 3_600_000
"""Bandwidth that nothing can be compared with for an hour is no finding any more: its job is over, or changed."""
_A_MINUTE = 60_000 / counting.LOOK_MS


class PcieDegradationConfig(DetectorConfig):
    """What can be set; the defaults, with unit and source of each, are in detector.yaml."""

    bandwidth_left: float = Field(gt=0, lt=1)


class PcieDegradation:
    """See the module."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = PcieDegradationConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, PcieDegradationConfig):
            raise TypeError(f"{type(config).__name__} is not a PcieDegradationConfig")
        self._config, self._fleet = config, fleet
        self._layout = GpuLayout(fleet)
        self._catalogue = XidCatalogue(config.xid_overrides)
        self._xids = XidWatch(self._catalogue.codes("pcie"), self._layout)
        self._links, self._energy = Links(), Energy().along("dcgm")
        self.tails = Tails(config.calibration)
        budget = config.false_alarms_per_100_node_days / 2
        self._replays = counting.Bursts("PCIe replays", self.tails, budget).along("dcgm")
        self._moved = shares.Shares(
            self.tails["PCIe peaks"], budget, ratio=config.bandwidth_left, least=_LEAST, peaks=True
        ).along("dcgm")
        self._book = CaseBook(self.spec.name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take the kernel's lines about XIDs; what follows from them is decided at the next point of the grid."""
        self._xids.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        self._extend(batch.reach)
        for tick, here in batch.ticks():
            at, where = batch.at[tick, here], batch.index(here, len(self._links))
            sent = reported(batch, "DCGM_FI_PROF_PCIE_TX_BYTES", tick, here)
            moved = np.fmax(sent, reported(batch, "DCGM_FI_PROF_PCIE_RX_BYTES", tick, here))
            self._links.take(batch, tick, here, moved)
            replays = reported(batch, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", tick, here)
            self._replays.counter.take(where, at, replays)
            self._xids.take(batch, tick, here)
            work = effort(batch, tick, here, reported(batch, "DCGM_FI_PROF_DRAM_ACTIVE", tick, here))
            used = reported(batch, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", tick, here)
            news = self._links.busy[where] & ~self._energy.stands(where, used)  # what stands still says nothing anew
            self._moved.take(where, np.where(news, moved, np.nan), work)
        return ()

    def _resending(self) -> list[int]:
        """Return who goes on sending again more than DCGM allows, and a minute's worth beyond habit of late."""
        replays, gpus = self._replays, self._replays.beyond_chance()
        usual = replays.level[gpus] * (1000 * counting.RECENT_S / counting.LOOK_MS)
        most = np.minimum(self._links.kept_up(gpus), replays.recent[gpus] - usual)
        gone_beyond: list[int] = gpus[most > self._links.replay_bar(gpus)].tolist()
        return gone_beyond

    def _extend(self, count: int) -> None:
        """Take note of new GPUs, before the first reading of theirs, and of what the topology says of their links."""
        start = self._links.count
        if count <= start:
            return
        self._layout.extend()
        for part in (self._links, self._energy, self._replays, self._moved, self._xids):
            part.grow(len(self._layout))
        for gpu in range(start, len(self._layout)):
            node = self._fleet.nodes.get(self._layout.names[self._layout.node[gpu]], {})
            number = int(self._layout.gpu[gpu])
            facts: Mapping[str, Any] = next(
                (entry for entry in node.get("gpus", ()) if int(entry["gpu"]) == number), {}
            )
            self._links.should_gen[gpu] = float(facts.get("pcie_gen") or np.nan)
            self._links.should_width[gpu] = float(facts.get("pcie_width") or np.nan)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._layout.extend()
        self._extend(len(self._layout))
        found = [finding for entry in self._book.cases() for finding in self._close(now, entry)]
        held = np.zeros(self._links.count, bool)
        held[[entry.gpu for entry in self._book.cases() if entry.gpu >= 0]] = True
        signs: dict[int, list[str]] = {}
        for event in self._xids.drain(now):
            if event.gpu >= 0:
                signs.setdefault(event.gpu, []).append(_XID)
            found += self._of_xid(now, event)
        for gpu in self._links.suspects(now).tolist():
            signs.setdefault(gpu, []).append(_LINK)
        if self._replays.due(now):
            counter = self._replays.counter
            read = np.flatnonzero(counter.spent_ms > 0)
            a_minute = 60_000 * counter.grown[read] / counter.spent_ms[read]
            self._replays.look(now, len(self._layout.names), held)
            self._links.resend(now, read, a_minute)
            for gpu in self._resending():
                signs.setdefault(gpu, []).append(_REPLAYS)
        layout = self._layout
        if self._moved.due(now):
            self._moved.look(now, layout.jobs(), layout.gpu, layout.node, held, _CONTENTION_LOOKS)
            low = self._moved.beyond_chance()
            for gpu in low[self._moved.now[low] >= _FULL].tolist():
                where = layout.entity(gpu)
                job = self._fleet.job_of(str(where["node"]), int(where["gpu"]))
                if job is not None and not job.inferred:  # else it is a guess that its peers do the same work
                    signs.setdefault(gpu, []).append(_BANDWIDTH)
        for gpu, seen in sorted(signs.items()):
            found += self._found(now, gpu, seen)
        return found

    def _of_xid(self, now: Instant, event: XidEvent) -> list[Finding]:
        xid, where = self._catalogue.of(event.code), self._layout.named(event.node, event.gpu)
        if (entry := self._book.get(_FAULT, where)) is not None:
            entry.last_at = max(entry.last_at, event.at)
            return []
        if event.again:
            return []
        return self._book.fire(
            now,
            _FAULT,
            where,
            gpu=event.gpu,
            started_at=event.at,
            severity="page",
            score=1.0,
            summary=f"{in_words(where)}: XID {xid.code}, {xid.meaning}",
            action=f"{_ACTION} ({xid.quoted})",
            evidence={"signs": _XID, "xid_seen_in": event.seen_in} | xid.evidence(),
            memo={"signs": [_XID]},
        )

    def _found(self, now: Instant, gpu: int, signs: list[str]) -> list[Finding]:
        where = self._layout.entity(gpu)
        entry = self._book.get(_FAULT, where)
        if entry is not None:
            entry.memo["signs"] = sorted({*entry.memo["signs"], *signs})
            return []
        job = self._fleet.job_of(str(where["node"]), int(where["gpu"]))
        since = {
            _LINK: int(self._links.low_since[gpu]),
            _REPLAYS: int(self._replays.evidence.since[gpu]) - counting.LOOK_MS,
            _BANDWIDTH: int(self._moved.evidence.since[gpu]) - shares.LOOK_MS,
        }
        return self._book.fire(
            now,
            _FAULT,
            where,
            gpu=gpu,
            started_at=min(now, *(since[sign] for sign in signs)),
            severity="ticket" if signs == [_REPLAYS] else "page",
            score=min(1.0, max(_SCORE[sign] for sign in signs) + 0.1 * (len(signs) - 1)),
            summary=self._words(in_words(where), gpu, signs),
            action=_ACTION,
            evidence=self._says(gpu, signs) | ({"job_id": job.job_id} if job is not None else {}),
            memo={"signs": signs},
        )

    def _words(self, where: str, gpu: int, signs: Sequence[str]) -> str:
        links, moved, parts = self._links, self._moved, []
        if _LINK in signs:
            parts.append(
                f"link at {_link(links.gen[gpu], links.width[gpu])} instead of "
                f"{_link(links.should_gen[gpu], links.should_width[gpu])} while busy"
            )
        if _REPLAYS in signs:
            replays, bar = self._replays, links.replay_bar(np.array([gpu]))[0]
            parts.append(
                f"{replays.now[gpu] * _A_MINUTE:.0f} packets a minute sent again, usually "
                f"{replays.level[gpu] * _A_MINUTE:.1f}; {bar:.0f} are allowed"
            )
        if _BANDWIDTH in signs:
            parts.append(
                f"moves {moved.now[gpu] / _GB:.1f} GB/s at most, {moved.usual[gpu] / _GB:.1f} before, "
                f"its peers {moved.peers[gpu] / _GB:.1f}"
            )
        return f"{where}: PCIe {'; '.join(parts)}"

    def _says(self, gpu: int, signs: Sequence[str]) -> dict[str, float | int | str]:
        """Return the numbers, each with its unit in its name."""
        links, moved, replays = self._links, self._moved, self._replays
        numbers = {
            "pcie_gen": links.gen[gpu],
            "pcie_gen_expected": links.should_gen[gpu],
            "pcie_width": links.width[gpu],
            "pcie_width_expected": links.should_width[gpu],
            "pcie_peak_gb_s": moved.now[gpu] / _GB,
            "pcie_peak_before_gb_s": moved.usual[gpu] / _GB,
            "pcie_peak_peers_gb_s": moved.peers[gpu] / _GB,
        }
        if replays.counter.at[gpu] >= 0:
            numbers |= {
                "replays_per_min": replays.now[gpu] * _A_MINUTE,
                "replays_per_min_usual": replays.level[gpu] * _A_MINUTE,
                "replays_per_min_peers": replays.usual_of_peers * _A_MINUTE,
                "replays_per_min_allowed": links.replay_bar(np.array([gpu]))[0],
            }
        evidence: dict[str, float | int | str] = {"signs": ", ".join(signs)}
        evidence |= {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
        if _BANDWIDTH in signs:
            evidence["neighbours_share_it"] = int(moved.excused[gpu] > 0)
            evidence["by_chance"] = odds_in_words(moved.evidence.wealth[gpu], moved.watched, shares.LOOK_MS / 1000)
        elif _REPLAYS in signs:
            evidence["by_chance"] = odds_in_words(
                replays.evidence.wealth[gpu], replays.watched, counting.LOOK_MS / 1000
            )
        return evidence

    def _close(self, now: Instant, entry: OpenCase) -> list[Finding]:
        """Close a finding when none of its signs is left; a GPU that is silent stays open."""
        gpu, links = entry.gpu, self._links
        if gpu == WHOLE_NODE:
            over = now - entry.last_at >= _UNSEEN_MS
            return [self._book.resolve(entry, now, "no further word of it")] if over else []
        if now - links.at[gpu] > STALE_MS:
            return []
        hot_at = int(self._replays.hot_at[gpu]) if _REPLAYS in entry.memo["signs"] else -1
        last = max(int(links.low_at[gpu]), int(self._moved.low_at[gpu]), hot_at)
        fell = int(self._replays.counter.fell_at[gpu])
        returned = max(int(links.returned_at[gpu]), fell, int(self._xids.cleared_at[gpu]))
        if returned > max(last, entry.last_at) and now - returned >= _RELEASE_MS:
            reason = "the GPU was reset, and nothing is wrong since"
        elif all(self._gone(now, entry, sign) for sign in entry.memo["signs"]):
            reason = "the link is as it should be"
        else:
            return []
        links.low_ms[gpu], links.low_run[gpu] = 0.0, 0
        self._replays.begin_anew(gpu)
        self._moved.evidence.forget(gpu)
        return [self._book.resolve(entry, now, reason, self._says(gpu, ()))]

    def _gone(self, now: Instant, entry: OpenCase, sign: str) -> bool:
        gpu, moved = entry.gpu, self._moved
        if sign == _LINK:
            return bool(self._links.well_ms[gpu] >= _RELEASE_MS)
        if sign == _REPLAYS:
            return bool(now - self._replays.hot_at[gpu] >= _RELEASE_MS)
        if sign == _BANDWIDTH:
            unseen = now - max(moved.judged_at[gpu], moved.low_at[gpu]) >= _UNSEEN_MS
            return bool(moved.well[gpu] >= _RELEASE_LOOKS or unseen)
        return now - entry.last_at >= _UNSEEN_MS

    def snapshot(self) -> bytes:
        """Return the whole state."""
        xids, arrays = self._xids.snapshot()
        document: dict[str, Any] = {"xids": xids, "book": self._book.snapshot(), "tails": self.tails.document()}
        arrays |= self._links.arrays("link_") | self._replays.arrays("replays_") | self._moved.arrays("moved_")
        return pack(document, arrays | self._energy.arrays("energy_"))

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config.model_copy(update={"calibration": {}}), fleet)
        detector._links.load(arrays, "link_")
        detector._energy.load(arrays, "energy_").grow(detector._links.count)
        if detector._links.count:  # else the first batch makes room, and asks the topology
            detector._layout.extend()
        detector._replays.load(arrays, "replays_")
        detector._moved.load(arrays, "moved_")
        detector._xids.load(document["xids"], arrays)
        detector.tails.merge(document["tails"])
        detector._book.load(document["book"])
        return detector


def _link(gen: float, width: float) -> str:
    shown = [f"gen {gen:.0f}"] if np.isfinite(gen) else []
    return " ".join([*shown, *([f"x{width:.0f}"] if np.isfinite(width) else [])])
