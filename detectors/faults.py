"""The faults there are: each detector's folder says in faults.yaml what the rest of hindcast has to know of its own."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

import detectors
from detectors import yaml_text
from detectors.contract import Fault

Place = Literal["node", "gpu", "nic", "switch", "port", "mount", "job_id"]
SHAPES: Mapping[Place, frozenset[str]] = {
    "node": frozenset({"node"}),
    "gpu": frozenset({"node", "gpu"}),
    "nic": frozenset({"node", "nic"}),
    "port": frozenset({"switch", "port"}),
    "switch": frozenset({"switch"}),
    "mount": frozenset({"mount"}),
    "job_id": frozenset({"job_id"}),
}
"""The keys by which a label or a finding names each kind of place."""


class FaultFacts(BaseModel):
    """What is known of a fault outside its detector."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    entities: tuple[Place, ...] = Field(min_length=1)
    """What a label or a finding of it may name, the usual one first."""
    component: str
    """The part of a cluster that it is counted under."""
    team: Literal["hardware", "network", "storage", "research", "platform"]
    """Who is notified of it, as alert-rules/alertmanager.yaml routes it."""
    words: tuple[str, ...] = Field(min_length=1)
    """What people write of it in a ticket, in lower case."""
    prior: float = Field(default=1.0, gt=0, le=1)
    """How likely it is the root of an incident, where several could be: symptoms of a job are seldom the beginning."""
    signals: tuple[str, ...] = Field(min_length=1)
    """The columns that show it, as ``kind.COLUMN``, in the order in which a reader wants to see them."""


_FILE = TypeAdapter(dict[str, FaultFacts])


@cache
def faults() -> Mapping[Fault, FaultFacts]:
    """Return the facts of every fault, by name. Raises ValueError that names the file where they are wrong."""
    found: dict[Fault, FaultFacts] = {}
    for folder in sorted(resources.files(detectors).iterdir(), key=lambda one: one.name):
        file = folder / "faults.yaml"
        if not folder.is_dir() or not file.is_file():
            continue
        where = f"detectors/{folder.name}/faults.yaml"
        try:
            own: Any = _FILE.validate_python(yaml_text.load(file.read_text(encoding="utf-8")))
        except (ValidationError, yaml.YAMLError) as error:
            raise ValueError(f"{where}: {error}") from error
        twice = own.keys() & found.keys()
        if twice:
            raise ValueError(f"{where}: {', '.join(sorted(twice))} is another detector's")
        found |= own
    return MappingProxyType(found)
