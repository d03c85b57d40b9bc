"""Run a command so that the kernel kills it when the process that started it dies: `launch.py PARENT_PID COMMAND...`.

Run as a file by `python -I -S`, so it imports nothing but the standard library. The runner may end by kill -9, when
nobody is left to stop its children.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Ask for SIGKILL at the parent's death and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was in place
        sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - to become the command, with no shell between, is the purpose
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
