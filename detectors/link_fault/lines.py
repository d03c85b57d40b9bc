"""What kernels say of links: mlx5 and other drivers, lost and gained carrier."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from detectors.contract import Instant, LogRecord

_DOWN = re.compile(
    r"link (?:is )?down|lost carrier|carrier lost|cable unplugged|link not ready|port.*\bDOWN\b|link_downed",
    re.IGNORECASE,
)
_UP = re.compile(
    r"link (?:is )?up\b|gained carrier|cable plugged|link becomes ready|port.*\b(?:UP|ACTIVE)\b", re.IGNORECASE
)
_DEVICE = re.compile(r"\b(mlx5_\d+|mlx4_\d+|bnxt_re\d+|rocep?\w+|irdma\d+|ib\d+|hsi\d+)\b")
_NUMBER = re.compile(r"(\d+)$")
_KEPT = 8
_ONE_LOSS_MS = 2000
_NAMED = 100_000


class Lines:
    """By NIC: when kernels said that its link went down, and the last that they said of it."""

    def __init__(self) -> None:
        self._downs: dict[tuple[str, str], list[Instant]] = {}
        self._last: dict[tuple[str, str], tuple[Instant, bool, str]] = {}

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take log lines in order of time."""
        for record in records:
            if record.source != "kernel" or not record.node:
                continue
            down = _DOWN.search(record.message) is not None
            if not down and not _UP.search(record.message):
                continue
            device = _DEVICE.search(record.message)
            if device is None or len(self._last) >= _NAMED:
                continue
            nic = record.node, _as_rdma(device[1])
            told = self._last.get(nic)
            self._last[nic] = record.at, down, record.message[:200]
            # The driver and the network manager each write a line: one loss.
            if down and not (told is not None and told[1] and record.at - told[0] <= _ONE_LOSS_MS):
                self._downs[nic] = [*self._downs.get(nic, []), record.at][-_KEPT:]

    def downs(self, node: str, nic: str, since: Instant) -> list[Instant]:
        """Return when a NIC's kernel said after `since` that its link went down."""
        return [at for at in self._downs.get((node, nic), []) if at > since]

    def down_line(self, node: str, nic: str, since: Instant) -> tuple[Instant, str] | None:
        """Return the last line of a NIC, if it was after `since` and said that the link is down."""
        at, down, line = self._last.get((node, nic), (-1, False, ""))
        return (at, line) if down and at > since else None

    def nics_flapping(self, since: Instant, times: int) -> list[tuple[str, str]]:
        """Return the NICs said to have lost their link so often after `since`."""
        return [nic for nic, downs in self._downs.items() if sum(at > since for at in downs) >= times]

    def snapshot(self) -> list[Any]:
        """Return the state as JSON can say it."""
        downs = [[list(nic), at] for nic, at in self._downs.items()]
        return [downs, [[list(nic), list(last)] for nic, last in self._last.items()]]

    def load(self, state: list[Any]) -> None:
        """Take what `snapshot` returned."""
        self._downs = {(node, nic): list(at) for (node, nic), at in state[0]}
        self._last = {(node, nic): (at, down, line) for (node, nic), (at, down, line) in state[1]}


def _as_rdma(device: str) -> str:
    """Return the RDMA name of an IPoIB interface: ib3 is mlx5_3, as drivers number them on nodes of one kind of NIC."""
    number = _NUMBER.search(device)
    return f"mlx5_{number[1]}" if device.startswith("ib") and number else device


def evidence_of(found: tuple[Instant, str] | None) -> Mapping[str, str]:
    """Return a kernel's line as evidence."""
    return {} if found is None else {"kernel": found[1]}
