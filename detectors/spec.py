"""detector.yaml: what a detector says of itself, and its defaults with where each figure comes from."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml
from pydantic import ValidationError

from detectors import yaml_text
from detectors.contract import DetectorConfig, DetectorSpec


def load_spec(package: str) -> DetectorSpec:
    """Return the specification in `package`'s detector.yaml; raise ValueError naming every field that is wrong."""
    text = (resources.files(package) / "detector.yaml").read_text(encoding="utf-8")
    try:
        return DetectorSpec.model_validate(yaml_text.load(text))
    except (ValidationError, yaml.YAMLError) as error:
        raise ValueError(f"{package}/detector.yaml: {error}") from error


def configure(kind: type[DetectorConfig], spec: DetectorSpec, given: Mapping[str, Any]) -> DetectorConfig:
    """Return the configuration: the specification's defaults with `given` on top; raise pydantic's ValidationError."""
    return kind.model_validate({name: default.value for name, default in spec.defaults.items()} | dict(given))
