"""Clocks that are stepped: each of hindcast's services reads the wall clock through an offset that the soak sets.

`python -m benchmarks.soak.clocks FILE MODULE` runs a module so: `time.time` and `time.time_ns`, which all of hindcast
and its Kafka client read, are ahead by the seconds that FILE holds (one double). The monotonic clock goes on as ever,
as it does where a machine's clock is set. Nothing else is stepped: neither `datetime.now`, which no service decides by,
nor the servers.
"""

import mmap
import runpy
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from services.stack.spec import ProcessSpec

STEP_S = 60.0
_SECONDS = struct.Struct("=d")


class Clocks:
    """The clocks of services, each a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def given(self, spec: ProcessSpec) -> ProcessSpec:
        """Return a Python service (`python -m MODULE`) with a clock of its own, which is right for now."""
        self._set(spec.name, 0.0)
        python, minus_m, *module = spec.argv
        return replace(spec, argv=(python, minus_m, "benchmarks.soak.clocks", str(self._file(spec.name)), *module))

    @contextmanager
    def stepped(self, name: str, seconds: float) -> Iterator[None]:
        """Have a service's clock step so far ahead, and back at the end of the block."""
        self._set(name, seconds)
        try:
            yield
        finally:
            self._set(name, 0.0)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"

    def _set(self, name: str, seconds: float) -> None:
        file = self._file(name)
        file.touch()
        with file.open("r+b", buffering=0) as opened:  # the same file, in place: it is mapped by who reads it
            opened.write(_SECONDS.pack(seconds))


def _step(file: Path) -> None:
    with file.open("rb") as opened:
        offset = mmap.mmap(opened.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)
    real, real_ns = time.time, time.time_ns

    def ahead_s() -> float:
        return float(_SECONDS.unpack_from(offset)[0])

    time.time = lambda: real() + ahead_s()
    time.time_ns = lambda: real_ns() + int(ahead_s() * 1e9)


if __name__ == "__main__":
    _step(Path(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
