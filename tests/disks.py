"""A disk that can be full: a small tmpfs, which only root can mount."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Disk:
    """A mounted folder, and a file that takes all of its room."""

    folder: Path

    def fill(self) -> None:
        """Take all room there is; again, where some came free."""
        with (self.folder / ".ballast").open("ab", buffering=0) as ballast:
            for size in (65536, 4096, 512, 1):
                while True:
                    try:
                        ballast.write(bytes(size))
                    except OSError:
                        break

    def free(self) -> None:
        """Give it all back."""
        (self.folder / ".ballast").unlink()


@contextmanager
def small_disk(folder: Path, size: str = "1m") -> Iterator[Disk]:
    """Mount a disk of `size` at the new folder; skip the test where that cannot be done."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount the small disk that is to be full")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
