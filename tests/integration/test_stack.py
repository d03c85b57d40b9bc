"""The real Kafka, Prometheus, Alertmanager and Thanos on services/stack."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from services.kit.wait import until
from services.stack import build, state
from services.stack.health import http_get
from services.stack.process import State
from services.stack.runner import Stack
from services.stack.settings import load_settings, seconds
from services.stack.topology import SERVERS
from tests import web
from tests.answering import Answer, Request, serving

HINDCAST_STACK = os.environ.get("HINDCAST_STACK", "native")
native = pytest.mark.skipif(HINDCAST_STACK != "native", reason="is about the child processes of the native stack")
DAY_S = 86_400


def _promtool() -> list[str]:
    if HINDCAST_STACK == "containers":
        from tests.integration import containers

        return containers.promtool()
    return [str(build.ensure(load_settings().cache_dir, ("prometheus",))["prometheus"] / "promtool")]


def push(url: str, path: str, text: str, **headers: str) -> None:
    """Send samples in the text format by remote-write, with Prometheus' own client."""
    flags = [flag for name, value in headers.items() for flag in ("--header", f"{name.replace('_', '-')}={value}")]
    done = subprocess.run(
        [*_promtool(), "push", "metrics", f"--remote-write.path={path}", *flags, url],
        input=text, text=True, capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def samples(url: str, query: str, at: float) -> list[tuple[float, str]]:
    """Return the samples that a range selector gives at `at`, of all series."""
    status, body = http_get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query, 'time': at})}")
    assert status == 200, body
    return [(t, v) for series in json.loads(body)["data"]["result"] for t, v in series["values"]]


def test_every_server_is_healthy(stack: Stack) -> None:
    assert {process.name for process in stack.processes} >= set(SERVERS)
    for name in SERVERS:
        process = stack.process(name)
        assert process.state is State.HEALTHY
        health = process.spec.health
        assert health is not None
        # A busy server may be unready for a moment: the sidecar is when Prometheus answers it late.
        until(health.check, what=f"{name} to be ready")
    stack.check()


def _sockets(pid: int) -> Iterator[str]:
    """Yield the inodes of a process's sockets; what it closes meanwhile listens no more."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(link.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]


@native
def test_nothing_listens_outside_loopback(stack: Stack) -> None:
    """By the kernel's table: state 0A is LISTEN, and the inodes are those of the processes' sockets."""
    inodes = {inode for process in stack.processes if process.pid is not None for inode in _sockets(process.pid)}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].rpartition(":")[0])
    assert len(listening) >= 15
    # 127.0.0.1, and the same as IPv6 writes it, in the byte order of the machine.
    assert set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_kafka_keeps_records_over_a_crash_and_makes_no_topic_by_itself(stack: Stack) -> None:
    with KafkaAdminClient(bootstrap_servers=stack.addresses.kafka) as admin:
        admin.create_topics([NewTopic("stack-test", num_partitions=1, replication_factor=1)])
        producer = KafkaProducer(bootstrap_servers=stack.addresses.kafka, acks="all", compression_type="gzip")
        sent = [producer.send("stack-test", value=b"%d" % number).get(timeout=300).offset for number in range(10)]
        producer.close()
        assert sent == list(range(10))
    stack.process("kafka").kill()
    stack.process("kafka").start()
    consumer = KafkaConsumer(
        "stack-test", bootstrap_servers=stack.addresses.kafka, auto_offset_reset="earliest", group_id=None
    )
    got: list[bytes] = []
    try:

        def all_there() -> bool:
            got.extend(record.value for records in consumer.poll(timeout_ms=200).values() for record in records)
            return len(got) >= 10

        until(all_there, what="the ten records")
        assert got == [b"%d" % number for number in range(10)]
        assert "stack-tset" not in consumer.topics()
    finally:
        consumer.close()


def test_samples_survive_a_restart_of_prometheus_and_are_seen_by_query(stack: Stack) -> None:
    now = int(time.time()) - 60
    text = "".join(f'stack_test_watts{{gpu="{gpu}"}} {100 + gpu} {now * 1000}\n' for gpu in range(4))
    push(stack.addresses.prometheus, "/api/v1/write", f"# TYPE stack_test_watts gauge\n{text}")
    stack.process("prometheus").restart()
    want = [(float(now), f"{100 + gpu}") for gpu in range(4)]
    assert sorted(samples(stack.addresses.prometheus, "stack_test_watts[1m]", now + 1)) == want
    until(
        lambda: sorted(samples(stack.addresses.thanos_query, "stack_test_watts[1m]", now + 1)) == want,
        timeout_s=300,  # the sidecar looks every 30 s whether its Prometheus is back
        what="Query to ask the sidecar again",
    )


def test_query_sees_what_lands_before_all_that_was_there(stack: Stack) -> None:
    """A second, longer replay, say. A sidecar would leave it out: it starts where what came in order starts."""
    now = int(time.time())
    window_s = seconds(load_settings().out_of_order_window)
    stores = web.get(f"{stack.addresses.thanos_query}/api/v1/stores").json()["data"]
    starts = [
        store["minTime"] for store in stores["sidecar"] if any("replica" in labels for labels in store["labelSets"])
    ]
    assert len(starts) == 2
    # Known, and not "whatever there is", which it is until the first sample.
    assert all(0 < start < 1000 * (now - window_s) for start in starts)
    for behind_s in (0, window_s - 600):
        text = (
            f'# TYPE stack_test_reach gauge\nstack_test_reach{{behind="{behind_s}"}} 1 {(now - behind_s) * 1000:.0f}\n'
        )
        push(stack.addresses.prometheus, "/api/v1/write", text)
    both = [(now - window_s + 600, "1"), (now, "1")]
    # Query asks a sidecar again some seconds after its Prometheus was away, as it was in the test before.
    until(
        lambda: sorted(samples(stack.addresses.thanos_query, "stack_test_reach[12h]", now + 1)) == both,
        what="Query to see both",
    )


def test_what_both_of_the_pair_hold_is_seen_once(stack: Stack) -> None:
    """And what only one of them holds, whichever it is, is seen too: each lacks a minute that the other has."""
    at = stack.addresses
    times = [int(time.time()) // 5 * 5 - 300 + 5 * tick for tick in range(60)]
    for url, lacks in ((at.prometheus, range(10, 22)), (at.prometheus_1, range(34, 46))):
        lines = [f"stack_test_pair {tick} {second * 1000}\n" for tick, second in enumerate(times) if tick not in lacks]
        push(url, "/api/v1/write", f"# TYPE stack_test_pair gauge\n{''.join(lines)}")
    each = {"query": "count_over_time(stack_test_pair[10m])", "time": str(times[-1] + 1), "dedup": "false"}

    def both_seen() -> bool:
        body = web.get(f"{at.thanos_query}/api/v1/query", params=each).json()
        return [entry["value"][1] for entry in body["data"]["result"]] == ["48", "48"]

    until(both_seen, what="Query to see both, each as a series of its own")
    want = [(float(second), f"{tick}") for tick, second in enumerate(times)]
    assert samples(at.thanos_query, "stack_test_pair[10m]", times[-1] + 1) == want


def test_an_old_recording_is_served_from_the_object_store_alone(stack: Stack) -> None:
    """Four ticks of a year ago in a tenant; with Receive stopped, every one is still there, the last one too."""
    start = (int(time.time()) - 400 * DAY_S) // 60 * 60
    for tick in range(4):
        text = f"# TYPE stack_test_clock gauge\nstack_test_clock {1410 - tick} {(start + 5 * tick) * 1000}\n"
        push(stack.addresses.receive_write, "/api/v1/receive", text, THANOS_TENANT="stack-test")
    stack.flush_receive()
    stack.process("receive").stop()
    try:
        want = [(float(start + 5 * tick), f"{1410 - tick}") for tick in range(4)]
        until(
            lambda: (
                samples(stack.addresses.thanos_query, 'stack_test_clock{tenant_id="stack-test"}[1m]', start + 30)
                == want
            ),
            what="the store to see the uploaded blocks",
        )
    finally:
        stack.process("receive").start()


@pytest.fixture
def webhook() -> Iterator[tuple[str, "Queue[dict[str, Any]]"]]:
    received: Queue[dict[str, Any]] = Queue()

    def take(request: Request) -> Answer:
        received.put(json.loads(request.body))
        return Answer(200)

    with serving(take) as url:
        yield f"{url}/alerts", received


def test_the_alert_of_a_replay_reaches_the_webhook_and_a_live_one_does_not(
    stack: Stack, webhook: tuple[str, "Queue[dict[str, Any]]"]
) -> None:
    url, received = webhook
    stack.set_webhook(url)
    alerts = [
        {"labels": {"alertname": "StackTest", "node": "n7", "replay": replay}, "generatorURL": "http://localhost/"}
        for replay in ("live", "stack-test")
    ]

    def ours() -> Iterator[dict[str, Any]]:
        """Yield what came of these alerts: replays of other tests may end meanwhile."""
        while True:
            body = received.get(timeout=300)
            if body["commonLabels"].get("alertname") == "StackTest":
                yield body

    bodies = ours()
    answer = web.post(f"{stack.addresses.alertmanager}/api/v2/alerts", json=alerts)
    assert answer.status_code == 200
    body = next(bodies)
    assert body["status"] == "firing"
    assert [alert["labels"]["replay"] for alert in body["alerts"]] == ["stack-test"]
    past = "2020-01-01T00:00:00Z"
    web.post(
        f"{stack.addresses.alertmanager}/api/v2/alerts", json=[{**alerts[1], "startsAt": past, "endsAt": past}]
    ).raise_for_status()
    body = next(bodies)
    assert body["status"] == "resolved"
    assert [alert["labels"]["replay"] for alert in body["alerts"]] == ["stack-test"]
    assert not [body for body in received.queue if body["commonLabels"].get("alertname") == "StackTest"]


@native
def test_a_server_that_is_killed_is_named_with_its_log(tmp_path: Path) -> None:
    with Stack.start(tmp_path, load_settings(), only=("alertmanager",)) as stack:
        pid = stack.process("alertmanager").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        (death,) = until(lambda: stack.deaths, what="the monitor to notice")
        assert (death.name, death.reason) == ("alertmanager", "was killed by SIGKILL")
        assert "Listening on" in death.tail


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HINDCAST_STACK_STATE_DIR": str(tmp_path / "stack")}


def hindcast(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "services.cli", "stack", *arguments)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@native
def test_a_port_in_use_is_reported_and_nothing_is_started(tmp_path: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        up = hindcast({**environment, "HINDCAST_STACK_PROMETHEUS_PORT": port}, "up")
    assert up.returncode == 2
    assert f"HINDCAST_STACK_PROMETHEUS_PORT={port}" in up.stderr
    assert "Traceback" not in up.stderr
    assert not list((tmp_path / "stack").glob("logs/*.log"))
    assert state.read(tmp_path / "stack") is None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


@native
def test_ctrl_c_while_starting_leaves_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    # Whoever runs the tests in the background of a shell ignores SIGINT, and so would what they start.
    command = ("env", "--default-signal=INT", sys.executable, "-m", "services.cli", "stack", "up")
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        for line in up.stderr:
            if "kafka" in line:
                break
        up.send_signal(signal.SIGINT)
        up.stderr.read()
    assert up.returncode != 0
    commands = (_read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    assert not [line for line in commands if str(tmp_path).encode() in line]


@native
def test_up_leaves_a_stack_running_and_down_leaves_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    before = hindcast(environment, "status")
    assert before.returncode == 1
    assert "no stack runs" in before.stderr
    assert "Traceback" not in before.stderr
    try:
        up = hindcast(environment, "up")
        assert up.returncode == 0, up.stderr
        addresses = json.loads(hindcast(environment, "addresses", "--json").stdout)
        assert http_get(f"{addresses['prometheus']}/-/ready")[0] == 200
        shown = json.loads(hindcast(environment, "status", "--json").stdout)
        assert {name for name, process in shown["processes"].items() if process["running"]} >= set(SERVERS)
        again = hindcast(environment, "up")
        assert again.returncode == 2
        assert "running already" in again.stderr
        running = state.read(tmp_path / "stack")
        assert running is not None
    finally:
        down = hindcast(environment, "down")
    assert down.returncode == 0, down.stderr
    assert not running.runner.alive()
    assert [name for name, process in running.processes.items() if process.alive()] == []
    assert "no stack runs" in hindcast(environment, "down").stdout
