"""Work on switches, or on single ports, that was announced: what it takes down is no fault."""

import re
from collections.abc import Sequence
from typing import Any, Final

from detectors.contract import Instant, LogRecord
from detectors.fleet.cabling import End

_WORK: Final = re.compile(r"\b(?:upgrade|reload|reboot|maintenance|firmware|replace(?:ment)?|swap)\b", re.IGNORECASE)
_PORT_WORK: Final = re.compile(
    r"\b(?:if)?admin(?:istratively)?[ _-]?(?:state|status)?\b[^.;]{0,16}?\b(?:shut ?)?down\b(?! to up)", re.IGNORECASE
)
"""Of a port that was taken down by hand the line has the name, and the switch's."""
_COMMAND: Final = re.compile(
    r"(?:\bCOMMAND=|^[\w.-]+(?:\[\d+\])?: (?:sudo )?)\S*"
    r"(?:ibportstate\b.*\bdisable|ip link set\b.*\bdown|ifdown|ifconfig\b.*\bdown|mlxlink\b.*\bDN"
    r"|config interface shutdown)\b"
)
"""What sudo, or logger(1) by a user's name, logs of who takes a port down, of a node or of a switch with SONiC."""
_INTERFACE: Final = re.compile(r"\b(?:link set(?: dev)?|ifdown|ifconfig) (?:en|eth|ib|bond)\w+")
"""The kernel's name of a port, of which topologies have the RDMA device."""
_AT_ONCE_MS: Final = 90_000
"""What a command takes down is down at the next reading, a minute later at most."""
_DONE, _TO = (
    r"\b(?:re-?seat|re-?cabl|swap|replac|unplug|clean)",
    r"\b(?:optic|transceiver|cable|module|fib(?:re|er)|[qo]?sfp|dac|aoc)",
)
_HANDS: Final = re.compile(
    rf"{_DONE}\w*\b[^.;]{{0,24}}?{_TO}|{_TO}[\w-]*(?: \w+)? {_DONE}", re.IGNORECASE
)  # fmt: skip
"""What people say that they do to a cable, in either order; a kernel says it of one that comes loose."""
_SHUT: Final = re.compile(
    r"\b(?:port|interface|link|cable)\b[^.;]{0,60}?\b(?:shut(?: ?down)?|taken down|disabled) (?:by|for|to)\b",
    re.IGNORECASE,
)
"""What people say of a port that they take out of use, and why."""
_ONE_PORT: Final = re.compile(
    r"\b(?:(?:port|interface|swp|mlx\d_|ib)[ _-]?|(?:et|xe|ge)-|(?:en|eth)[a-z\d]*|(?-i:p))\d[\w/:]*\b(?!-\d)",
    re.IGNORECASE,
)
"""The name of a port, and of no range of them: work on a cable is no work on its whole switch. A P1 is no port."""
_BURN: Final = re.compile(
    r"\b(?:mlxfwreset|mlxfwmanager|mlxburn|(?:mst)?flint|mstfwreset)\b|\bfirmware (?:burn|flash|update|upgrade)\b",
    re.IGNORECASE,
)
"""NVIDIA's tools for the firmware of NICs (MFT), which then starts anew."""
_BURN_MS: Final = 600_000
"""To burn an image and to reset takes a minute or two for each NIC of a node."""
_NAME: Final = re.compile(r"[\w.-]*\w")
_MOST_PORTS: Final = 1000
_HOLDS_MS: Final = 7_200_000
"""Work is announced shortly before it begins and takes an hour or so; what fails later fails by itself."""
_LATE_MS: Final = 60_000
"""A line on the port itself may come after it is down: clocks of switches and collectors differ by seconds."""

Span = tuple[Instant, Instant]
"""When the first and the last of some lines came, each while the one before held."""


class Announced:
    """When work was announced, by each word of the line if the scheduler's log has it, else by its machine.

    Of lines that follow one another while the one before holds, the first counts, too: a second does not take back
    what the first explains. Which of the words are switches, or ports, is not asked: one may report for the first time
    after the line.
    """

    def __init__(self) -> None:
        self._at: dict[str, Span] = {}
        self._ports: list[tuple[Instant, list[str]]] = []
        """Of lines on single ports: when, and their words."""
        self._burnt: dict[str, Span] = {}
        """By node, when the firmware of its NICs was being changed."""
        self._taken_down: dict[str, Span] = {}
        """By node, when one of its interfaces was taken down by the kernel's name."""

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take log lines in order of time."""
        for record in records:
            if record.source not in {"scheduler", "kernel", "fabricmanager"}:
                continue
            command = _COMMAND.search(record.message)
            by_hand = record.source == "scheduler" and (_HANDS.search(record.message) or _SHUT.search(record.message))
            on_port = command or by_hand or _PORT_WORK.search(record.message)
            if on_port:
                kept_ports = [(at, words) for at, words in self._ports if record.at - at <= _HOLDS_MS]
                self._ports = [*kept_ports, (record.at, self._named(record, own=True))][-_MOST_PORTS:]
            if record.node and command and _INTERFACE.search(record.message):
                self._taken_down = _noted(self._taken_down, [record.node], record.at, _AT_ONCE_MS)
            if record.node and _BURN.search(record.message):
                self._burnt = _noted(self._burnt, [record.node], record.at, _BURN_MS)
            # A switch's own log speaks of its optics in such words, too, where they err.
            one_port = on_port and _ONE_PORT.search(record.message)
            if record.source != "fabricmanager" and not one_port and _WORK.search(record.message):
                named = self._named(record, own=record.source == "scheduler")
                self._at = _noted(self._at, named, record.at, _HOLDS_MS)

    def _named(self, record: LogRecord, *, own: bool) -> list[str]:
        """Return what a line names: its machine, and its `own` words."""
        words = _NAME.findall(record.message) if own else []
        return sorted({*words, *([record.node] if record.node else [])})

    def covers(self, ends: Sequence[End], since: Instant) -> bool:
        """Return whether what happened at `since` belongs to work that was announced on one of the ends or switches."""
        if any(_holds(self._at, owner, since, 0, _HOLDS_MS) for kind, owner, _ in ends if kind == "switch"):
            return True
        nodes = [owner for kind, owner, _ in ends if kind == "nic"]
        for lines, lasts_ms in ((self._burnt, _BURN_MS), (self._taken_down, _AT_ONCE_MS)):
            if any(_holds(lines, node, since, _LATE_MS, lasts_ms) for node in nodes):
                return True
        named = [words for at, words in self._ports if -_LATE_MS <= since - at <= _HOLDS_MS]
        return any(owner in words and port in words for words in named for _, owner, port in ends)

    def snapshot(self) -> list[Any]:
        """Return the state as JSON can say it."""
        at, burnt, taken_down = (
            {name: list(span) for name, span in spans.items()} for spans in (self._at, self._burnt, self._taken_down)
        )
        return [at, [list(line) for line in self._ports], burnt, taken_down]

    def load(self, state: list[Any]) -> None:
        """Take what `snapshot` returned, or that of a version that kept the last line alone."""
        self._ports = [(at, list(words)) for at, words in state[1]]
        self._at, self._burnt, self._taken_down = (
            {name: _span(at) for name, at in state[n].items()} if len(state) > n else {} for n in (0, 2, 3)
        )


def _noted(spans: dict[str, Span], names: Sequence[str], at: Instant, lasts_ms: float) -> dict[str, Span]:
    """Return when lines were about each name, with this one, without what they cannot explain any more."""
    kept = {name: span for name, span in spans.items() if at - span[1] <= max(lasts_ms, _BURN_MS)}
    goes_on = {name: kept[name][0] for name in names if name in kept and at - kept[name][1] <= lasts_ms}
    return kept | {name: (goes_on.get(name, at), at) for name in names}


def _holds(spans: dict[str, Span], name: str, since: Instant, late_ms: float, lasts_ms: float) -> bool:
    """Return whether what happened at `since` belongs to the lines about a name."""
    first, last = spans.get(name, (-1, -1))
    return first >= 0 and first - late_ms <= since <= last + lasts_ms


def _span(at: Instant | list[Instant]) -> Span:
    return (at[0], at[1]) if isinstance(at, list) else (at, at)
