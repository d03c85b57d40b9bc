"""A port or a switch of the fabric is congested: pauses, marks, drops or waits far above its peers', and for long.

Every port's rates are compared with those of ports of the same kind (leaf to host, leaf to spine, spine) on other
switches, robustly and with an effect size, and with its own habit where peers are few or suffer with it. Bursts are
what collectives and checkpoints do: only what is hot for most of `sustain_s` counts, and what is high everywhere at
once is nobody's. A port that waits for credits must also wait longer than others of its switch: a leaf whose uplinks
all wait alike is given more than they carry, and that is load. Of the ports that are hot together on switches cabled
to one another, the origin is named alone: the switch that marks, drops and sends pauses, not the one that receives
them; in it the port with the marks and drops, else the one whose host pauses it, else the one that pauses most; the
switch itself if most of its ports do so.
NICs without credits (`port_xmit_wait`) speak for the switch port at their other end where no switch reports.

It is wrong about two congestions at a time on neighbouring switches (one finding), about a fabric congested as a
whole from the start (nothing to compare with), about a lost spine whose load the others carry evenly (`link_fault`
names the spine), and about a job that fills one InfiniBand uplink and not those beside it, which nobody minds.
"""

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook
from detectors.congestion.config import CongestionConfig
from detectors.congestion.fabric import Fabric, Port
from detectors.congestion.flows import KEPT_HOT, Flows
from detectors.congestion.origin import Origin, origin_of, together
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Evidence, Finding, Instant, LogRecord
from detectors.fleet import Fleet
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.statistics import known_or

_SLOWED_CNPS_PER_S = 100.0
"""A sender told so often to slow down is a victim (judgement)."""


class Congestion:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = CongestionConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, CongestionConfig):
            raise TypeError(f"{type(config).__name__} is not a CongestionConfig")
        self._config = config
        self._fabric = Fabric(fleet)
        of = self.spec.fields["switch"]
        received = [name for name in of if name.endswith("RX_PKTS")]
        sent = [name for name in of if name.endswith("TX_PKTS")]
        drops = ["SAI_PORT_STAT_IF_OUT_DISCARDS", "SAI_PORT_STAT_IF_IN_DISCARDS", "port_xmit_discards"]
        waits = (["port_xmit_wait"], config.wait_ticks_per_s)
        ports = {
            "rx": (received, config.pauses_per_s),
            "tx": (sent, config.pauses_per_s),
            "mark": (["SAI_PORT_STAT_ECN_MARKED_PACKETS"], config.marks_per_s),
            "drop": (drops, config.drops_per_s),
            "wait": waits,
        }
        nics = {
            "wait": waits,
            "drop": (["port_xmit_discards"], config.drops_per_s),
            "cnp": (["np_cnp_sent"], _SLOWED_CNPS_PER_S),
            "slowed": (["rp_cnp_handled"], _SLOWED_CNPS_PER_S),
        }
        octets = ["SAI_PORT_STAT_IF_OUT_OCTETS"]
        self._ports = Flows(config, "switch", ports, list(ports), octets)
        self._nics = Flows(config, "nic", nics, ["wait", "drop"], ["port_xmit_data"])
        # A case's "near" are the switches on which what is hot belongs to it.
        self._book = CaseBook(self.spec.name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take no notice: switches' counters tell it."""
        del records
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        (self._ports if batch.kind == "switch" else self._nics).take(batch)
        self._fabric.sync(len(self._ports), len(self._nics))
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._ports.score(now, self._fabric.group, self._fabric.switch)
        self._nics.score(now, self._fabric.nic_group, self._fabric.nic_switch)
        hot = self._hot(KEPT_HOT)
        found = self._close(now, hot)
        sure = self._hot(1.0) if hot else hot
        if not sure:
            return found
        for lot in together(self._fabric, hot):
            if not any(port in sure for port in lot):
                continue
            origin = origin_of(self._config, self._fabric, lot)
            if not any(origin.switch in case.memo["near"] for case in self._book.cases("fabric_congestion")):
                found += self._fire(now, origin, lot)
        return found

    def _hot(self, share: float) -> dict[Port, dict[str, float]]:
        """Return the ports that have been hot for that share of what is sustained, with their signals."""
        hot: dict[Port, dict[str, float]] = {}
        for number in np.flatnonzero(self._ports.sustained(share)).tolist():
            told = self._ports.strength(number)
            hot[self._fabric.ports[number]] = told | {"rx": told["rx"] + told["wait"]}
        waiting = np.flatnonzero(self._nics.sustained(share)).tolist()
        reporting = {switch for switch, _ in self._fabric.ports} if waiting else set()
        for number in waiting:
            port = self._fabric.nics[number]
            if port is not None and port[0] not in reporting:
                # A NIC that waits for credits is paused by the switch port that it is plugged into.
                told = self._nics.strength(number)
                hot[port] = {"tx": told["wait"], "drop": told["drop"]}
        return hot

    def _fire(self, now: Instant, origin: Origin, lot: dict[Port, dict[str, float]]) -> list[Finding]:
        started_at = self._onset(now, lot)
        where = f"{origin.switch} {origin.port}".strip()
        return self._book.fire(
            now,
            "fabric_congestion",
            {"switch": origin.switch, "port": origin.port} if origin.port else {"switch": origin.switch},
            started_at=started_at,
            severity="ticket",
            score=0.9 if origin.by == "marks and drops" else 0.75,
            summary=f"{where} is congested for {(now - started_at) / 1000:.0f} s, by {origin.by}; "
            f"{len(lot) - len(origin.ports)} other ports suffer",
            action="find the flows through it (who sends, who receives), check its ECN and PFC "
            "configuration against its peers', and whether a link beside it is lost",
            evidence=self._evidence(origin, lot),
            memo={"near": sorted({origin.switch} | {near for port in lot for near in self._fabric.near(port[0])})},
        )

    def _onset(self, now: Instant, lot: dict[Port, dict[str, float]]) -> Instant:
        firsts = [
            int(self._ports.first_hot[number]) for number, port in enumerate(self._fabric.ports) if port in lot
        ] + [int(self._nics.first_hot[number]) for number, port in enumerate(self._fabric.nics) if port in lot]
        return min((first for first in firsts if first >= 0), default=now)

    def _evidence(self, origin: Origin, lot: dict[Port, dict[str, float]]) -> Evidence:
        evidence: dict[str, float | int | str] = {
            "by": origin.by,
            "ports_hot": len(lot),
            "ports_of_origin": len(origin.ports),
            "switches_hot": len({switch for switch, _ in lot}),
        }
        units = {"rx": "pauses_received", "tx": "pauses_sent", "mark": "ecn_marks", "drop": "drops", "wait": "waits"}
        named = [n for n, port in enumerate(self._fabric.ports) if port[0] == origin.switch and port[1] in origin.ports]
        if named:
            rates = known_or(self._ports.smooth[:, named], 0.0).max(axis=1)
            for signal, rate in zip(self._ports.names, rates.tolist(), strict=True):
                evidence[f"{units[signal]}_per_s"] = rate
                evidence[f"{units[signal]}_per_s_median"] = self._ports.median(signal)
        if len(self._nics):
            slowed = self._nics.smooth[self._nics.names.index("slowed")]
            bar = max(_SLOWED_CNPS_PER_S, 4 * self._nics.median("slowed"))
            evidence["nics_slowed"] = int((known_or(slowed, 0.0) >= bar).sum())
        far = self._fabric.far.get((origin.switch, origin.port))
        host = self._fabric.host.get((origin.switch, origin.port))
        if far or host:
            evidence["far_end"] = " ".join(far) if far else str(host)
        return evidence

    def _close(self, now: Instant, hot: dict[Port, dict[str, float]]) -> list[Finding]:
        """Close what is calm: no port on the switches around is hot any more, by half of what is sustained."""
        return [
            self._book.resolve(case, now, "the switches around are calm again")
            for case in self._book.cases("fabric_congestion")
            if not any(port[0] in case.memo["near"] for port in hot)
        ]

    def snapshot(self) -> bytes:
        """Return the whole state."""
        return pack({"book": self._book.snapshot()}, self._ports.snapshot() | self._nics.snapshot())

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._ports.load(arrays)
        detector._nics.load(arrays)
        detector._fabric.sync(len(detector._ports), len(detector._nics))
        detector._book.load(document["book"])
        return detector
