"""The file that `hindcast calibrate` writes: what is usual at a site, by detector, and how it was found."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from detectors.registry import discover
from services.kit.errors import UsageError, UserError
from services.kit.replays import TailCounts, plain

FORMAT: Final = "hindcast.calibration/v1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Known(_Part):
    """What one detector has learnt, and which version of it that was."""

    version: int
    tails: dict[str, TailCounts]


class Source(_Part):
    """A recording, maybe a capture of `url`, and whether it was learnt from or judged."""

    name: str
    manifest_sha256: str
    start: str
    end: str
    used: Literal["fitted", "measured"]
    url: str | None = None


class Measured(_Part):
    """False alarms on the half that was not fitted on, beside the budget; rates are for 100 node-days."""

    node_days: float
    false_alarms: int
    rate: float | None
    rate_upper_95: float | None
    budget: float
    by_detector: dict[str, int]


class Calibration(_Part):
    """The file."""

    format: Literal["hindcast.calibration/v1"]
    cluster: str
    fitted_node_days: float
    sources: list[Source]
    measured: Measured | None
    detectors: dict[str, Known]


def load_calibration(path: Path) -> Mapping[str, Any]:
    """Return what a calibration says, as `registry.choose` takes it. UserError (exit code 2) lists what is wrong."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}", remedy="name the file that `hindcast calibrate` wrote"
        ) from None
    try:
        calibration = Calibration.model_validate_json(text)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc'])) or 'file'}: {one['msg']}" for one in error.errors()[:20]]
        raise _wrong(path, problems) from None
    specs = {name: kind.spec for name, kind in discover().items()}
    problems = []
    for name, known in calibration.detectors.items():
        if name not in specs:
            problems.append(f"{name}: there is no such detector")
        elif specs[name].version != known.version:
            problems.append(f"{name}: is of version {known.version} of the detector, and this is {specs[name].version}")
    if problems:
        raise _wrong(path, problems)
    return plain({name: known.tails for name, known in calibration.detectors.items()})


def _wrong(path: Path, problems: list[str]) -> UserError:
    return UsageError(
        f"{path}: {len(problems)} thing(s) wrong:\n  " + "\n  ".join(problems),
        remedy="make it again with `hindcast calibrate`",
    )
