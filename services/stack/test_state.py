import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.stack import state

WAIT = (sys.executable, "-c", "import threading; threading.Event().wait()")


def test_a_later_process_with_the_same_number_is_left_alone() -> None:
    with subprocess.Popen(WAIT) as child:
        now = state.identify(child.pid)
        earlier = state.ProcessId(pid=child.pid, started=now.started - 1)
        assert now.alive()
        assert not earlier.alive()
        earlier.send(signal.SIGKILL)
        assert child.poll() is None
        now.send(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    assert not now.alive()
    now.send(signal.SIGKILL)


def test_one_that_has_ended_and_is_not_waited_for_yet_does_not_run() -> None:
    with subprocess.Popen((sys.executable, "-c", "")) as child:
        me = state.identify(child.pid)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not me.alive()


def test_what_a_killed_runner_left_behind_is_no_running_stack(tmp_path: Path) -> None:
    me = state.identify(os.getpid())
    state.write(tmp_path, state.Running(runner=me, processes={"kafka": me}, addresses={"kafka": "127.0.0.1:1"}))
    found = state.read(tmp_path)
    assert found is not None
    assert found.addresses == {"kafka": "127.0.0.1:1"}
    gone = state.ProcessId(pid=me.pid, started=me.started - 1)
    state.write(tmp_path, state.Running(runner=gone, processes={}, addresses={}))
    assert state.read(tmp_path) is None


def test_a_state_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"runner": 7}', encoding="utf-8")
    with pytest.raises(UserError, match=r"stack\.json") as caught:
        state.read(tmp_path)
    assert caught.value.exit_code == 2
