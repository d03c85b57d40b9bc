"""What is missing at one moment: nodes, GPUs and switches that are silent or frozen although they live."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from detectors.contract import Instant
from detectors.fleet import Fleet
from detectors.presence import Progress
from detectors.scheduling import Scheduler
from detectors.telemetry_gap.config import TelemetryGapConfig
from detectors.telemetry_gap.freeze import Freeze
from detectors.telemetry_gap.streams import OF_NODES, Cables, Streams


@dataclass(frozen=True, slots=True)
class Case:
    """Readings of one node, GPU (`gpu` not -1) or switch that stopped or froze at `since` although it lives.

    `beside` names those of its kind that stopped in the same instant, itself among them.
    """

    what: str
    name: str
    gpu: int
    mode: str
    stream: str
    since: Instant
    usual_ms: float
    missed: float
    alive: str
    beside: frozenset[str] = field(default_factory=frozenset)


class Cases:
    """Finds the cases of one moment."""

    def __init__(
        self,
        config: TelemetryGapConfig,
        fleet: Fleet,
        streams: Streams,
        gpus: Freeze,
        ports: Freeze,
        nics: Freeze,
        progress: Progress,
        scheduler: Scheduler,
    ) -> None:
        self._config, self._fleet, self._streams = config, fleet, streams
        self._gpus, self._ports, self._nics = gpus, ports, nics
        self._progress, self._scheduler = progress, scheduler
        self._cables = Cables(fleet)
        self._job_of: dict[str, str] = {}

    def all(self, now: Instant) -> Iterator[Case]:
        """Yield every case at `now`, silent before frozen."""
        self._job_of = {}
        for job in sorted(self._fleet.jobs.values(), key=lambda job: (job.start, job.job_id)):
            self._job_of |= dict.fromkeys(job.nodes, job.job_id)
        yield from self._silent_nodes(now)
        yield from self._frozen_gpus(now)
        yield from self._silent_switches(now)
        yield from self._frozen_switches(now)

    def _silent_nodes(self, now: Instant) -> Iterator[Case]:
        streams, config = self._streams, self._config
        dark = streams.dark
        booting = (streams.dark_at >= 0) & (now - streams.dark_at <= config.boot_grace_s * 1000) & ~dark
        for row, kind in enumerate(OF_NODES):
            if kind == "storage":
                continue  # file systems are mounted and unmounted as jobs want them
            last, usual, missed = streams.last[row], streams.usual[row], streams.missed[row]
            recent = (last >= 0) & (now - last <= config.forget_s * 1000)
            suspect = np.flatnonzero(recent & (missed > 1.5))
            if not len(suspect):
                continue
            patience = streams.of[kind].patience
            ripe = suspect[(missed[suspect] >= patience) & ~booting[suspect]]
            if not len(ripe):
                continue
            alive = streams.seen_alive(row)
            names = np.array(streams.nodes.names, object)
            for node in sorted(ripe.tolist(), key=streams.nodes.names.__getitem__):
                since, interval = int(last[node]), float(usual[node])
                name = streams.nodes.names[node]
                near = np.abs(last[suspect] - since) <= config.together_intervals * interval
                beside = frozenset(names[suspect[near]].tolist())
                waited = since + int(patience * interval)
                shown = "other streams" if alive[node] else self._shown_alive(name, node, waited, beside, now)
                if shown and not self._accounted_for(name, since, interval, now):
                    yield Case("node", name, -1, "silent", kind, since, interval, float(missed[node]), shown, beside)

    def _shown_alive(self, name: str, node: int, waited: Instant, beside: frozenset[str], now: Instant) -> str:
        """Return what shows a node alive that is silent in-band; empty if nothing does.

        A BMC lives on when its node dies: it speaks for nodes only where several stopped in the same instant and no
        job stopped with them, or for a node without a job that draws what it did.
        """
        job = self._job_of.get(name)
        if job is not None and self._progress.goes_on(job, waited, now):
            return f"steps of job {job}"
        stopped = self._progress.stopped(job, now) if job is not None else None
        if len(beside) >= self._config.together_nodes and not stopped and self._streams.bmc_lives(node, waited):
            return "BMC"
        watts, before = self._streams.watts.since(node, waited)
        return "watts by its BMC" if stopped is None and watts >= self._config.power_ratio * before else ""

    def _accounted_for(self, name: str, since: Instant, usual_ms: float, now: Instant) -> bool:
        """Return whether the scheduler took the node out before, or says that it is down."""
        out = self._scheduler.on_purpose(name, now)
        if out is not None and out.at <= since + usual_ms:
            return True
        fate = self._scheduler.fate(name, since - 180_000)
        return fate is not None and fate.said == "down"

    def _frozen_gpus(self, now: Instant) -> Iterator[Case]:
        gpus, streams = self._gpus, self._streams
        last = streams.of["dcgm"].last[: len(gpus)]
        frozen = np.flatnonzero(gpus.frozen(last))
        if not len(frozen):
            return
        owner = streams.nodes.owners("dcgm", len(gpus))
        stuck = np.flatnonzero(gpus.repeats >= max(self._config.freeze_readings - 2, 2))
        for node in sorted(set(owner[frozen].tolist()), key=streams.nodes.names.__getitem__):
            name = streams.nodes.names[node]
            here = frozen[owner[frozen] == node]
            sure = {gpu: shown for gpu in here.tolist() if (shown := self._computes(name, gpu, now))}
            if not sure:
                continue
            first = min(sure, key=lambda gpu: (int(gpus.since[gpu]), gpu))
            since, usual = int(gpus.since[first]), gpus.usual(first)
            near = stuck[np.abs(gpus.since[stuck] - since) <= self._config.together_intervals * usual]
            mates, peers = near[owner[near] == node], np.unique(owner[near])
            beside = frozenset(streams.nodes.names[other] for other in peers.tolist())
            whole = len(mates) > 1 and len(mates) >= self._config.node_share * len(streams.gpus_of(node))
            for gpu, shown in ((first, sure[first]),) if whole or len(beside) > 1 else tuple(sure.items()):
                at, habit = int(gpus.since[gpu]), gpus.usual(gpu)
                number = -1 if whole else int(self._fleet.entities("dcgm")[gpu][1])
                what = "node" if whole else "gpu"
                names = beside if whole else frozenset([name])
                yield Case(what, name, number, "frozen", "dcgm", at, habit, (now - at) / max(habit, 1), shown, names)

    def _computes(self, name: str, gpu: int, now: Instant) -> str:
        """Return what shows that a GPU's readings should have changed; empty if nothing does."""
        if self._gpus.meter_stands(gpu):
            return "the energy counter stands still too, which it cannot"
        job = self._job_of.get(name)
        since = int(self._gpus.since[gpu]) + int(self._config.freeze_s * 500)
        if job is not None and self._progress.goes_on(job, since, now):
            return f"steps of job {job}" + (" and the energy counter" if self._gpus.meter_runs(gpu) else "")
        return ""

    def _silent_switches(self, now: Instant) -> Iterator[Case]:
        streams, config = self._streams, self._config
        last, usual, missed = streams.switch_last, streams.switch_usual, streams.switch_missed
        recent = (last >= 0) & (now - last <= config.forget_s * 1000)
        suspect = np.flatnonzero(recent & (missed > 1.5))
        patience = streams.of["switch"].patience
        ripe = suspect[missed[suspect] >= patience]
        for switch in sorted(ripe.tolist(), key=streams.switches.names.__getitem__):
            since, interval, name = int(last[switch]), float(usual[switch]), streams.switches.names[switch]
            near = suspect[np.abs(last[suspect] - since) <= config.together_intervals * interval]
            shown = self._carries(name, since, since + int(patience * interval), now)
            beside = frozenset(streams.switches.names[other] for other in near.tolist())
            if shown:
                yield Case(
                    "switch", name, -1, "silent", "switch", since, interval, float(missed[switch]), shown, beside
                )

    def _carries(self, switch: str, silent: Instant, since: Instant, now: Instant) -> str:
        """Return what shows that a switch lives: links to it that stay up, or a job on its nodes that goes on."""
        up = self._streams.links_up("nic", self._cables.nics.get(switch, set()), silent, since)
        up += self._streams.links_up("switch", self._cables.far.get(switch, set()), silent, since)
        if up:
            return f"{up} links to it are up"
        jobs = {self._job_of[node] for node in self._cables.nodes(switch) if node in self._job_of}
        going = sorted(job for job in jobs if self._progress.goes_on(job, since, now))
        return f"steps of job {going[0]}" if going else ""

    def _frozen_switches(self, now: Instant) -> Iterator[Case]:
        ports, streams = self._ports, self._streams
        last = streams.of["switch"].last[: len(ports)]
        frozen = ports.frozen(last)
        if not np.count_nonzero(frozen):
            return
        owner = streams.switches.owners("switch", len(ports))
        for switch in sorted(set(owner[frozen].tolist()), key=streams.switches.names.__getitem__):
            own = streams.ports_of(switch)
            moving = own[(ports.since[own] >= 0) & ~frozen[own]]
            if len(moving):
                continue  # one port that still counts shows that the switch is read
            stuck = own[frozen[own]]
            since, usual = int(ports.since[stuck].max()), ports.usual(int(stuck[0]))
            name = streams.switches.names[switch]
            busy = self._traffic(name, since + int(self._config.freeze_s * 500))
            if busy:
                missed = (now - since) / max(usual, 1)
                yield Case("switch", name, -1, "frozen", "switch", since, usual, missed, busy, frozenset([name]))

    def _traffic(self, switch: str, since: Instant) -> str:
        """Return which NICs on a switch have moved data after `since`; empty if none has."""
        keys = self._cables.nics.get(switch, set())
        named = self._fleet.entities("nic")[: len(self._streams.of["nic"])]
        those = np.array([i for i, key in enumerate(named) if (str(key[0]), str(key[1])) in keys], np.int64)
        moved = self._nics.moved_since(those, since)
        return f"{moved} NICs on it move data" if moved else ""
