"""Lines of systemd and the kernel on exporters: what collects a stream has ended, and is not away by chance."""

import re
from collections.abc import Sequence
from typing import Final

from detectors.contract import Instant, LogRecord
from detectors.core.kept import Kept
from detectors.core.survivors import Survivors

_ENDED: Final = re.compile(
    r"systemd\[\d+\]: (\S+)\.service: (?:Main process exited|Failed with result|Start request repeated too quickly)|"
    r"Killed process \d+ \(([^)]+)\)"
)
"""As systemd writes it (src/core/service.c, unit.c), whatever ended the process, and when it starts it no more; and the
kernel of what it kills for want of memory (mm/oom_kill.c)."""
_OF: Final = {
    "dcgm": re.compile(r"dcgm|hostengine|nvidia[\w-]*exporter", re.IGNORECASE),
    "nic": re.compile(r"node[_-]?exporter", re.IGNORECASE),
}
"""Units that collect GPUs, and what node_exporter has of NICs."""


class Exits(Kept):
    """By stream and node: when what collects it last ended (`at`)."""

    KEPT = ("at",)

    def __init__(self) -> None:
        self.at: dict[str, dict[str, Instant]] = {kind: {} for kind in _OF}

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take log lines in order of time; of a unit that is started again the readings come back."""
        for record in records:
            if record.source == "kernel" and record.node and (found := _ENDED.search(record.message)) is not None:
                for kind, unit in _OF.items():
                    if unit.search(found[1] or found[2]):
                        self.at[kind][record.node] = record.at

    def of(self, kind: str) -> dict[str, Instant]:
        """Return when what collects a stream last ended, by node."""
        return self.at.get(kind, {})

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget nodes that are gone."""
        gone = survivors.names("machine")
        self.at = {kind: {n: at for n, at in ended.items() if n not in gone} for kind, ended in self.at.items()}

    def begin_afresh(self, name: str) -> None:
        """Go on with the state of a version that read no such lines."""
        if name != "at":
            super().begin_afresh(name)
