"""What a scheduler says of a live cluster: asked for once a minute."""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from services.kit.errors import UserError

_log = logging.getLogger(__name__)
_EVERY_S = 60.0
T = TypeVar("T")


class Polled(Generic[T]):
    """Asks at once, then once a minute; while there is no answer, the last one holds.

    UserError where asking fails the first time. `monotonic`: seconds.
    """

    def __init__(self, ask: Callable[[], T], monotonic: Callable[[], float]) -> None:
        self._ask, self._monotonic = ask, monotonic
        self._answer = ask()
        self._asked_s = monotonic()

    def latest(self) -> T:
        """Return the last answer, asked for anew where that is a minute ago."""
        if self._monotonic() - self._asked_s >= _EVERY_S:
            self._asked_s = self._monotonic()
            try:
                self._answer = self._ask()
            except UserError as error:
                _log.warning("what is known before of jobs and nodes holds: %s", error.message)
        return self._answer
