import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.kit.processes import Worker, pool_of
from services.kit.wait import until

_COMMAND = """
import os, signal, threading
from services.kit.processes import pool_of
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    with pool_of(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(input)
        threading.Event().wait()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # as it ends
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_the_command_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "command.py"
    script.write_text(_COMMAND)
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen([sys.executable, script], stdout=pipe, stderr=quiet, env=environment) as command:
        try:
            assert command.stdout is not None
            worker = int(command.stdout.readline())
            assert alive(worker)
            command.send_signal(how)
            until(lambda: not alive(worker), what="the worker to end")
            command.wait(30)
        finally:
            command.kill()


def test_an_error_leaves_no_thread_of_its_pool_behind() -> None:
    with pytest.raises(ValueError, match="invalid literal"), pool_of(2) as pool:
        pool.submit(int, "x").result()
    assert [one for one in threading.enumerate() if type(one).__name__ == "_ExecutorManagerThread"] == []


def blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def report() -> None:
    sys.exit(0 if blocked() else "Ctrl-C would reach it, and be a traceback")


def test_ctrl_c_is_not_for_workers_even_while_they_start() -> None:
    worker = Worker(target=report)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert not blocked()
