"""The network's queues and links: what utilisation does to ECN marks, PFC pauses, discards and credits; bad cables.

A switch's egress queue under bursts of collectives: from about 80 % of the port on, ECN marks a growing share of
packets (DCQCN's ramp between K_min and K_max); what ECN does not hold back in time fills the queue, and the switch
pauses those who feed it (PFC priority 3), who fill up in their turn. Without marks pauses begin far earlier, and the
headroom overflows now and then. On InfiniBand credits run out instead, and ports count the ticks that they wait. Curves
and constants are estimates, fitted to give: no pauses and rare marks in health, a few percent of marks under incast.
"""

from dataclasses import dataclass, field

import numpy as np

from services.synth.cluster.fabric import Fabric
from services.synth.cluster.worlds import Conditions
from services.synth.physics.effects import Effects, Floats, Ints
from services.synth.physics.scatter import Scatter
from services.synth.physics.traffic import GRID_S, Load
from services.synth.randomness import generator

EFFICIENCY = {"static": 0.80, "ecmp": 0.88, "adaptive": 0.96}
"""Share of the uplinks' bandwidth that collectives get: single-path static routing 80 %, adaptive 96 % (the SC18 paper
on Summit and Sierra, section V-B); ECMP lies between (ours)."""

_TRAINS = 1.15  # storage's data arrives in trains: a queue sees more than the mean
MTU_BYTES = 4178.0  # 4096 of payload, RoCE headers
_MARK_FROM, _MARK_ALL, _MARK_MOST = 0.82, 1.6, 0.06  # burst load where marking begins, saturates; share marked then
_MARKED_AT_MOST = 0.3  # share of packets, whatever the port's habit
_STRAY_MARKS = 2e-6  # share of packets marked in any queue: microbursts of a few flows
_PAUSE_FROM, _PAUSE_ALL = 1.08, 1.9  # burst load where queues overrun ECN's control, and are full all the time
_UNMARKED_FROM, _UNMARKED_ALL = 0.55, 1.3  # the same without marks
_PAUSES_PER_GBPS = 30.0  # a full storm: the longest pause is 65535 quanta of 512 bits, 84 us at 400 Gb/s
_UPSTREAM = 0.45  # how much of a pause goes on, hop to hop
_STRAY_PAUSES_S = 0.004
_OVERFLOWS = 4e-6  # share of a paused, unmarked queue's packets that find no headroom
_DROPS = 2e-3  # share of packets that a full queue without PFC drops
_TICKS_S = 1.0e8  # port_xmit_wait counts about every 10 ns
_CNP_PER_MARK = 0.25  # a NIC answers a flow's marks at most every few microseconds
_FEC_MEDIAN = {True: 140.0, False: 0.8}  # corrected codewords a second: PAM4 lanes (200G and up) need FEC, NRZ hardly
_FEC_SPREAD = 1.1  # of their logarithm, cable to cable
_CORRECTED_DECADES = 3.0  # a cable whose frames begin to fail corrects a thousand times as many as before
_RECOVERIES_PER_ERROR = 0.005  # the link retrains when errors come in a row
_LOST_PER_DOWN = 350.0  # packets under way when a port goes down
_TIMEOUTS_S = 3.0  # acknowledgements that do not come, per second, at a port that is down
_TIMEOUTS_OF_PEERS_S = 0.03  # at the ports of the same rail elsewhere
_OUT_OF_ORDER_S = 0.003


@dataclass
class Counted:
    """What is counted in each grid step: per switch port (``port_``, in the fabric's order), per NIC (``nic_``)."""

    port_in: Floats
    port_out: Floats
    port: dict[str, Floats] = field(default_factory=dict)
    nic: dict[str, Floats] = field(default_factory=dict)


class Network:
    """Turns load into counts; must be asked for its grid in order."""

    def __init__(self, fabric: Fabric, effects: Effects, seed: int, conditions: Conditions) -> None:
        self._fabric, self._effects, self._network = fabric, effects, fabric.network
        ports = len(fabric.port_cable)
        chance = generator(seed, "network habits")
        fast = fabric.gbps[fabric.port_cable] >= 200
        median = np.where(fast, _FEC_MEDIAN[True], _FEC_MEDIAN[False])
        self._fec = median * np.exp(_FEC_SPREAD * np.clip(chance.standard_normal(ports), -3, 3))
        self._incast = 0.70 + 0.07 * np.clip(chance.standard_normal(fabric.hosts), -2, 2)
        self._patience = np.exp(0.35 * np.clip(chance.standard_normal(ports), -2, 2))
        self._fec *= conditions.factors("ports.fec_sigma", ports)
        self._usual_waits = conditions.factors("ports.pauses_sigma", ports)
        self._marking = conditions.factors("ports.marks_sigma", ports)
        self._stray_marks = _STRAY_MARKS * conditions.number("ports.marks_level")
        level = conditions.number("ports.pauses_level") * conditions.factors("ports.pauses_sigma", ports)
        self._stray_pauses = _STRAY_PAUSES_S * GRID_S * level
        self._stray_drops = conditions.factors("ports.marks_sigma", ports) * (
            conditions.number("ports.drops_per_h") * GRID_S / 3600
        )
        self._swelling = Scatter(generator(seed, "network swelling"), conditions, GRID_S)
        self._ports_at = [np.flatnonzero(fabric.host_leaf == leaf) for leaf in range(len(fabric.leaves))]
        self._reach = fabric.network.routing_efficiency or EFFICIENCY[fabric.network.routing]
        planes = np.array([leaf.plane for leaf in fabric.leaves])
        many = int(planes.max()) + 1
        of_spines = len(fabric.leaves) + fabric.up_spine * many + planes[fabric.up_leaf]
        # A spine pauses only who feeds the full queue: the leaves of the same plane, or rail.
        self._lots: Ints = np.concatenate([fabric.host_leaf, fabric.up_leaf, of_spines])
        self._chance: dict[str, np.random.Generator] = {}
        self._seed = seed

    def count(self, load: Load, grid: Floats, hash_up: Floats, hash_down: Floats) -> Counted:
        """Return what the steps that end at ``grid`` count; ``hash_`` (steps, L) as `Traffic.weights` gives them."""
        counted = Counted(
            port_in=np.concatenate([load.tx, load.down, load.up], axis=1),
            port_out=np.concatenate([load.rx, load.up, load.down], axis=1),
        )
        bursts = self._burst_load(load, grid, hash_up, hash_down)
        if self._network.fabric == "infiniband":
            self._credits(counted, load, bursts)
        else:
            self._queues(counted, load, bursts, grid)
        self._links(counted, load, grid)
        return counted

    def _random(self, name: str) -> np.random.Generator:
        if name not in self._chance:
            self._chance[name] = generator(self._seed, f"network {name}")
        return self._chance[name]

    def _poisson(self, name: str, mean: Floats) -> Floats:
        return np.asarray(self._random(name).poisson(mean), dtype=np.float64)

    def _burst_load(self, load: Load, grid: Floats, hash_up: Floats, hash_down: Floats) -> Floats:
        """Return how many times its speed an egress port is asked for while collectives burst: (steps, ports).

        Senders have settled with the network as it is built, tapered or not, and as its routing lets them use it; what
        presses is what it lost since, and how unevenly flows lie on its uplinks.
        """
        fabric = self._fabric
        of_hosts = np.maximum(load.bursts * self._incast, 1.05 * load.rx / _bytes(fabric.host_gbps))
        if not len(fabric.up_leaf):
            return of_hosts
        leaves, steps = len(fabric.leaves), len(grid)
        links = len(fabric.up_leaf) // leaves
        built, asked = np.zeros(leaves), np.zeros((steps, leaves))
        for leaf, mine in enumerate(self._ports_at):
            speeds = fabric.host_gbps[mine]
            built[leaf] = min(self._reach, float(speeds.sum()) / (links * fabric.up_gbps))
            asked[:, leaf] = built[leaf] * (load.bursts[:, mine] @ speeds) / max(float(speeds.sum()), 1.0)
        live = load.live[:, fabric.hosts :]
        left = live.reshape(steps, leaves, links).mean(axis=2)
        pressed = np.divide(asked, left, out=np.zeros_like(asked), where=left > 0)[:, fabric.up_leaf]
        both = [of_hosts]
        for way, hashed, moved in (("up", hash_up, load.up), ("down", hash_down, load.down)):
            mean = _TRAINS * moved / _bytes(fabric.up_gbps)
            both.append((np.maximum(pressed * hashed, mean) + self._extra(grid, way)) * live)
        return np.concatenate(both, axis=1)

    def _extra(self, grid: Floats, way: str) -> Floats:
        fabric = self._fabric
        extra = np.zeros((len(grid), fabric.cables - fabric.hosts))
        for effect in self._effects.of("cable.extra_gbps"):
            if effect.detail["direction"] == way:
                uplinks = effect.columns[effect.columns >= fabric.hosts] - fabric.hosts
                share = effect.course.mean(grid, GRID_S) * effect.size / fabric.up_gbps
                extra[:, uplinks] += 0.8 * share[:, None]
        return extra

    def _pressure(self, bursts: Floats, grid: Floats) -> tuple[Floats, Floats, Floats]:
        """Return how full egress queues are (0 to 1), the share of packets marked, and which ports do not mark."""
        fabric = self._fabric
        unmarked = np.zeros(bursts.shape) if self._network.ecn else np.ones(bursts.shape)
        for effect in self._effects.of("switch.unmarked"):
            share = effect.course.mean(grid, GRID_S)
            if share.any():
                mine = np.isin(fabric.port_switch, effect.columns)
                unmarked[:, mine] = np.maximum(unmarked[:, mine], share[:, None])
        full = _ramp(bursts, _PAUSE_FROM, _PAUSE_ALL)
        if unmarked.any():
            full += unmarked * (np.maximum(full, _ramp(bursts, _UNMARKED_FROM, _UNMARKED_ALL)) - full)
        marks = (self._stray_marks + _MARK_MOST * _ramp(bursts, _MARK_FROM, _MARK_ALL) ** 2) * self._marking
        marks = np.minimum(marks * self._swelling.swell("marks", bursts.shape), _MARKED_AT_MOST) * (1.0 - unmarked)
        return full, marks, unmarked

    def _queues(self, counted: Counted, load: Load, bursts: Floats, grid: Floats) -> None:
        fabric, network = self._fabric, self._network
        full, marks, unmarked = self._pressure(bursts, grid)
        packets = counted.port_out / MTU_BYTES
        marked = self._poisson("marks", packets * marks)
        counted.port["ecn"] = marked
        pausing = np.zeros(full.shape)
        for effect in self._effects.of("cable.pausing"):
            share = effect.course.mean(grid, GRID_S)
            if share.any():
                pausing[:, effect.columns] = np.maximum(pausing[:, effect.columns], effect.size * share[:, None])
        full = np.maximum(full, pausing)
        sent, received = np.zeros((2, *full.shape))
        if network.pfc:
            sent, received = self._pauses(full, pausing, counted.port_in)
        rate = _PAUSES_PER_GBPS * fabric.gbps[fabric.port_cable] * GRID_S
        alive = load.live[:, fabric.port_cable]
        stray = self._stray_pauses * self._swelling.swell("pauses", full.shape)
        counted.port["pfc_tx"] = self._poisson("pauses sent", (rate * sent + stray) * alive)
        counted.port["pfc_rx"] = self._poisson("pauses received", (rate * received + stray) * alive)
        lost = packets * full * (unmarked * _OVERFLOWS if network.pfc else _DROPS)
        counted.port["discards"] = self._poisson("discards", lost + self._stray_drops * alive)
        self._notifications(counted, load, marked)

    def _pauses(self, full: Floats, pausing: Floats, arriving: Floats) -> tuple[Floats, Floats]:
        """Return the share of time each port sends, and receives, pauses: from full queues upstream, two hops far."""
        fabric = self._fabric
        hosts, links = fabric.hosts, len(fabric.up_leaf)
        sent, received = np.zeros(full.shape), pausing.copy()
        lots = self._lots
        feeding = arriving > 20 * MTU_BYTES
        queue = full
        for _ in range(2):
            if not queue.any():
                break
            worst = np.zeros((len(full), int(lots.max()) + 1))
            for lot in np.unique(lots[queue.any(axis=0)]):
                worst[:, lot] = queue[:, lots == lot].max(axis=1)
            others = np.clip(worst[:, lots] - queue, 0.0, 1.0)
            now = _UPSTREAM * others * feeding
            sent = np.maximum(sent, now)
            heard = np.zeros(full.shape)
            heard[:, hosts : hosts + links] = now[:, hosts + links :]
            heard[:, hosts + links :] = now[:, hosts : hosts + links]
            received = np.maximum(received, heard)
            queue = _UPSTREAM * heard
        return sent, received

    def _notifications(self, counted: Counted, load: Load, marked: Floats) -> None:
        """Count CNPs: sent by those who got marked packets, handled by those who had sent them."""
        fabric = self._fabric
        hosts, links = fabric.hosts, len(fabric.up_leaf)
        own, up, down = marked[:, :hosts], marked[:, hosts : hosts + links], marked[:, hosts + links :]
        sent, handled = own.copy(), _shared(own.sum(axis=1), load.tx)
        if links:
            sent += _shared(up.sum(axis=1), load.far_rx)
            handled += _shared(down.sum(axis=1), load.far_tx)
            for leaf in np.unique(fabric.up_leaf[(up + down).any(axis=0)]):
                ports = fabric.host_leaf == leaf
                cables = fabric.up_leaf == leaf
                sent[:, ports] += _shared(down[:, cables].sum(axis=1), load.far_rx[:, ports])
                handled[:, ports] += _shared(up[:, cables].sum(axis=1), load.far_tx[:, ports])
        counted.nic["cnp_sent"], counted.nic["cnp_handled"] = _CNP_PER_MARK * sent, _CNP_PER_MARK * handled

    def _credits(self, counted: Counted, load: Load, bursts: Floats) -> None:
        """Count the ticks in which ports had data and no credit; nothing is marked, paused or dropped."""
        fabric = self._fabric
        full = _ramp(bursts, _PAUSE_FROM, _PAUSE_ALL)
        usual = 0.012 * np.clip(bursts, 0.0, 1.0) ** 3  # arbitration makes ports wait a little at any load
        noise = 1 + 0.08 * self._random("credits of ports").standard_normal(full.shape)
        share = (usual * self._usual_waits + 0.7 * full) * self._patience * noise
        counted.port["wait"] = np.floor(share * _TICKS_S * GRID_S * load.live[:, fabric.port_cable])
        pressed = np.zeros((len(full), len(fabric.switches)))
        for switch in np.unique(fabric.port_switch[full.any(axis=0)]):
            pressed[:, switch] = np.minimum(1.0, full[:, fabric.port_switch == switch].mean(axis=1))
        back = pressed[:, fabric.host_leaf] * (load.bursts > 0)
        noise = 1 + 0.08 * self._random("credits of NICs").standard_normal(back.shape)
        usual = 0.006 * load.bursts * self._usual_waits[: fabric.hosts]
        own = (usual + _UPSTREAM * back) * self._patience[: fabric.hosts] * noise
        counted.nic["wait"] = np.floor(own * _TICKS_S * GRID_S * load.live[:, : fabric.hosts])
        counted.port["discards"] = np.zeros(full.shape)

    def _links(self, counted: Counted, load: Load, grid: Floats) -> None:
        """Count what cables do to frames: corrected, lost; and what transport makes of it at the NICs."""
        fabric = self._fabric
        hosts = fabric.hosts
        decades, failing = np.zeros((2, *counted.port_in.shape))
        nic_failing = np.zeros((len(grid), hosts))
        for quantity, scale in (("cable.errors_per_s", _CORRECTED_DECADES), ("cable.marginal", None)):
            for effect in self._effects.of(quantity):
                level = effect.course.mean(grid, GRID_S)
                if not level.any():
                    continue
                ports = self._end(effect.columns, int(effect.detail.get("end", 1)))
                at_ports = ports[ports >= 0]
                decades[:, at_ports] += ((scale or effect.size) * level)[:, None]
                if scale is not None:
                    # Failures need several bad symbols in one codeword: they come late in a slow decline.
                    rate = (effect.size * level**2 * GRID_S)[:, None]
                    failing[:, at_ports] += rate
                    at_nics = effect.columns[(ports < 0) & (effect.columns < hosts)]
                    nic_failing[:, at_nics] += rate
        alive = load.live[:, fabric.port_cable]
        mean = self._fec * GRID_S * alive
        if decades.any():
            mean = mean * 10.0**decades
        corrected = mean + np.sqrt(mean) * self._random("corrected").standard_normal(mean.shape)
        counted.port["corrected"] = np.maximum(np.floor(corrected), 0.0)
        failed = self._poisson("uncorrectable", failing * alive)
        counted.port["uncorrectable"] = failed
        counted.port["errors"] = failed
        symbols = self._poisson("symbol errors", nic_failing * load.live[:, :hosts])
        counted.nic["symbols"] = symbols
        counted.nic["recoveries"] = self._poisson("recoveries", symbols * _RECOVERIES_PER_ERROR)
        down = 1.0 - load.live[:, :hosts]
        timeouts = _TIMEOUTS_S * down
        for number in np.unique(fabric.host_number[down.any(axis=0)]):
            rail = fabric.host_number == number
            lost = (down[:, rail].max(axis=1) > 0)[:, None]
            timeouts[:, rail] += _TIMEOUTS_OF_PEERS_S * lost * (load.bursts[:, rail] > 0)
        counted.nic["timeouts"] = self._poisson("timeouts", (timeouts + 0.02 * symbols / GRID_S) * GRID_S)
        dropped = counted.port["discards"][:, :hosts] + failed[:, :hosts] + symbols
        far = failed[:, hosts:].sum(axis=1) + counted.port["discards"][:, hosts:].sum(axis=1)
        disorder = dropped + _shared(far, load.far_rx) + _OUT_OF_ORDER_S * GRID_S * (load.bursts > 0)
        counted.nic["disorder"] = self._poisson("disorder", disorder)

    def _end(self, cables: Ints, end: int) -> Ints:
        """Return the switch port at an end of each cable; -1 where a machine is there."""
        fabric = self._fabric
        links = len(fabric.up_leaf)
        upper = np.where(cables < fabric.hosts, cables, cables + links)
        lower = np.where(cables < fabric.hosts, -1, cables)
        return np.asarray(upper if end else lower)


def _ramp(values: Floats, begin: float, end: float) -> Floats:
    return np.asarray(np.clip((values - begin) / (end - begin), 0.0, 1.0))


def _bytes(gbps: Floats | float) -> Floats:
    """Return what a port of that speed moves in a grid step."""
    return np.asarray(gbps) * (1e9 / 8 * GRID_S)


def _shared(total: Floats, by: Floats) -> Floats:
    """Return totals (steps,) divided in proportion to `by` (steps, n)."""
    whole = by.sum(axis=1)
    part = np.divide(total, whole, out=np.zeros_like(whole), where=whole > 0)
    return np.asarray(part[:, None] * by)
