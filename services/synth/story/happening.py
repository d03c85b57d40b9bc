"""What every happening of a scenario is made of. Each kind is a module in faults/, found by itself.

A happening knows whom it befalls and when, makes its effects on the machines, writes the log lines that they write,
and states the truth about itself. The physics do the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, model_validator

from services.recording.instants import parse_offset
from services.recording.model import Event
from services.synth.cluster.profile import Strict
from services.synth.cluster.world import World
from services.synth.physics.effects import Course, Effect

if TYPE_CHECKING:
    from services.synth.logs.lines import Logs  # which knows of jobs, and so of scenarios and their happenings


def _seconds(value: object) -> object:
    return parse_offset(value) / 1000 if isinstance(value, str) else value


# Seconds since the start of the recording; written "+HH:MM:SS" in a scenario.
Offset = Annotated[float, BeforeValidator(_seconds)]


class Truth(Strict):
    """What a fault's label says beyond where and when."""

    id: str
    fault: str
    within_s: float
    incident: str | None = None
    root: bool = False
    optional: bool = False
    cause: str | None = None
    note: str = ""


class Happening(Strict):
    """Something that befalls the cluster: a fault, or what merely looks like one."""

    kind: str
    truth: Truth | None = None
    """The label; None for what is no fault."""

    def effects(self, world: World) -> Iterable[Effect]:
        """Return what it does to the machines."""
        del world
        return ()

    def lines(self, world: World, logs: "Logs") -> Iterable[Event]:
        """Return the log lines that machines write about it."""
        del world, logs
        return ()

    def truths(self, world: World) -> Iterable["PlacedTruth"]:
        """Return its labels: whom to name, from when to when."""
        del world
        return ()


class PlacedTruth(Strict):
    """One label to be: the entity (keys of labels.jsonl), the span in seconds, and what the scenario says of it.

    `nodes` are the indices of the nodes whose jobs feel it (their steps give the impact); `jobs` names them instead.
    What shows `in_traffic` alone is not required where no job of these has a node elsewhere: a leaf between its own
    nodes never fills. Nor is a limit that `allows_w` a GPU more than any of these jobs draws.
    """

    truth: Truth
    entity: Mapping[str, str | int]
    span: tuple[float, float]
    also: Sequence[Mapping[str, str | int]] = ()
    nodes: Sequence[int] = ()
    jobs: Sequence[str] = ()
    in_traffic: bool = False
    allows_w: float | None = None


class Lasting(Happening):
    """A happening with a beginning and an end, sudden, ramping up, or coming and going."""

    at: Offset
    until: Offset
    ramp_s: float = Field(default=0.0, ge=0, description="it grows from nothing to full strength over this")
    period_s: float | None = Field(default=None, gt=0, description="intermittent: it comes back this often")
    duty: float = Field(default=0.5, gt=0, lt=1, description="intermittent: the share of a period that it lasts")

    @model_validator(mode="after")
    def _in_order(self) -> "Lasting":
        if not 0 <= self.at < self.until:
            raise ValueError("at and until must lie in the recording, in order")
        return self

    def course(self, delay_s: float = 0.0) -> Course:
        """Return its course over time, `delay_s` later than it happens."""
        return Course.between(
            self.at + delay_s, self.until + delay_s, ramp_s=self.ramp_s, period_s=self.period_s, duty=self.duty
        )


class OnNode(Lasting):
    """Lasting, on one node."""

    node: str

    def entity(self, world: World) -> dict[str, str | int]:
        """Return whom the label names."""
        return {"node": world.names[world.node(self.node)]}

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label of whom it befalls."""
        if self.truth is not None:
            nodes = [world.node(self.node)]
            yield PlacedTruth(truth=self.truth, entity=self.entity(world), span=(self.at, self.until), nodes=nodes)


class OnGpu(OnNode):
    """Lasting, on one GPU."""

    gpu: int = Field(ge=0)

    def entity(self, world: World) -> dict[str, str | int]:
        """Return the GPU."""
        return super().entity(world) | {"gpu": self.gpu % world.profile.node.gpus}
