"""A scenario file: which cluster, which jobs, what breaks, and what an on-call engineer should make of it."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from services.kit.errors import UserError
from services.recording.instants import InstantMs
from services.recording.reader import describe
from services.synth.faults.registry import happening_of
from services.synth.happening import Happening, Lasting, Offset
from services.synth.profile import ClusterProfile, Strict, load_profile, load_yaml
from services.synth.variation import settle

AnyHappening = SerializeAsAny[Annotated[Happening, BeforeValidator(happening_of)]]


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
    nodes: str | list[str] = Field(description="all, a range first..last, or names")
    submit: Offset
    start: Offset
    end: Offset | None = None
    training: Training


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
    happenings: list[AnyHappening] = Field(default_factory=list)
    distractors: list[Distractor] = Field(default_factory=list)

    @model_validator(mode="after")
    def _in_time(self) -> "Scenario":
        for number, happening in enumerate(self.happenings):
            if isinstance(happening, Lasting) and happening.until > self.duration:
                raise ValueError(f"happenings.{number} ({happening.kind}): at and until must lie in the recording")
        return self


def load_scenario(path: Path, seed: int | None = None) -> tuple[Scenario, ClusterProfile, Path]:
    """Read a scenario file and its profile (``../profiles/NAME.yaml``); return both and the profile's path.

    `seed` replaces the scenario's own, and with it what the scenario leaves open. UserError names the file and every
    field that is wrong.
    """
    content = load_yaml(path, "scenario")
    try:
        if isinstance(content, dict):
            chosen = content.get("seed") if seed is None else seed
            content |= {"seed": chosen}
            if isinstance(chosen, int):
                open_parts = {key: content[key] for key in ("jobs", "happenings", "distractors") if key in content}
                content |= settle(open_parts, chosen)
        scenario = Scenario.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {describe(error)}", remedy="correct the scenario", exit_code=2) from error
    except ValueError as error:
        raise UserError(f"{path}: {error}", remedy="correct the scenario", exit_code=2) from error
    profile_path = path.parent.parent / "profiles" / f"{scenario.profile}.yaml"
    return scenario, load_profile(profile_path), profile_path
