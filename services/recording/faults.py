"""The names of faults, and how narrowly each may be pinned down: the vocabulary of labels."""

from detectors.faults import SHAPES as BY_PLACE
from detectors.faults import faults

NODE, GPU = BY_PLACE["node"], BY_PLACE["gpu"]
SHAPES = tuple(BY_PLACE.values())
FAULTS: dict[str, tuple[frozenset[str], ...]] = {
    fault: tuple(BY_PLACE[place] for place in facts.entities) for fault, facts in faults().items()
}
