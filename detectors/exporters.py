"""What the usual exporters give, and how they are made to give more: exporters.yaml."""

from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict


class Exporters(BaseModel):
    """exporters.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    dcgm_default: frozenset[str]
    """Fields that dcgm-exporter reports as it comes."""


@cache
def exporters() -> Exporters:
    """Return exporters.yaml."""
    text = (resources.files("detectors") / "exporters.yaml").read_text(encoding="utf-8")
    return Exporters.model_validate(yaml.safe_load(text))
