"""What is kept of an incident between its revisions."""

from dataclasses import asdict, dataclass, field
from typing import Any

from detectors.contract import Instant
from detectors.incidents.impact import Losses
from detectors.incidents.report import Impact, Touched

NEVER: Instant = 2**62


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
    wait_ms: int = 0
    losses: Losses = field(default_factory=Losses)
    told: Impact | None = None
    """The impact as last told."""
    joined_to: str | None = None

    @property
    def age(self) -> tuple[Instant, str]:
        """Return what incidents are ordered by: the oldest keeps its name."""
        return self.opened_at, self.id

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in {"losses", "told"}}
        return fields | {"losses": self.losses.snapshot(), "told": None if self.told is None else asdict(self.told)}

    @classmethod
    def restore(cls, fields: dict[str, Any]) -> "Book":
        """Return what `snapshot` was taken of."""
        told = fields["told"]
        if told is not None:
            told = Impact(**told | {"jobs": tuple(Touched(**job) for job in told["jobs"])})
        return cls(**fields | {"losses": Losses.restore(fields["losses"]), "told": told})
