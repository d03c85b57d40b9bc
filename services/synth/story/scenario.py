"""A scenario file: which cluster, which jobs, what breaks, and what an on-call engineer should make of it."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from services.kit.errors import UsageError
from services.recording.instants import InstantMs
from services.recording.reader import describe
from services.synth.cluster.profile import ClusterProfile, Strict, load_profile, load_yaml
from services.synth.faults.registry import happening_of
from services.synth.story.happening import Happening, Lasting, Offset
from services.synth.story.presets import with_presets
from services.synth.story.variation import name, settle

AnyHappening = SerializeAsAny[Annotated[Happening, BeforeValidator(happening_of)]]


_OPEN = ("jobs", "mix", "happenings", "distractors")
"""The parts of a scenario in which values may be left open for the seed."""


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
    collective_jitter: float = Field(default=0.04, ge=0, description="of the communication, step to step, relative")
    rank_spread: float = Field(default=0.003, ge=0, description="relative: how much ranks differ for good")
    pipeline_stages: int = Field(default=1, gt=0, description="ranks in order, stage by stage")
    last_stage_factor: float = Field(default=1.0, gt=0, description="the last stage (loss, embedding) computes longer")
    step_variation: float = Field(default=0.0, ge=0, description="relative, all ranks alike: lengths of sequences")
    drift_per_hour: float = Field(default=0.0, description="all ranks slow down alike by this share an hour")
    evaluate_every: int | None = Field(default=None, gt=0)
    evaluate_s: float = Field(default=0.0, ge=0, description="forward only: GPUs are busy, no step is reported")
    reports: bool = Field(default=True, description="it reports its steps, and writes a log")
    log: Literal["megatron", "plain"] = Field(default="megatron", description="plain: a simulation, which has no loss")
    waits: Literal["busy", "idle"] = Field(default="busy", description="ranks without work spin in NCCL, or sleep")
    intensity: float = Field(default=1.0, gt=0, description="dynamic power while computing, relative to dense training")
    read_mb_per_step: float = Field(default=6.0, ge=0, description="of one rank")
    checkpoint_gb: float = Field(default=0.5, ge=0, description="of one rank: weights and optimiser state")
    reads_from: str | None = Field(default=None, description="a mount; the profile's first if not given")
    checkpoints_to: str | None = None

    @property
    def usual_step_s(self) -> float:
        """About what a healthy step takes."""
        return self.compute_s * self.last_stage_factor + self.data_wait_s + self.collective_s


FinalState = Literal["COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"]


class JobSpec(Strict):
    """One batch job. Times are offsets; a negative one (a number of seconds) is before the recording's start."""

    id: str
    name: str
    user: str
    partition: str = "train"
    nodes: str | list[str] | list[int] = Field(
        description="all, a range first..last, or names; numbers are places in the cluster that is made"
    )
    gpus: list[int] | None = Field(default=None, description="of every node, if not all")
    after: str | None = Field(default=None, description="a job: submit and start count from its end")
    submit: Offset
    start: Offset
    end: Offset | None = None
    state: FinalState = Field(default="COMPLETED", description="with which it ends at `end`")
    training: Training


class Outcome(Strict):
    """One way in which jobs of a kind end, and after how long: log-uniform between two lengths of time."""

    state: FinalState = "COMPLETED"
    share: float = Field(default=1.0, gt=0)
    lasts: tuple[Offset, Offset]

    @model_validator(mode="after")
    def _in_order(self) -> "Outcome":
        if not 0 < self.lasts[0] <= self.lasts[1]:
            raise ValueError("lasts: two lengths of time, the shorter first")
        return self

    @property
    def mean_length_s(self) -> float:
        """The mean of the log-uniform distribution."""
        low, high = self.lasts
        return low if low == high else (high - low) / float(np.log(high / low))


class MixKind(Strict):
    """One kind of job in a mix."""

    name: str
    share: float = Field(gt=0, description="of all jobs, relative to the other kinds'")
    users: list[str] = Field(min_length=1)
    partition: str = "train"
    nodes: dict[int, float] = Field(min_length=1, description="sizes and their weights, on the scenario's own profile")
    gpus: int | None = Field(default=None, gt=0, description="of every node, if not all")
    outcomes: list[Outcome] = Field(min_length=1)
    training: Training

    @property
    def mean_length_s(self) -> float:
        """How long one lasts on average."""
        shares = [outcome.share for outcome in self.outcomes]
        return float(np.average([outcome.mean_length_s for outcome in self.outcomes], weights=shares))

    @property
    def longest_s(self) -> float:
        """How long one may last."""
        return max(outcome.lasts[1] for outcome in self.outcomes)


class Mix(Strict):
    """A cluster's ordinary business (see mix.py): on nodes that no job of the scenario's own has."""

    occupancy: float = Field(gt=0, description="of the nodes, on average; from 1 on there is a queue")
    nodes: str | list[int] = Field(
        default="all", description="all, or a range first..last; numbers are places in the cluster that is made"
    )
    kinds: list[MixKind] = Field(min_length=1)


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
    interval_s: float | None = Field(default=None, gt=0, description="of DCGM's readings, if not as the profile says")
    jobs: list[JobSpec] = Field(default_factory=list)
    mix: Mix | None = None
    happenings: list[AnyHappening] = Field(default_factory=list)
    distractors: list[Distractor] = Field(default_factory=list)

    @model_validator(mode="after")
    def _jobs_have_ids_of_their_own(self) -> "Scenario":
        ids = [spec.id for spec in self.jobs]
        for number, spec in enumerate(self.jobs):
            if spec.id in ids[:number]:
                raise ValueError(f"jobs.{number}: there is a job {spec.id} already")
            if spec.after is not None and (spec.after not in ids or spec.after == spec.id):
                raise ValueError(f"jobs.{number}.after: there is no other job {spec.after}")
        return self

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
                open_parts = {key: content[key] for key in _OPEN if key in content}
                let = settle(content.pop("let", {}), chosen, "/let")
                content |= settle(name(open_parts, let), chosen)
            content = with_presets(content, path.parent.parent / "profiles" / "training")
        scenario = Scenario.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error)}", remedy="correct the scenario") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}", remedy="correct the scenario") from error
    profile_path = path.parent.parent / "profiles" / f"{scenario.profile}.yaml"
    return scenario, load_profile(profile_path), profile_path
