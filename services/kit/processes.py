"""Processes that end in order: commands when asked to, their workers with them, however they end."""

import concurrent.futures
import multiprocessing
import multiprocessing.context
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Worker(multiprocessing.context.SpawnProcess):
    """A process that a terminal's Ctrl-C does not reach, from its first moment on: who started it decides."""

    def start(self) -> None:
        """Start it."""
        multiprocessing.resource_tracker.ensure_running()  # as it starts it lets SIGINT through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Workers(multiprocessing.context.SpawnContext):
    Process = Worker


@contextmanager
def pool_of(count: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Yield an executor of `count` new processes; an error in the block ends them, done or not."""
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(count, mp_context=_Workers(), initializer=end_with_parent)
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)  # its thread must not close what the interpreter's end writes to
        raise
    pool.shutdown()


def end_in_order() -> None:
    """Have SIGTERM end this process as Ctrl-C does: what is not whole is deleted, what was started is ended."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)  # as a shell has it


def end_with_parent() -> None:
    """Have this process end with the one whose multiprocessing started it; to be called first."""
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
