"""Waiting on a condition, never on a guess of how long something takes."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from services.kit.errors import ServerError

T = TypeVar("T")
PATIENCE_S = 300.0
"""For what is to come at once, and may take long on a machine that is busy with much else."""


def until(
    predicate: Callable[[], T | None], *, timeout_s: float = PATIENCE_S, what: str, interval_s: float = 0.05
) -> T:
    """Poll `predicate` until it returns something true, and return that.

    Raises UserError naming `what` (exit code 3) when `timeout_s` pass first.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise ServerError(f"gave up after {timeout_s:g} s waiting for {what}")
        pause.wait(interval_s)
