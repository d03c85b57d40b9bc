"""Worker processes for work that takes a core each, which end with the command that started them, however it ends."""

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pool_of(count: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Yield an executor of `count` new processes; an error in the block ends them, done or not."""
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    pool.shutdown()


def _end_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's goes to all: the parent decides
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
