"""The runner with small real child processes: Python servers on ports from the OS."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.kit.wait import until
from services.stack import state
from services.stack.health import HttpHealth, http_get
from services.stack.hindcast_services import ServiceContext
from services.stack.process import State
from services.stack.runner import Stack
from services.stack.settings import load_settings
from services.stack.spec import ProcessSpec

# Answers 200 to everything; writes a file of the given name when it is asked to end, unless that is "-".
SERVER = """
import http.server, pathlib, signal, sys
port, note = int(sys.argv[1]), sys.argv[2]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
def end(*_):
    if note != "-":
        with pathlib.Path(note).open("a") as file:
            file.write(sys.argv[3] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("serving", port, flush=True)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
DEAF = "import signal, sys, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); threading.Event().wait()"


def python(code: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *(str(argument) for argument in arguments))


def server(stack: Stack, name: str, *, note: Path | str = "-", after: tuple[str, ...] = ()) -> ProcessSpec:
    port = stack.service_context().ports.take()
    url = f"http://127.0.0.1:{port}"
    return ProcessSpec(
        name, python(SERVER, port, note, name), HttpHealth(url), after=after, ports=(port,), url=url, stop_timeout_s=5
    )


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack.start(tmp_path / "stack", load_settings(), only=()) as stack:
        yield stack


def alive(pid: int | None) -> bool:
    assert pid is not None
    return Path(f"/proc/{pid}").exists()


def test_a_process_is_healthy_when_it_answers_and_gone_when_the_stack_stops(stack: Stack) -> None:
    process = stack.add_process(server(stack, "one"))
    assert process.state is State.HEALTHY
    assert http_get(stack.addresses.services["one"])[0] == 200
    pid = process.pid
    stack.stop()
    assert not alive(pid)
    assert http_get(process.spec.url)[0] == 0


def test_processes_start_after_what_they_need_and_stop_before_it(tmp_path: Path, stack: Stack) -> None:
    note = tmp_path / "ended"
    seen: list[tuple[str, State]] = []
    stack._on_change = lambda name, now: seen.append((name, now))
    stack.add(server(stack, "last", note=note, after=("middle",)))
    stack.add(server(stack, "middle", note=note, after=("first",)))
    stack.add(server(stack, "first", note=note))
    stack.start_all()
    healthy = [name for name, now in seen if now is State.HEALTHY]
    assert healthy == ["first", "middle", "last"]
    for earlier, later in (("first", "middle"), ("middle", "last")):
        assert seen.index((earlier, State.HEALTHY)) < seen.index((later, State.STARTING))
    stack.stop()
    assert note.read_text().split() == ["last", "middle", "first"]


def test_a_long_log_is_begun_anew_and_written_on(tmp_path: Path) -> None:
    settings = load_settings(log_bytes=20_000)
    with Stack.start(tmp_path / "stack", settings, only=()) as stack:
        spec = server(stack, "one")
        loud = replace(spec, argv=python(f"print('x' * 30_000, flush=True)\n{SERVER}", *spec.argv[3:]))
        process = stack.add_process(loud)
        before = process.log.with_name("one.log.1")
        until(lambda: before.exists() and process.log.stat().st_size < 20_000, what="the log to be cut")
        http_get(f"{spec.url}/later")
        until(lambda: b"/later" in process.log.read_bytes(), what="the request in the log")
        assert b"x" * 30_000 in before.read_bytes()
        assert b"\0" not in process.log.read_bytes()


def test_one_that_dies_while_starting_is_reported_with_the_end_of_its_log(stack: Stack) -> None:
    spec = ProcessSpec(
        "broken",
        python("import sys; print('the disk is made of cheese'); sys.exit(7)"),
        HttpHealth("http://127.0.0.1:9"),
    )
    with pytest.raises(UserError) as caught:
        stack.add_process(spec)
    assert caught.value.exit_code == 3
    assert "broken ended with exit code 7" in caught.value.message
    assert "the disk is made of cheese" in caught.value.message
    assert str(stack.logs / "broken.log") in caught.value.message


def test_one_that_does_not_exist_is_reported(stack: Stack) -> None:
    with pytest.raises(UserError, match=r"absent ended with exit code 1[\s\S]*cannot run /no/such/program"):
        stack.add_process(ProcessSpec("absent", ("/no/such/program",), HttpHealth("http://127.0.0.1:9")))


def test_one_that_dies_later_is_reported_once_and_the_others_go_on(stack: Stack) -> None:
    stack.add_process(server(stack, "stays"))
    process = stack.add_process(server(stack, "dies"))
    stack.check()
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: stack.deaths, what="the monitor to notice")
    with pytest.raises(UserError, match=r"dies was killed by SIGKILL[\s\S]*serving") as caught:
        stack.check()
    assert caught.value.exit_code == 3
    assert stack.process("stays").pid is not None
    assert process.state is State.DIED
    written = state.read(stack.state_dir)
    assert written is not None
    assert "SIGKILL" in written.deaths["dies"]
    assert len(stack.deaths) == 1


def test_stopping_or_killing_one_on_purpose_is_no_death(stack: Stack) -> None:
    process = stack.add_process(server(stack, "one"))
    before = process.pid
    process.kill()
    assert not alive(before)
    assert process.pid is None
    process.start()
    process.stop()
    assert process.state is State.STOPPED
    process.start()
    process.restart()
    assert http_get(process.spec.url)[0] == 200
    assert process.pid != before
    assert stack.deaths == []
    stack.check()


def test_the_port_of_a_stopped_process_stays_its_own(stack: Stack) -> None:
    process = stack.add_process(server(stack, "one"))
    process.stop()
    (port,) = process.spec.ports
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    process.start()
    assert http_get(process.spec.url)[0] == 200


def test_a_port_that_was_taken_meanwhile_is_reported(stack: Stack) -> None:
    spec = server(stack, "one")
    stack.service_context().ports.release(spec.ports[0])
    with socket.create_server(("127.0.0.1", spec.ports[0])), pytest.raises(UserError) as caught:
        stack.add_process(spec)
    assert "Address already in use" in caught.value.message
    assert "a port of one was taken" in caught.value.remedy


def test_one_that_ignores_the_request_to_end_is_killed(stack: Stack) -> None:
    process = stack.add_process(ProcessSpec("deaf", python(DEAF), stop_timeout_s=0.2))
    pid = process.pid
    process.stop()
    assert not alive(pid)


def test_what_a_process_has_started_itself_ends_with_it(stack: Stack, tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    process = stack.add_process(
        ProcessSpec("parent", ("sh", "-c", f"sleep 600 & echo $! >{note}.new; mv {note}.new {note}; wait"))
    )
    until(note.exists, what="the grandchild")
    grandchild = int(note.read_text())
    process.stop()
    until(lambda: not alive(grandchild), what="the grandchild to end")


def test_a_task_is_over_before_what_needs_it_starts(stack: Stack, tmp_path: Path) -> None:
    note = tmp_path / "made"
    stack.add(ProcessSpec("make", python(f"open({str(note)!r}, 'w').close()"), once=True))
    stack.add(
        ProcessSpec("use", python(f"import threading; open({str(note)!r}); threading.Event().wait()"), after=("make",))
    )
    stack.start_all()
    assert note.exists()
    assert stack.process("use").pid is not None
    stack.check()


def test_a_task_that_fails_is_reported(stack: Stack) -> None:
    with pytest.raises(UserError, match="make ended with exit code 4"):
        stack.add_process(ProcessSpec("make", python("raise SystemExit(4)"), once=True))


def test_a_preparation_runs_first_and_not_again(stack: Stack, tmp_path: Path) -> None:
    made, count = tmp_path / "formatted", tmp_path / "count"
    spec = ProcessSpec(
        "store",
        python("import threading; threading.Event().wait()"),
        prepare=python(f"open({str(made)!r}, 'w').close(); open({str(count)!r}, 'a').write('x')"),
        prepared_by=made,
    )
    stack.add_process(spec).restart()
    assert count.read_text() == "x"


def test_a_process_started_from_a_thread_outlives_the_thread(stack: Stack) -> None:
    spec = server(stack, "one")
    thread = threading.Thread(target=stack.add_process, args=(spec,))
    thread.start()
    thread.join()
    (port,) = spec.ports
    assert http_get(f"http://127.0.0.1:{port}")[0] == 200
    stack.check()


def test_a_folder_holds_one_stack_at_a_time(stack: Stack) -> None:
    with pytest.raises(UserError, match="a stack is running already") as caught:
        Stack.start(stack.state_dir, only=())
    assert caught.value.exit_code == 2
    stack.stop()
    Stack.start(stack.state_dir, only=()).stop()


def test_an_unknown_server_or_process_is_named_with_those_there_are(stack: Stack, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such server: mimir") as caught:
        Stack.start(tmp_path / "other", only=("mimir",))
    assert "prometheus" in caught.value.remedy
    with pytest.raises(UserError, match="no process 'sink'"):
        stack.process("sink")


def test_services_are_described_from_the_addresses_and_started(tmp_path: Path) -> None:
    def services(context: ServiceContext) -> list[ProcessSpec]:
        port = context.ports.take()
        context.set_webhook(f"http://127.0.0.1:{port}/alerts")
        url = f"http://127.0.0.1:{port}"
        env = {"PORT": str(port), "WHERE": context.addresses.kafka}
        code = SERVER.replace("int(sys.argv[1])", "int(__import__('os').environ['PORT'])")
        return [ProcessSpec("receiver", python(code, "unused", "-"), HttpHealth(url), env=env, ports=(port,), url=url)]

    with Stack.start(tmp_path, load_settings(), only=(), services=services) as stack:
        assert http_get(stack.addresses.services["receiver"])[0] == 200
        assert (tmp_path / "config" / "webhook-url").read_text() == f"{stack.addresses.services['receiver']}/alerts"
        written = state.read(tmp_path)
        assert written is not None
        assert written.processes["receiver"].pid == stack.process("receiver").pid
    assert state.read(tmp_path) is None


def test_a_runner_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    code = """
import pathlib, sys, threading
from services.stack.spec import ProcessSpec
from services.stack.runner import Stack
stack = Stack.start(pathlib.Path(sys.argv[1]), only=())
child = stack.add_process(ProcessSpec("child", ("sleep", "600")))
print(child.pid, flush=True)
threading.Event().wait()
"""
    with subprocess.Popen(python(code, tmp_path), stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        child = int(runner.stdout.readline())
        assert alive(child)
        runner.kill()
    until(lambda: not alive(child), what="the kernel to end the child")
    assert state.read(tmp_path) is None
