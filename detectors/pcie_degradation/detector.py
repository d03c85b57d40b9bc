"""A GPU's host link carries less than it should: trained down, resending, or moving a fraction of what its peers do.

Four signs, any of which is enough: the link's generation or width lies below what the topology says (else what DCGM
says is its most) while the GPU is at work, for half a minute; packets are sent again, for a minute, at more than
DCGM's rate for the link that the machine should have; the peak of what it moves lies far below its peers' in the job
and its own, stretch after stretch; and, where a test fills every link each hour, the mean of the last tests lies below
a bar (the Vela report's rule, off by default). Contention on a shared PCIe switch shows on the neighbours too, and must
last half an hour; where a job's GPUs are low by chance at times, it must last longer than chance makes it. A link that
is low while its GPU idles is by design; where most of the fleet's are low, the topology is wrong. It is wrong about one
GPU that alone gets less to do than its peers for minutes (a false alarm, where it was given as much before), and misses
a link that is slow without saying so in jobs that hardly use it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import (
    Batch,
    DetectorConfig,
    DetectorSpec,
    Fault,
    Finding,
    Instant,
    LogRecord,
)
from detectors.fleet import Fleet
from detectors.gpus import GpuLayout, reported
from detectors.pcie_degradation.config import PcieDegradationConfig
from detectors.pcie_degradation.evidence import BANDWIDTH, LINK, REPLAYS, SAMPLES, evidence, score, summary
from detectors.pcie_degradation.readings import Links
from detectors.pcie_degradation.samples import Samples
from detectors.pcie_degradation.traffic import Traffic
from detectors.spec import load_spec
from detectors.state import pack, unpack

_FAULT: Fault = "pcie_degraded"
_ACTION = "reset the device or reboot the node when it is free, which cures most; if it comes back, reseat or replace"


class PcieDegradation:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = PcieDegradationConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, PcieDegradationConfig):
            raise TypeError(f"{type(config).__name__} is not a PcieDegradationConfig")
        self._config = config
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._links = Links(config)
        self._traffic = Traffic(config, fleet, self._layout)
        self._samples = Samples(config)
        self._book = CaseBook(self.spec.name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take no notice: logs tell nothing here."""
        del records
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        self._extend(int(batch.entities.max(initial=-1)) + 1)
        for tick, here in batch.ticks():
            gpus, at = batch.entities[here], batch.at[tick, here]
            moved = np.fmax(
                reported(batch, "DCGM_FI_PROF_PCIE_TX_BYTES", tick, here),
                reported(batch, "DCGM_FI_PROF_PCIE_RX_BYTES", tick, here),
            )
            self._links.take(batch, tick, here, moved)
            self._traffic.take(gpus, at, moved, self._links.busy[gpus])
            self._samples.take(gpus, at, moved)
        return ()

    def _extend(self, count: int) -> None:
        """Take note of new GPUs, before the first reading of theirs, and of what the topology says of their links."""
        start = self._links.count
        if count <= start:
            return
        self._layout.extend()
        for part in (self._links, self._traffic, self._samples):
            part.grow(len(self._layout))
        for gpu in range(start, len(self._layout)):
            node = self._fleet.nodes.get(self._layout.names[self._layout.node[gpu]], {})
            number = int(self._layout.gpu[gpu])
            told: Mapping[str, Any] = next((entry for entry in node.get("gpus", ()) if int(entry["gpu"]) == number), {})
            self._links.should_gen[gpu] = float(told.get("pcie_gen") or np.nan)
            self._links.should_width[gpu] = float(told.get("pcie_width") or np.nan)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        config, judged = self._config, self._traffic.advance(now)
        over = [finding for entry in self._book.cases() for finding in self._close(now, entry)]
        nothing = np.zeros(self._links.count, bool)
        signs = {
            LINK: self._links.link_suspects(now) if config.link_state else nothing,
            REPLAYS: self._links.replay_suspects(now) if config.replay_rate else nothing,
            BANDWIDTH: self._traffic.suspects() if config.peer_bandwidth and judged else nothing,
            SAMPLES: self._samples.suspects(self._links.count),
        }
        began: list[Finding] = []
        for gpu in np.flatnonzero(np.logical_or.reduce(list(signs.values()))).tolist():
            began += self._found(now, gpu, [sign for sign, suspects in signs.items() if suspects[gpu]])
        return [*over, *began]

    def _found(self, now: Instant, gpu: int, signs: list[str]) -> list[Finding]:
        node = self._layout.names[self._layout.node[gpu]]
        entry = self._book.get(_FAULT, self._layout.named(node, gpu))
        if entry is not None:
            entry.memo["signs"] = sorted({*entry.memo["signs"], *signs})
            return []
        job = self._fleet.job_of(node, int(self._layout.gpu[gpu]))
        who = {"job_id": job.job_id} if job is not None else {}
        parts = (self._links, self._traffic, self._samples)
        return self._book.fire(
            now,
            _FAULT,
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=min(now, self._onset(now, gpu, signs)),
            severity="ticket" if signs == [REPLAYS] else "page",
            score=score(signs),
            summary=summary(in_words(self._layout.named(node, gpu)), gpu, signs, *parts),
            action=_ACTION,
            evidence=evidence(gpu, signs, *parts) | who,
            memo={"signs": signs},
        )

    def _onset(self, now: Instant, gpu: int, signs: list[str]) -> Instant:
        since = {
            LINK: self._links.low_since[gpu],
            REPLAYS: self._links.over_since[gpu],
            BANDWIDTH: self._traffic.low_since[gpu],
            SAMPLES: now - int(self._config.sample_count * self._config.sample_s * 1000),
        }
        return min(int(since[sign]) for sign in signs)

    def _close(self, now: Instant, entry: OpenCase) -> list[Finding]:
        """Close a finding when none of its signs is left; a GPU that is silent stays open."""
        gpu, links, traffic, config = entry.gpu, self._links, self._traffic, self._config
        release_ms = config.release_s * 1000
        if now - links.at[gpu] > config.stale_s * 1000:
            return []
        last = max(int(links.low_at[gpu]), int(links.over_at[gpu]), int(traffic.low_at[gpu]))
        returned = int(links.returned_at[gpu])
        reason = ""
        if returned > max(last, entry.started_at) and now - returned >= release_ms:
            reason = "the GPU was reset, and nothing is wrong since"
        elif all(self._gone(now, gpu, sign) for sign in entry.memo["signs"]):
            reason = "the link is as it should be"
        if not reason:
            return []
        for part in (links, traffic, self._samples):
            part.forget(gpu)
        figures = {"pcie_gen": links.gen[gpu], "pcie_width": links.width[gpu], "replays_per_min": links.rate[gpu]}
        known = {name: float(value) for name, value in figures.items() if np.isfinite(value)}
        return [self._book.resolve(entry, now, reason, known)]

    def _gone(self, now: Instant, gpu: int, sign: str) -> bool:
        links, traffic, config = self._links, self._traffic, self._config
        if sign == LINK:
            return bool(links.well_ms[gpu] >= config.release_s * 1000)
        if sign == REPLAYS:
            return bool(now - links.over_at[gpu] >= config.release_s * 1000)
        if sign == BANDWIDTH:
            unseen = now - max(traffic.judged_at[gpu], traffic.low_at[gpu]) >= config.unseen_s * 1000
            return bool(traffic.well_run[gpu] >= config.release_stretches or unseen)
        return self._samples.well(gpu)

    def snapshot(self) -> bytes:
        """Return the whole state."""
        moved, arrays = self._traffic.snapshot()
        document: dict[str, Any] = {"traffic": moved, "book": self._book.snapshot()}
        return pack(document, arrays | self._links.snapshot() | self._samples.snapshot())

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._links.restore(arrays)
        if detector._links.count:  # else the first batch makes room, and asks the topology
            detector._layout.extend()
        detector._traffic.restore(document["traffic"], arrays)
        detector._samples.restore(arrays)
        detector._book.load(document["book"])
        return detector
