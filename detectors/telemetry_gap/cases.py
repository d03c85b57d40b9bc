"""What is missing at one moment: nodes, GPUs and switches that are silent or frozen although they live."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from detectors.contract import Entity, FloatArray, Instant
from detectors.core.kept import Kept
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet
from detectors.fleet.presence import LATE, LEAST_READINGS, REBOOT_MS, Progress
from detectors.fleet.scheduling import Scheduler
from detectors.telemetry_gap.config import TelemetryGapConfig
from detectors.telemetry_gap.exits import Exits
from detectors.telemetry_gap.freeze import REPEATS, Freeze
from detectors.telemetry_gap.streams import OF_NODES, Cables, Streams

TOGETHER: Final = 3
"""What stops on three nodes or switches in the same instant is one collector, and one gap."""
TOGETHER_INTERVALS: Final = 1.5
"""What was last heard within one interval, with room for jitter, stopped in the same instant."""
MOST: Final = 0.5
"""An exporter that hangs freezes all GPUs of its node; half suffice, as they need not be seen at the same reading."""
_HALF: Final = 0.5
"""From half of what is too long on it is looked whether anything moves that could be counted."""
_FORGET_MS: Final = 86_400_000
"""What has been silent for a day was taken out of service."""
_MISSED_BEFORE_MS: Final = 180_000
"""The scheduler may say that a node is down so long before its streams, read every minute, are seen to stop."""


@dataclass(frozen=True, slots=True)
class Case:
    """Readings of one node, GPU (`gpu` not -1) or switch that stopped or froze at `since` although it lives.

    `beside` names those of its kind that stopped in the same instant, itself among them; `needed_ms` is how long it
    had to be away (0: of a freeze), as silences go here.
    """

    what: str
    name: str
    gpu: int
    mode: str
    stream: str
    since: Instant
    usual_ms: float
    needed_ms: float
    alive: str
    beside: frozenset[str] = field(default_factory=frozenset)

    @property
    def entity(self) -> Entity:
        """What a finding on it names."""
        if self.what == "gpu":
            return {"node": self.name, "gpu": self.gpu}
        return {self.what: self.name}


class Cases(Kept):
    """Finds the cases of one moment."""

    KEPT = ("excused", "quiet")

    def __init__(
        self,
        config: TelemetryGapConfig,
        fleet: Fleet,
        streams: Streams,
        freezes: dict[str, Freeze],
        progress: Progress,
        scheduler: Scheduler,
        exits: Exits,
    ) -> None:
        self._config, self._fleet, self._streams = config, fleet, streams
        self._gpus, self._ports, self._nics = freezes["dcgm"], freezes["switch"], freezes["nic"]
        self._progress, self._scheduler, self._exits = progress, scheduler, exits
        self._cables = Cables(fleet)
        self._jobs: dict[str, str] = {}
        """The job of every node, once it was asked for at this moment."""
        self.excused: list[str] = []
        """Nodes that are dark, and that the scheduler has spoken of since: what they were away for is known."""
        self.quiet: dict[str, Instant] = {}
        """By switch that counts nothing: when last no NIC on it had moved data either."""

    def begin_afresh(self, name: str) -> None:
        """Go on with the state of a version that did not know which switches were quiet."""
        if name != "quiet":
            super().begin_afresh(name)

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget who of those that are gone was accounted for, or quiet."""
        gone = survivors.names("machine")
        self.excused = [name for name in self.excused if name not in gone]
        self.quiet = {name: at for name, at in self.quiet.items() if name not in gone}

    def excuse(self, now: Instant) -> None:
        """Note which of the dark nodes the scheduler accounts for; it may take a node back before it is heard."""
        streams, names = self._streams, self._streams.nodes.names
        if not np.count_nonzero(streams.dark):
            self.excused = []
            return
        last = np.maximum.reduce([streams.of[kind].heard.last for kind in OF_NODES[:-1]])
        dark = {names[node]: int(last[node]) for node in np.flatnonzero(streams.dark).tolist()}
        kept = dark.keys() & set(self.excused)
        self.excused = [n for n, since in sorted(dark.items()) if n in kept or self._accounted_for(n, since, now)]

    def all(self, now: Instant) -> Iterator[Case]:
        """Yield every case at `now`, silent before frozen."""
        self._jobs = {}
        yield from self._silent_nodes(now)
        yield from self._frozen_gpus(now)
        yield from self._silent_switches(now)
        yield from self._frozen_switches(now)

    def _silent_nodes(self, now: Instant) -> Iterator[Case]:
        streams, names = self._streams, self._streams.nodes.names
        for kind in OF_NODES:
            if kind == "storage":
                continue  # file systems are mounted and unmounted as jobs want them
            heard, needed = streams.of[kind].heard, self._needed(kind)
            away = streams.away(kind, now, needed)
            if not np.count_nonzero(away):
                continue
            recent = (heard.last >= 0) & (heard.silent(now) <= _FORGET_MS)
            ripe = np.flatnonzero(recent & away)
            if not len(ripe):
                continue
            suspect = np.flatnonzero(recent & (heard.missed(now) >= LATE))
            alive = streams.seen_alive(kind, now)
            for node in sorted(ripe.tolist(), key=names.__getitem__):
                usual, name = float(heard.usual[node]), names[node]
                back_at = self._scheduler.back_at(name)  # its exporters come back after it, one after the other
                if now - back_at < needed[node]:
                    continue
                since = max(int(heard.last[node]), back_at)
                near = suspect[np.abs(heard.last[suspect] - heard.last[node]) <= TOGETHER_INTERVALS * usual]
                beside = frozenset(names[other] for other in near.tolist())
                shown = "other streams" if alive[node] else self._shown_alive(name, node, since, usual, beside, now)
                if shown and name not in self.excused and not self._accounted_for(name, since + int(usual), now):
                    yield Case("node", name, -1, "silent", kind, since, usual, float(needed[node]), shown, beside)

    def _needed(self, kind: str) -> FloatArray:
        """Return how long (nodes,) a stream has to be away, ms: where a log says that its exporter ended, as it did
        last, the policy's time is enough, however long silences here are by chance.
        """
        stream, nodes = self._streams.of[kind], self._streams.nodes
        if not (ended := self._exits.of(kind)):
            return stream.needed
        needed, least, heard = stream.needed.copy(), stream.least(), stream.heard
        for name, at in ended.items():
            node = nodes.known(name)
            if node is not None and node < len(needed) and at >= heard.last[node] - 2 * heard.usual[node]:
                needed[node] = min(needed[node], least[node])
        return needed

    def _shown_alive(
        self, name: str, node: int, since: Instant, usual_ms: float, beside: frozenset[str], now: Instant
    ) -> str:
        """Return what shows a node alive that is silent in-band; empty if nothing does.

        A BMC lives on when its node dies: it speaks for nodes only where several stopped in the same instant and no
        job stopped with them, or for a node that draws what it did all along. One without a job may be rebooting. The
        last line of one that dies may come after a lost scrape: a line counts after more silence than that. A node that
        draws far less than it did has left its job.
        """
        if self._scheduler.alive(name, since + int(LEAST_READINGS * usual_ms)):
            return "its own log lines"
        job = self._job_of(name)
        waited = since + int(3 * usual_ms)
        left = self._streams.watts.low(node, since)  # an elastic job goes on without it
        if job is not None and not left and (shown := self._progress.lives_by(job, waited, now)):
            return shown
        stopped = self._progress.stopped(job, now) if job is not None else None
        if stopped or (job is None and now - since < REBOOT_MS):
            return ""
        if not self._streams.bmc_all_along(node, since, now):
            return ""
        if len(beside) >= TOGETHER:
            return "BMC"
        answers = self._scheduler.fate(name, since - _MISSED_BEFORE_MS) is None  # to its scheduler, as far as is known
        return "watts by its BMC" if answers and stopped is None and self._streams.watts.held(node, since) else ""

    def _accounted_for(self, name: str, since: Instant, now: Instant) -> bool:
        """Return whether the scheduler took the node out before `since`, or says that it is down."""
        if self._scheduler.by_right(name, since, 0.0, now) is not None:
            return True
        return self._scheduler.gives_up(name, since - _MISSED_BEFORE_MS)

    def _frozen_gpus(self, now: Instant) -> Iterator[Case]:
        gpus, streams = self._gpus, self._streams
        frozen = np.flatnonzero(gpus.frozen(streams.of["dcgm"].heard.readings.last[: len(gpus)]))
        if not len(frozen):
            return
        owner = streams.nodes.owners("dcgm", len(gpus))
        stuck = np.flatnonzero(gpus.repeats >= REPEATS - 2)
        for node in sorted(set(owner[frozen].tolist()), key=streams.nodes.names.__getitem__):
            name = streams.nodes.names[node]
            here = frozen[owner[frozen] == node]
            sure = {gpu: shown for gpu in here.tolist() if (shown := self._computes(name, gpu, now))}
            if not sure:
                continue
            first = min(sure, key=lambda gpu: (int(gpus.since[gpu]), gpu))
            since, usual = int(gpus.since[first]), gpus.usual(first)
            near = stuck[np.abs(gpus.since[stuck] - since) <= TOGETHER_INTERVALS * usual]
            mates, peers = near[owner[near] == node], np.unique(owner[near])
            beside = frozenset(streams.nodes.names[other] for other in peers.tolist())
            whole = len(mates) > 1 and len(mates) >= MOST * len(streams.gpus_of(node))
            for gpu, shown in ((first, sure[first]),) if whole or len(beside) > 1 else tuple(sure.items()):
                number = -1 if whole else int(self._fleet.entities("dcgm")[gpu][1])
                what = "node" if whole else "gpu"
                names = beside if whole else frozenset([name])
                yield Case(what, name, number, "frozen", "dcgm", int(gpus.since[gpu]), gpus.usual(gpu), 0, shown, names)

    def _computes(self, name: str, gpu: int, now: Instant) -> str:
        """Return what shows that a GPU's readings should have changed; empty if nothing does.

        What computes does not draw the same for minutes, to the thousandth of a watt that DCGM reports; in whole watts
        it may, at its power limit.
        """
        if self._gpus.meter_stands(gpu):
            return "an energy counter that does not move"
        job = self._job_on(name, int(self._fleet.entities("dcgm")[gpu][1]))
        since = int(self._gpus.since[gpu]) + int(self._config.least_s * 500)
        if job is not None and self._progress.goes_on(job, since, now):
            return f"steps of job {job}" + (" and the energy counter" if self._gpus.meter_runs(gpu) else "")
        watts = self._gpus.last("DCGM_FI_DEV_POWER_USAGE", gpu)
        active = (
            self._gpus.last(field, gpu) > 0 for field in ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_GPU_UTIL")
        )
        if any(active) and watts % 1 > 0 and not self._gpus.meter_runs(gpu):
            return f"{watts:.3f} W at work in every reading"
        return ""

    def _job_on(self, node: str, gpu: int) -> str | None:
        """Return the job that works on a GPU: others of its node may have another, or none."""
        job = self._fleet.jobs.get(self._job_of(node) or "")
        return job.job_id if job is not None and gpu in job.gpus.get(node, [gpu]) else None

    def _job_of(self, node: str) -> str | None:
        """Return the job on a node; the latest to start, where several are."""
        if not self._jobs:  # mostly nobody asks
            for job in sorted(self._fleet.jobs.values(), key=lambda job: (job.start, job.job_id)):
                self._jobs |= dict.fromkeys(job.nodes, job.job_id)
        return self._jobs.get(node)

    def _silent_switches(self, now: Instant) -> Iterator[Case]:
        streams, names = self._streams, self._streams.switches.names
        heard, needed = streams.of["switch"].heard, streams.of["switch"].needed
        away = streams.away("switch", now, needed)
        if not np.count_nonzero(away):
            return
        recent = (heard.last >= 0) & (heard.silent(now) <= _FORGET_MS)
        suspect = np.flatnonzero(recent & (heard.missed(now) >= LATE))
        ripe = np.flatnonzero(recent & away)
        for switch in sorted(ripe.tolist(), key=names.__getitem__):
            since, usual, name = int(heard.last[switch]), float(heard.usual[switch]), names[switch]
            near = suspect[np.abs(heard.last[suspect] - since) <= TOGETHER_INTERVALS * usual]
            beside = frozenset(names[other] for other in near.tolist())
            if shown := self._carries(name, since, since + int(3 * usual), now):
                yield Case("switch", name, -1, "silent", "switch", since, usual, float(needed[switch]), shown, beside)

    def _carries(self, switch: str, silent: Instant, since: Instant, now: Instant) -> str:
        """Return what shows that a switch lives: links to it that stay up, or a job on its nodes that goes on.

        Where links to it are down, and none is up, a job that goes on does so another way.
        """
        up, down = self._streams.links("nic", self._cables.nics.get(switch, set()), silent, since)
        far_up, far_down = self._streams.links("switch", self._cables.far.get(switch, set()), silent, since)
        if up + far_up:
            return f"{up + far_up} links to it that are up"
        if down + far_down:
            return ""
        jobs = {job for node in self._cables.nodes(switch) if (job := self._job_of(node)) is not None}
        going = sorted(job for job in jobs if self._progress.goes_on(job, since, now))
        return f"steps of job {going[0]}" if going else ""

    def _frozen_switches(self, now: Instant) -> Iterator[Case]:
        ports, streams = self._ports, self._streams
        last = streams.of["switch"].heard.readings.last[: len(ports)]
        stands, quiet, self.quiet = ports.frozen(last, _HALF), self.quiet, {}
        if not np.count_nonzero(stands):
            return
        frozen, owner = ports.frozen(last), streams.switches.owners("switch", len(ports))
        for switch in sorted(set(owner[stands].tolist()), key=streams.switches.names.__getitem__):
            own = streams.ports_of(switch)
            stuck = own[stands[own]]
            since, usual = int(ports.since[stuck].max()), ports.usual(int(stuck[0]))
            if (ports.since[own] > since + usual).any():
                continue  # one port that still counts shows that the switch is read
            name, ripe = streams.switches.names[switch], bool(frozen[stuck].all())
            busy = self._traffic(name, since + int(_HALF * (1.0 if ripe else _HALF) * self._config.least_s * 1000))
            # Where nothing moved, the switch had nothing to count: it has as long to show what moves from now on.
            if not busy:
                self.quiet[name] = now
            elif name in quiet:
                self.quiet[name] = quiet[name]
            if ripe and busy and now - quiet.get(name, 0) >= self._config.least_s * 1000:
                yield Case("switch", name, -1, "frozen", "switch", since, usual, 0, busy, frozenset([name]))

    def _traffic(self, switch: str, since: Instant) -> str:
        """Return which NICs on a switch have moved data after `since`; empty if none has."""
        keys = self._cables.nics.get(switch, set())
        named = self._fleet.entities("nic")[: len(self._nics)]
        those = np.array([i for i, key in enumerate(named) if (str(key[0]), str(key[1])) in keys], np.int64)
        moved = self._nics.moved_since(those, since)
        return f"{moved} NICs on it that move data" if moved else ""
