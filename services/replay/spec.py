"""What a replay is asked to be, and the decisions made once when it starts: window, shift, target, name."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.kit.errors import UsageError
from services.kit.replays import DetectorSettings, DetectorTails
from services.recording.instants import resolve_instant
from services.recording.reader import Recording
from services.replay.pacer import MAX

Shift = Literal["now", "start-now", "keep"]
Speed = Annotated[float, Field(ge=1, le=1000)] | Literal["max"]

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RESERVED = ("live",)  # the name that a live feed has instead of a replay's


class ReplayRequest(BaseModel):
    """What a user asks for. Times are RFC 3339, or ``+HH:MM:SS`` from the recording's start."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    recording: Path
    speed: Speed = 1.0
    shift: Shift = "now"
    name: str | None = None
    target: str | None = None
    from_: str | None = Field(default=None, alias="from")
    to: str | None = None
    detectors: DetectorSettings = {}
    calibration: DetectorTails = {}
    strict: bool = Field(default=False, description="Fail at rows that cannot be right, instead of leaving them out.")


class ReplaySpec(BaseModel):
    """What stays the same over a replay's life. Times are epoch milliseconds of recording time, both included."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    cluster: str
    recording: str
    from_ms: int
    to_ms: int
    shift: Shift
    shift_ms: int
    target: str
    detectors: DetectorSettings = {}
    calibration: DetectorTails = {}
    strict: bool = False
    left_out: str = ""


def speed_of(speed: float | Literal["max"]) -> float:
    """Return the speed as the pacer counts it."""
    return MAX if speed == "max" else float(speed)


def plan(request: ReplayRequest, recording: Recording, taken: Collection[str], now_ms: int) -> ReplaySpec:
    """Return the replay that `request` asks for; raise UserError (exit code 2) where it asks for what cannot be.

    `now` lets the window's end land at `now_ms`, `start-now` its start, `keep` moves nothing. Moved replays go to
    Prometheus, which wants recent times; kept ones to Receive, which takes any.
    """
    if request.shift == "start-now" and request.speed != 1:
        raise UsageError(
            f"shift start-now at speed {request.speed}: faster than the clock, it would land in the future",
            remedy="use --speed 1, or --shift now",
        )
    manifest = recording.manifest
    from_ms = moment(request.from_, "from", recording) if request.from_ else manifest.start
    to_ms = moment(request.to, "to", recording) if request.to else manifest.end
    if from_ms >= to_ms:
        raise UsageError("the window is empty: `from` is not before `to`", remedy="mend --from and --to")
    shift_ms = {"now": now_ms - to_ms, "start-now": now_ms - from_ms, "keep": 0}[request.shift]
    return ReplaySpec(
        name=check_name(request.name, taken) if request.name else free_name(manifest.name, taken),
        cluster=manifest.cluster.name,
        recording=str(recording.path.resolve()),
        from_ms=from_ms,
        to_ms=to_ms,
        shift=request.shift,
        shift_ms=shift_ms,
        detectors=request.detectors,
        calibration=request.calibration,
        strict=request.strict,
        left_out=recording.left_out,
        target=request.target or ("receive" if request.shift == "keep" else "prometheus"),
    )


def moment(text: str, what: str, recording: Recording) -> int:
    """Return a time inside the recording, given absolutely or from its start; UserError (exit code 2) otherwise."""
    start, end = recording.manifest.start, recording.manifest.end
    try:
        at_ms = resolve_instant(text, start, end)
    except ValueError as error:
        remedy = "write RFC 3339 (2024-04-01T08:00:00Z), +HH:MM:SS or +10m from the recording's start, -5m from its end"
        raise UsageError(f"{what}: {error}", remedy=remedy) from None
    if not start <= at_ms <= end:
        length = (end - start) // 1000
        reach = f"+{length // 3600:02d}:{length // 60 % 60:02d}:{length % 60:02d}"
        remedy = f"{recording.manifest.name} reaches from +00:00:00 to {reach}"
        raise UsageError(f"{what}: {text} is outside the recording", remedy=remedy)
    return at_ms


def check_name(name: str, taken: Collection[str]) -> str:
    """Return `name` if a replay may be called so; raise UserError (exit code 2) if not."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        remedy = "use up to 63 lower-case letters, digits and hyphens, not a hyphen at either end, and not 'live'"
        raise UsageError(f"{name!r} cannot be the name of a replay", remedy=remedy)
    if name in taken:
        remedy = f"choose another --name, or remove that one first: hindcast replay rm {name}"
        raise UsageError(f"there is a replay named {name} already", remedy=remedy)
    return name


def free_name(base: str, taken: Collection[str]) -> str:
    """Return `base`, or `base` with the least of -2, -3, ... that is not taken."""
    base = base[:59].rstrip("-")
    number = 1
    name = base
    while name in taken or name in _RESERVED:
        number += 1
        name = f"{base}-{number}"
    return name
