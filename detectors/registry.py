"""Finds the detectors: every package in this folder that has a detector.yaml."""

import importlib
import inspect
import math
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

import detectors
from detectors.contract import Detector, DetectorConfig, DetectorSpec
from detectors.engine.engine import Choice
from detectors.faults import faults
from detectors.fixed import FIXED
from detectors.nearest import meant
from detectors.signals.xid import XidOverrides
from detectors.spec import configure

_METHODS = ("logs", "observe", "advance", "snapshot", "restore")


class RegistryError(ValueError):
    """Detectors or their configuration are wrong; `problems` lists everything that is."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@cache
def discover() -> dict[str, type[Detector]]:
    """Return every detector by name. Raises RegistryError listing every folder that is not what it should be."""
    found: dict[str, type[Detector]] = {}
    problems: list[str] = []
    for folder in sorted(resources.files(detectors).iterdir(), key=lambda one: one.name):
        package = f"detectors.{folder.name}"
        if not (folder / "detector.yaml").is_file():
            continue
        if not (folder / "__init__.py").is_file():
            problems.append(f"{package}: it has a detector.yaml and no __init__.py: make an empty one")
            continue
        try:
            kind = _detector_in(package)
        except (ImportError, ValueError) as error:
            problems.append(f"{package}: {error}")
            continue
        wrong = _disagreements(folder.name, kind)
        problems += [f"{package}: {problem}" for problem in wrong]
        found[folder.name] = kind
    if problems:
        raise RegistryError(problems)
    return found


def _detector_in(package: str) -> type[Detector]:
    module = importlib.import_module(f"{package}.detector")
    own = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    kinds = [kind for kind in own if hasattr(kind, "spec") and hasattr(kind, "config_type")]
    if len(kinds) != 1:
        raise ValueError(f"detector.py has {len(kinds)} classes with a spec and a config_type, one is expected")
    return cast("type[Detector]", kinds[0])


def _disagreements(folder: str, kind: type[Detector]) -> list[str]:
    """Return where detector.yaml and the class do not agree."""
    spec, known = kind.spec, set(kind.config_type.model_fields) - set(DetectorConfig.model_fields)
    problems = [f"{kind.__name__} has no method {name}" for name in _METHODS if not hasattr(kind, name)]
    if spec.name != folder:
        problems.append(f"detector.yaml names it {spec.name}, its folder {folder}")
    problems += [f"detector.yaml has a default for {name}, which nothing reads" for name in set(spec.defaults) - known]
    problems += [f"detector.yaml has no default for {name}" for name in sorted(known - set(spec.defaults))]
    problems += [f"fields of {name} are named, which it does not read" for name in set(spec.fields) - set(spec.reads)]
    problems += [
        f"{name} of {stream} is urgent, which is not among its fields"
        for stream, named in spec.urgent.items()
        for name in named
        if name not in spec.fields.get(stream, ())
    ]
    unknown = set(spec.faults) - faults().keys()
    problems += [f"faults.yaml says nothing of {fault}" for fault in sorted(unknown)]
    problems += [f"a ladder is of {fault}, which it does not find" for fault in set(spec.ladders) - set(spec.faults)]
    problems += [
        f"the ladder of {fault} needs {need}, which it does not read"
        for fault, rungs in spec.ladders.items()
        for rung in rungs
        for needs in rung.needs
        for need in needs.split("|")
        if not _reads(spec, need)
    ]
    if not problems:
        try:
            configure(kind.config_type, spec, {})
        except ValidationError as error:
            problems += [f"default of {text}" for text in texts_of(error)]
    return problems


def _reads(spec: DetectorSpec, need: str) -> bool:
    """Return whether what a ladder needs is something that the detector reads."""
    stream, _, name = need.partition(".")
    if stream in {"jobs", "topology"}:
        return True
    if stream == "steps" and name == "ranks":
        return "steps" in spec.reads
    return stream in spec.reads and (stream == "logs" or not name or name in spec.fields.get(stream, ()))


def needs() -> frozenset[str]:
    """Return everything that some rung of some ladder needs."""
    rungs = (rung for kind in discover().values() for rungs in kind.spec.ladders.values() for rung in rungs)
    return frozenset(need for rung in rungs for needs in rung.needs for need in needs.split("|"))


BUDGET = "false_alarms_per_100_node_days"
"""What all detectors together may raise."""
BUDGET_DEFAULT = 0.5
XIDS = "xid_overrides"
"""What a site says of XIDs, to all detectors."""


def allowances(budget: float) -> dict[str, float]:
    """Return what each detector that infers may use of a budget, by name.

    The shares of the detectors that come with hindcast add up to 1. One that is added takes its share of all of
    theirs in proportion, so that no other's detector.yaml has to change and the budget is kept.
    """
    shares = {name: kind.spec.budget_share for name, kind in discover().items() if kind.spec.budget_share}
    whole = max(1.0, round(math.fsum(shares.values()), 9))
    return {name: budget * share / whole for name, share in shares.items()}


def choose(overrides: Mapping[str, Any] | None = None, calibration: Mapping[str, Any] | None = None) -> list[Choice]:
    """Return the detectors to run with their configuration: all of them, by name.

    `overrides` has, by detector, a mapping of what differs from the defaults; ``enabled: false`` leaves one out,
    ``shadow: true`` has it run without alerting anybody. `BUDGET` among them is the false alarms that all together may
    raise, `XIDS` what the site says of XIDs. `calibration` has what is usual at the site, by detector.
    Raises RegistryError that lists everything wrong with it.
    """
    known = discover()
    overrides = dict(overrides or {})
    budget = overrides.pop(BUDGET, BUDGET_DEFAULT)
    allowed = isinstance(budget, int | float) and not isinstance(budget, bool) and 0 < budget < math.inf
    problems = [] if allowed else [f"{BUDGET}: {budget!r} is no number above 0"]
    try:
        xids = TypeAdapter(XidOverrides).validate_python(overrides.pop(XIDS, {}))
    except ValidationError as error:
        problems += [f"{XIDS}: {text}" for text in texts_of(error)]
        xids = {}
    there = f"; there are {', '.join(sorted(known))}"
    problems += [f"{name}: no such detector{meant(name, known) or there}" for name in overrides if name not in known]
    allowed_each = allowances(budget) if allowed else {}
    choices: list[Choice] = []
    for name, kind in sorted(known.items()):
        given = overrides.get(name) or {}
        if not isinstance(given, Mapping):
            problems.append(f"{name}: {given!r} is not a mapping of settings")
            continue
        settings = {XIDS: xids, **given}
        if name in allowed_each:
            settings.setdefault(BUDGET, allowed_each[name])
        if calibration and name in calibration:
            settings.setdefault("calibration", calibration[name])
        enabled = settings.pop("enabled", True)
        if not isinstance(enabled, bool):
            problems.append(f"{name}.enabled: {enabled!r} is neither true nor false")
        try:
            config: DetectorConfig = configure(kind.config_type, kind.spec, settings)
        except ValidationError as error:
            problems += texts_of(error, {"enabled", *kind.config_type.model_fields}, f"{name}.")
            continue
        if enabled is True:
            choices.append((kind, config))
    if problems:
        raise RegistryError(problems)
    return choices


def texts_of(error: ValidationError, known: Collection[str] = (), below: str = "") -> list[str]:
    """Return what is wrong with settings, each with its place; `known` are those that there are `below` a name."""
    found = []
    for item in error.errors(include_url=False):
        place = ".".join(str(part) for part in item["loc"])
        unknown = item["type"] == "extra_forbidden" and known
        found.append(f"{below}{place}: {_unknown(below, place, known) if unknown else item['msg']}")
    return found


def _unknown(below: str, place: str, known: Collection[str]) -> str:
    fixed = FIXED.get(f"{below}{place}")
    return f"no setting any more, fixed at {fixed}: remove it" if fixed else f"no such setting{meant(place, known)}"
