"""What a snapshot of another version, or of other settings, can be gone on with.

A detector goes on with the state of its own version and of those that kept the same (`state` in detector.yaml),
whatever its settings are now: it decides about what it has open by these. With any other state, or another calibration,
it begins afresh, but with the tails that were learnt: they are what a calibration file is made of, which every version
can read. What such a detector had open is held over (`detectors.engine.alarms`).
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from json import dumps
from typing import Any, NamedTuple

from detectors.contract import Detector, DetectorConfig, Finding
from detectors.engine.state import unpack
from detectors.fleet.fleet import Fleet

Choice = tuple[type[Detector], DetectorConfig]
"""A detector to run, and how it is configured."""


class Kept(NamedTuple):
    """What a snapshot has of one detector."""

    version: int
    settings: Mapping[str, Any]
    state: bytes


def fingerprint(choices: Sequence[Choice]) -> list[Any]:
    """Return what is written down of the detectors that a snapshot is of: name, version, settings of each."""
    return [[kind.spec.name, kind.spec.version, _settings(config)] for kind, config in choices]


def kept(written: Sequence[Sequence[Any]], states: bytes, sizes: Sequence[int]) -> dict[str, Kept]:
    """Return what a snapshot has by detector; `states` are that many bytes of each, one after the other."""
    begins = accumulate(sizes, initial=0)
    return {
        name: Kept(version, settings, states[at : at + size])
        for (name, version, settings), at, size in zip(written, begins, sizes, strict=False)
    }


def detectors(choices: Sequence[Choice], fleet: Fleet, known: Mapping[str, Kept]) -> Iterator[tuple[Detector, bool]]:
    """Yield each detector, and whether it goes on with what it had open."""
    for kind, config in choices:
        before = known.get(kind.spec.name)
        if before is None:
            yield kind(config, fleet), False
        elif _goes_on(before, kind, config):
            yield kind.restore(config, fleet, before.state), True
        else:
            yield kind(_with_learnt(config, before), fleet), False


def reason(choices: Sequence[Choice], finding: Finding) -> str:
    """Return why a finding that was held over, and was not found again, is resolved."""
    for kind, _ in choices:
        if kind.spec.name == finding.detector:
            return f"version {kind.spec.version} of {finding.detector}, which took over, does not find it"
    return f"{finding.detector} does not run any more"


def _goes_on(before: Kept, kind: type[Detector], config: DetectorConfig) -> bool:
    since = kind.spec.state.since if kind.spec.state is not None else kind.spec.version
    can = since <= before.version <= kind.spec.version
    return can and before.settings.get("calibration") == _settings(config)["calibration"]


def _with_learnt(config: DetectorConfig, before: Kept) -> DetectorConfig:
    if config.calibration:
        return config
    document, _ = unpack(before.state)
    learnt = document.get("tails", {}) if isinstance(document, dict) else {}
    return config.model_copy(update={"calibration": learnt})


def _settings(config: DetectorConfig) -> dict[str, Any]:
    """Return what a configuration says, a calibration as its hash: it is long, and a snapshot has enough to keep."""
    settings = config.model_dump()
    known = settings.pop("calibration")
    return settings | {"calibration": sha256(dumps(known, sort_keys=True).encode()).hexdigest() if known else ""}
