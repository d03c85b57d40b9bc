"""Processes that end in order: commands when asked to, their workers with them, however they end."""

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pool_of(count: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Yield an executor of `count` new processes; an error in the block ends them, done or not."""
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    pool.shutdown()


def end_in_order() -> None:
    """Have SIGTERM end this process as Ctrl-C does: what is not whole is deleted, what was started is ended."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)  # as a shell has it


def end_with_parent() -> None:
    """Have this process end with the one whose multiprocessing started it; to be called first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's goes to all: the parent decides
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
