"""What a scheduler has at the moment, and the log of what it lists that is not as it should be."""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from services.live.maintenance import NodeState
from services.recording.model import Job

_log = logging.getLogger(__name__)
_MOST_NAMED = 1000


class Listing(NamedTuple):
    """The jobs, whether it was asked for jobs at all, and the nodes by name."""

    jobs: Sequence[Job]
    nodes: Mapping[str, NodeState]
    lists_jobs: bool = True


class PassedOver:
    """Names what is passed over, each place once however often it is listed."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def name(self, place: str, why: object) -> None:
        """Say so in the log, the first time."""
        if place not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(place)
            _log.warning("%s is passed over: %s", place, why)
