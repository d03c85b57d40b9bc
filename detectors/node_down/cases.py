"""What is known of a node that may be down, at the moment of judgement."""

from dataclasses import dataclass
from typing import Final

from detectors.contract import Instant
from detectors.fleet.scheduling import Word

MISSED: Final = 2.2
"""Two readings are missing, with room for jitter."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known of a node at the moment of judgement; times in ms, intervals its own."""

    node: str
    number: int
    last: Instant
    usual: float
    missed: float
    together: int
    word: Word | None
    line: tuple[Instant, str] | None
    off: bool
    watts: float
    watts_before: float
    draws_less: bool
    """Whether it has drawn less since it fell silent: by the BMC's second reading after that."""
    bmc: str
    job_id: str | None
    stopped: bool | None
    odds: float
    """By chance, of such a silence with its job's pause or its fall of power beside it; 1: neither is."""
    paused: float
    """For how many of its steps its job has stopped with it, or for how many readings its GPUs stand."""
    saves: bool
    """Whether other nodes of its job began to save a checkpoint when it stopped, and still do."""

    @property
    def down(self) -> bool:
        """Whether the scheduler says that it is down."""
        return self.word is not None and self.word.state == "down"

    @property
    def support(self) -> list[str]:
        """What speaks for it beside the silence."""
        signs = {
            "scheduler": self.word is not None,
            "event log": self.line is not None,
            "power": self.draws_less and not self.saves,
            "steps": self.stopped is True and not self.saves,
            "its job's GPUs": self.stopped is None and self.paused > MISSED and not self.saves,
        }
        return [name for name, says in signs.items() if says]

    def summary(self, now: Instant) -> str:
        """Return in a sentence what happened."""
        if self.missed <= 1:
            first, shown = (
                f"{self.node} is down by the scheduler's word",
                [by for by in self.support if by != "scheduler"],
            )
        else:
            first = f"{self.node} is silent for {(now - self.last) / 1000:.0f} s ({self.missed:.1f} intervals)"
            shown = self.support
        return first + (f"; also shown by {', '.join(shown)}" if shown else "")


def bmc_in_a_word(last: Instant, usual: float, now: Instant) -> str:
    """Return in a word how a BMC does that was last heard at `last`, every `usual` ms."""
    if last < 0:
        return "unknown"
    return "reports" if now - last <= 2.5 * max(usual, 1.0) else "silent"
