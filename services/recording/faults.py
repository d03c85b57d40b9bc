"""The names of faults, and how narrowly each may be pinned down: the vocabulary of labels."""

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from detectors.faults import SHAPES as BY_PLACE
from detectors.faults import faults

NODE, GPU = BY_PLACE["node"], BY_PLACE["gpu"]
SHAPES = tuple(BY_PLACE.values())
FAULTS: dict[str, tuple[frozenset[str], ...]] = {
    fault: tuple(BY_PLACE[place] for place in facts.entities) for fault, facts in faults().items()
}


def _known(name: str) -> str:
    if name not in FAULTS:
        raise ValueError(f"no such fault: {name}; there are {', '.join(FAULTS)}")
    return name


FaultName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(FAULTS)})]
"""A fault where it comes in from outside: only names that some detector has."""
