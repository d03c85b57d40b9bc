"""Reads the table that sacct prints without ``-P``: columns as wide as the dashes below their names.

What does not fit its column, sacct cuts off and ends in ``+``: such a value is not the whole of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_DASHES = re.compile(r"-+(?: -+)+ *")
_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING",
    "PREEMPTED", "RUNNING", "REQUEUED", "RESIZING", "REVOKED", "SUSPENDED", "TIMEOUT",
)  # fmt: skip
NEEDED = ("JobID", "Start", "End", "NodeList")
"""Fields of which a part is of no use."""


def is_dashes(line: str) -> bool:
    """Whether a line is the one below the names."""
    return _DASHES.fullmatch(line) is not None


@dataclass(frozen=True)
class FixedTable:
    """Where the columns of a table lie, in bytes: sacct counts these, whatever a name is written in."""

    names: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, heading: str, dashes: str) -> "FixedTable":
        """Return the table that begins with these two lines."""
        spans = tuple(match.span() for match in re.finditer("-+", dashes))
        return cls(tuple(heading[first:last].strip() for first, last in spans), spans)

    def row(self, line: str) -> dict[str, str] | None:
        """Return a line's values by name; None where something stands between the columns."""
        content = line.encode("utf-8", "surrogateescape").ljust(self.spans[-1][1])
        between = [*zip((last for _, last in self.spans), (first for first, _ in self.spans[1:]), strict=False)]
        if any(content[last:first].strip() for last, first in [*between, (self.spans[-1][1], len(content))]):
            return None
        values = (content[first:last].decode("utf-8", "replace").strip() for first, last in self.spans)
        return dict(zip(self.names, values, strict=True))

    def cut_off(self, row: dict[str, str]) -> list[str]:
        """Return the fields of a row of which sacct printed a part only."""
        widths = {name: last - first for name, (first, last) in zip(self.names, self.spans, strict=True)}
        return [
            name
            for name, value in row.items()
            if value.endswith("+") and len(value.encode("utf-8", "replace")) >= widths[name]
        ]


def whole_state(text: str) -> str | None:
    """Return the state that a part of its name, ending in ``+``, can only be; None where there are several."""
    found = [state for state in _STATES if state.startswith(text.removesuffix("+"))]
    return found[0] if len(found) == 1 else None


def heading_names(lines: Sequence[str]) -> list[str]:
    """Return the names of the columns where two lines are a heading with its dashes; [] else."""
    return lines[0].split() if len(lines) > 1 and is_dashes(lines[1].rstrip("\r")) else []
