"""Files that survive a crash at any moment, and services that survive a disk that is full."""

import errno
import logging
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import Gauge

from services.kit.errors import UsageError

_log = logging.getLogger(__name__)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

FREE = Gauge("hindcast_state_free_ratio", "Free part of the disk that a service keeps its state on.", ["folder"])
UNKEPT = Gauge("hindcast_state_unkept", "1 while a service cannot write its state: it works on, from memory.")
DAMAGED = Gauge("hindcast_state_damaged_files", "Files of state that were damaged and set aside since it started.")


def replace_file(path: Path, parts: Sequence[bytes]) -> None:
    """Replace a file's content by `parts`, one after the other: afterwards the old content is there or the new."""
    draft = path.with_suffix(".draft")
    try:
        with draft.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)  # on a full disk it would keep others from being written
        raise
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(directory: Path) -> None:
    """Make sure that files of a folder that came or went have done so for good."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def state_folder(directory: Path, setting: str) -> Path:
    """Return a folder that can be written to, made if need be; UserError (exit code 2) naming `setting` if it can't.

    That its disk is full is no reason not to start.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.errno in NO_ROOM and directory.is_dir():
            return directory
        raise UsageError(
            f"{directory}: state cannot be kept there: {error.strerror}",
            remedy=f"set {setting} to a directory that can be written to",
        ) from None
    return directory


def set_aside(path: Path, why: str) -> None:
    """Rename a damaged file of state, so that what it held is all that is lost, and say so."""
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    DAMAGED.inc()
    _log.error("damaged state set aside path=%s now=%s reason=%s", path, aside, why)


class Keeper:
    """Tries to write state into a folder, and logs when that fails and when it works again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failing = False
        watch_room(directory)

    def kept(self, write: Callable[[], None]) -> bool:
        """Return whether `write` did its work; an OSError is logged once, until it works again."""
        try:
            write()
        except OSError as error:
            if not self._failing:
                _log.error(
                    "state cannot be kept, going on without folder=%s error=%s; a crash now repeats work; "
                    "remedy: make room there",
                    self._directory,
                    error.strerror,
                )
            self._failing = True
        else:
            if self._failing:
                _log.info("state is kept again folder=%s", self._directory)
            self._failing = False
        UNKEPT.set(self._failing)
        return not self._failing


def watch_room(directory: Path) -> None:
    """Have /metrics show how much of a folder's disk is free, as its user may fill it."""
    FREE.labels(directory).set_function(lambda: _free_ratio(directory))


def _free_ratio(directory: Path) -> float:
    try:
        usage = shutil.disk_usage(directory)
    except OSError:  # it is gone, or its disk is: /metrics shows more
        return math.nan
    return usage.free / usage.total
