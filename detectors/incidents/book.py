"""What is kept of an incident between its revisions."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from detectors.contract import Instant
from detectors.incidents.impact import Losses
from detectors.incidents.report import Impact, Touched

NEVER: Instant = 2**62
REFRESH_MS: Final = 600_000
"""The impact of an open incident is reported anew after so long, then each time after twice that (judgement)."""
MOST_MEMBERS: Final = 128
"""Findings that one incident lists; more belong to it and are counted (judgement)."""


@dataclass(slots=True)
class Book:
    """What is kept of an incident."""

    id: str
    opened_at: Instant
    members: list[str] = field(default_factory=list)
    revision: int = 0
    closed_at: Instant | None = None
    counted: bool = False
    unlisted: int = 0
    look_at: Instant = NEVER
    wait_ms: int = REFRESH_MS
    losses: Losses = field(default_factory=Losses)
    reported: Impact | None = None
    """The impact of the last revision."""
    joined_to: str | None = None

    @property
    def age(self) -> tuple[Instant, str]:
        """Return what incidents are ordered by: the oldest keeps its name."""
        return self.opened_at, self.id

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in {"losses", "reported"}}
        return fields | {
            "losses": self.losses.snapshot(),
            "told": None if self.reported is None else asdict(self.reported),
        }

    @classmethod
    def restore(cls, fields: dict[str, Any]) -> "Book":
        """Return what `snapshot` was taken of."""
        impact = fields["told"]
        if impact is not None:
            impact = Impact(**impact | {"jobs": tuple(Touched(**job) for job in impact["jobs"])})
        named = {name: value for name, value in fields.items() if name != "told"}
        return cls(**named | {"losses": Losses.restore(fields["losses"]), "reported": impact})
