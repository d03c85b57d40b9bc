"""A scenario file: which cluster, which jobs, what breaks, and what an on-call engineer should make of it."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from services.kit.errors import UserError
from services.recording.instants import InstantMs, parse_offset
from services.recording.reader import describe
from services.synth.profile import ClusterProfile, Strict, load_profile, load_yaml


def _seconds(value: object) -> object:
    return parse_offset(value) / 1000 if isinstance(value, str) else value


# Seconds since the start of the recording; written "+HH:MM:SS" in a scenario.
Offset = Annotated[float, BeforeValidator(_seconds)]


class Training(Strict):
    """A synchronous training loop: all ranks compute, then meet; the slowest sets the step. Seconds."""

    launch_s: float = Field(description="containers start, NCCL connects")
    load_s: float = Field(description="the checkpoint is read")
    compute_s: float = Field(description="a step's computation at full clock")
    clock_bound: float = Field(ge=0, le=1, description="share of the computation that goes with the SM clock")
    collective_s: float = Field(description="communication that no computation hides")
    data_wait_s: float
    jitter: float = Field(description="relative standard deviation of a rank's computation, step to step")
    warm_up: list[float] = Field(description="factors on the first steps' computation")
    checkpoint_every: int = Field(gt=0)
    checkpoint_s: float
    log_every: int = Field(gt=0, description="iterations between two lines of the trainer's log")
    first_iteration: int = Field(ge=1)
    last_iteration: int
    tokens_per_step: int
    loss: float
    loss_per_1000_steps: float
    grad_norm: float
    fb_used_mib: int
    tensor_active: float = Field(ge=0, le=1, description="while computing, as DCGM reports it")
    dram_active: float = Field(ge=0, le=1)
    nvlink_gb_s: float = Field(description="per GPU and direction while computing at full clock")
    pcie_gb_s: float = Field(description="per GPU and direction while computing at full clock")


class JobSpec(Strict):
    """One batch job."""

    id: str
    name: str
    user: str
    partition: str = "train"
    nodes: Literal["all"] | list[str]
    submit: Offset
    start: Offset
    end: Offset | None = None
    training: Training


class Truth(Strict):
    """What a fault's label says beyond where and when."""

    id: str
    fault: str
    within_s: float
    incident: str | None = None
    root: bool = False
    note: str = ""


class PowerBrake(Strict):
    """A power supply fails and the firmware brakes all GPUs of its node until it is back."""

    kind: Literal["power_brake"]
    node: str
    at: Offset
    until: Offset
    gpu_cap_w: float = Field(gt=0)
    psu: int = Field(default=1, ge=1, le=2)
    cause: str
    truth: Truth


class HostMemoryError(Strict):
    """One corrected error of a host's memory: a SEL line that means nothing for the GPUs."""

    kind: Literal["host_memory_error"]
    node: str
    at: Offset


class OldXid(Strict):
    """An XID from before the recording: the gauge still shows it."""

    kind: Literal["old_xid"]
    node: str
    gpu: int
    xid: int


_Kind = TypeVar("_Kind", bound=Strict)
Happening = Annotated[PowerBrake | HostMemoryError | OldXid, Field(discriminator="kind")]


class Distractor(Strict):
    """A stretch that looks wrong and is not."""

    id: str
    entity: dict[str, str | int]
    at: Offset
    until: Offset
    note: str


class Scenario(Strict):
    """A scenario file, with the profile it names beside it."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str
    summary: str
    source: dict[str, Any]
    profile: str
    seed: int
    start: InstantMs
    duration: Offset
    jobs: list[JobSpec]
    happenings: list[Happening] = Field(default_factory=list)
    distractors: list[Distractor] = Field(default_factory=list)

    @model_validator(mode="after")
    def _in_time(self) -> "Scenario":
        for happening in self.happenings:
            if isinstance(happening, PowerBrake) and not 0 <= happening.at < happening.until <= self.duration:
                raise ValueError(
                    f"{happening.kind} on {happening.node}: at and until must lie in the recording, in order"
                )
        return self

    def of_kind(self, kind: type[_Kind]) -> list[_Kind]:
        """Return the happenings of one kind, in the file's order."""
        return [happening for happening in self.happenings if isinstance(happening, kind)]


def load_scenario(path: Path) -> tuple[Scenario, ClusterProfile, Path]:
    """Read a scenario file and its profile (``../profiles/NAME.yaml``); return both and the profile's path.

    UserError names the file and every field that is wrong.
    """
    try:
        scenario = Scenario.model_validate(load_yaml(path, "scenario"))
    except ValidationError as error:
        raise UserError(f"{path}: {describe(error)}", remedy="correct the scenario", exit_code=2) from error
    profile_path = path.parent.parent / "profiles" / f"{scenario.profile}.yaml"
    return scenario, load_profile(profile_path), profile_path
