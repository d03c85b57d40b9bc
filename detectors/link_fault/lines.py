"""Lines of kernels on links, and switches' syslogs of their ports: which port lost its link, and when."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from detectors.contract import Instant, LogRecord
from detectors.core.survivors import Survivors
from detectors.fleet.cabling import End
from detectors.fleet.fleet import Fleet
from detectors.signals.link_lines import BACK, LOST

_DEVICE = re.compile(r"\b(mlx5_\d+|mlx4_\d+|bnxt_re\d+|rocep?\w+|irdma\d+|ib\d+|hsi\d+)\b")
_SWITCH_PORT = re.compile(
    r"\b(?:port|interface) ([\w/.:-]+?),? (?:oper state set from \w+ to|changed state to|is) (up|down)\b", re.IGNORECASE
)
"""SONiC: ``Port Ethernet8 oper state set from up to down``; others: ``Interface Ethernet8, changed state to down``."""
_OF_BOND, _OF_SLOT = re.compile(r"bond(\d+)"), re.compile(r"en(p\d+s\d+(?:f\d+)?)(?:np\d+)?")
_NUMBER = re.compile(r"(\d+)$")
_WORD = re.compile(r"[\w-]+")
_KEPT = 8
_ONE_LOSS_MS = 2000
_NAMED = 100_000


class Lines:
    """By port: when its link went down by the logs, and the last line on it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._downs: dict[End, list[Instant]] = {}
        self._last: dict[End, tuple[Instant, bool, str]] = {}
        self._heard: dict[str, tuple[Instant, Instant]] = {}
        """By machine whose kernel is heard: when a port of a name unknown here last lost its link, and had it again."""

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take log lines in order of time."""
        for record in records:
            if record.source != "kernel" or not record.node:
                continue
            if len(self._heard) < _NAMED:
                self._heard.setdefault(record.node, (-1, -1))
            found = self._port_in(record.node, record.message)
            if found is None and record.node in self._heard:
                lost, back = self._heard[record.node]
                if LOST.search(record.message):
                    self._heard[record.node] = record.at, back
                elif BACK.search(record.message):
                    self._heard[record.node] = lost, record.at
            if found is None or len(self._last) >= _NAMED:
                continue
            end, down = found
            before = self._last.get(end)
            self._last[end] = record.at, down, record.message[:200]
            # The driver and the network manager each write a line: one loss.
            if down and not (before is not None and before[1] and record.at - before[0] <= _ONE_LOSS_MS):
                self._downs[end] = [*self._downs.get(end, []), record.at][-_KEPT:]

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget what was logged of machines that are gone."""
        gone = survivors.names("machine")
        self._downs = {end: downs for end, downs in self._downs.items() if end[1] not in gone}
        self._last = {end: last for end, last in self._last.items() if end[1] not in gone}
        self._heard = {machine: at for machine, at in self._heard.items() if machine not in gone}

    def _port_in(self, machine: str, message: str) -> tuple[End, bool] | None:
        """Return which port of a machine a line is about, and whether it is down; None for any other line.

        A NIC that the topology names is known by that name, whatever it is, or by that of its network interface.
        """
        port = _SWITCH_PORT.search(message)
        if port is not None:
            return ("switch", machine, port[1]), port[2].lower() == "down"
        down = LOST.search(message) is not None
        if not down and not BACK.search(message):
            return None
        known = {str(nic["nic"]) for nic in self._fleet.nodes.get(machine, {}).get("nics") or ()}
        words = _WORD.findall(message)
        for word in [*words, *(device for name in words for device in _of_interface(name))]:
            if word in known:
                return ("nic", machine, word), down
        device = _DEVICE.search(message)
        return None if device is None else (("nic", machine, _as_rdma(device[1])), down)

    def quiet(self, machine: str, since: Instant) -> bool:
        """Return whether lines of a machine's kernel are gathered, and none after `since` is on a loss of link of a
        port that nobody knows by the name it has there.
        """
        return machine in self._heard and self._heard[machine][0] <= since

    def some_back(self, machine: str, since: Instant) -> Instant:
        """Return when a port of a name unknown here, which lost its link after `since`, was back; -1: none is."""
        lost, back = self._heard.get(machine, (-1, -1))
        return back if since < lost < back else -1

    def downs(self, end: End, since: Instant) -> list[Instant]:
        """Return when a port lost its link after `since`, by the logs."""
        return [at for at in self._downs.get(end, []) if at > since]

    def down_line(self, end: End, since: Instant) -> tuple[Instant, str] | None:
        """Return the last line of a port, if it came after `since` and says that the link is down."""
        at, down, line = self._last.get(end, (-1, False, ""))
        return (at, line) if down and at > since else None

    def lost(self) -> list[tuple[End, Instant]]:
        """Return the ports whose last line says that the link is down, and when it was lost."""
        return [(end, self._downs[end][-1]) for end, (_, down, _) in self._last.items() if down and end in self._downs]

    def up_at(self, end: End) -> Instant:
        """Return when the last line of a port came, if it says that the link is up; else -1."""
        at, down, _ = self._last.get(end, (-1, True, ""))
        return -1 if down else at

    def logged_up(self, end: End, since: Instant) -> bool:
        """Return whether the last line of a port came after `since` and says that the link is up."""
        return self.up_at(end) > max(since, -1)

    def flapping(self, since: Instant, times: int) -> list[End]:
        """Return the ports that lost their link so often after `since`, by the logs."""
        return [end for end, downs in self._downs.items() if sum(at > since for at in downs) >= times]

    def snapshot(self) -> list[Any]:
        """Return the state as JSON can say it."""
        downs = [[list(end), at] for end, at in self._downs.items()]
        return [
            downs,
            [[list(end), list(last)] for end, last in self._last.items()],
            {machine: list(at) for machine, at in self._heard.items()},
        ]

    def load(self, state: list[Any]) -> None:
        """Take what `snapshot` returned."""
        self._downs = {(kind, owner, port): list(at) for (kind, owner, port), at in state[0]}
        self._last = {(kind, owner, port): (at, down, line) for (kind, owner, port), (at, down, line) in state[1]}
        heard = state[2] if len(state) > 2 else {}
        self._heard = {machine: (lost, back) for machine, (lost, back) in heard.items()}


def _of_interface(name: str) -> tuple[str, ...]:
    """Return what the RDMA device of a network interface may be called; nothing where its name does not say.

    The mlx5 driver calls that of bond0 mlx5_bond_0, and udev those of enp12s0f1 and enp12s0f1np1 rocep12s0f1, of a card
    with one port rocep12s0 (rdma-core, rdma_rename).

    >>> _of_interface("enp12s0f0np0")
    ('rocep12s0f0', 'rocep12s0')
    """
    if (bond := _OF_BOND.fullmatch(name)) is not None:
        return (f"mlx5_bond_{bond[1]}",)
    slot = _OF_SLOT.fullmatch(name)
    return () if slot is None else (f"roce{slot[1]}", f"roce{slot[1]}".removesuffix("f0"))


def _as_rdma(device: str) -> str:
    """Return the RDMA name of an IPoIB interface: ib3 is mlx5_3, as drivers number them on nodes of one kind of NIC."""
    number = _NUMBER.search(device)
    return f"mlx5_{number[1]}" if device.startswith("ib") and number else device


def evidence_of(found: tuple[Instant, str] | None) -> Mapping[str, str]:
    """Return a kernel's line as evidence."""
    return {} if found is None else {"kernel": found[1]}
