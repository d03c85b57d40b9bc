"""The soak's schedules: the same for the same seed, shrunk to the blows that matter; and the network that it cuts."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.blows import CLOCK, LEADERS, LEADING, STEPS, UPGRADES, drawn, shrunk
from benchmarks.soak.clocks import Clocks
from benchmarks.soak.network import CUTS, Network
from benchmarks.soak.releases import Releases
from detectors.engine.upgrade import fingerprint
from detectors.registry import choose
from services.stack.ports import PortBook
from services.stack.spec import ProcessSpec

VICTIMS = ("kafka", "detect", "sink", "notify")
BROKERS = ("kafka", "kafka-2")
PARTS = ("brokers>kafka", "brokers>kafka/1", "brokers>kafka/2")
LINKS = ("detect>kafka", "sink>kafka", "notify>alertmanager")


@given(st.text(max_size=5), st.integers(1, 8))
def test_a_schedule_is_its_seeds_and_strikes_nobody_who_is_down(seed: str, count: int) -> None:
    blows = drawn(seed, VICTIMS, count=count, span_s=60)
    assert blows == drawn(seed, VICTIMS, count=count, span_s=60)
    assert len(blows) == count
    for victim in VICTIMS:
        for one, following in pairwise(blow for blow in blows if blow.victim == victim):
            assert following.at_s > one.at_s + one.lasts_s


@given(st.text(max_size=5), st.integers(1, 8))
def test_of_the_links_one_is_cut_at_a_time(seed: str, count: int) -> None:
    blows = drawn(seed, VICTIMS, links=LINKS, count=count, span_s=120)
    assert blows == drawn(seed, VICTIMS, links=LINKS, count=count, span_s=120)
    assert all((blow.kind in CUTS) == (blow.victim in LINKS) for blow in blows)
    for one, following in pairwise(blow for blow in blows if blow.kind in CUTS):
        assert following.at_s > one.at_s + one.lasts_s


@given(st.text(max_size=5))
def test_brokers_alone_are_restarted_and_their_leaders_alone_elected(seed: str) -> None:
    blows = drawn(seed, (*VICTIMS, *BROKERS[1:]), links=PARTS, brokers=BROKERS, count=100, span_s=3600)
    of = {kind: {blow.victim for blow in blows if blow.kind == kind} for kind in LEADING}
    assert of["elect"] <= {LEADERS}
    assert of["restart"] <= set(BROKERS)
    assert {blow.victim for blow in blows if blow.kind in CUTS} <= set(PARTS)
    assert all(blow.kind in LEADING or blow.victim != LEADERS for blow in blows)
    assert not any(blow.kind in LEADING for blow in drawn(seed, VICTIMS, links=PARTS, count=100, span_s=3600))


@given(st.text(max_size=5))
def test_clocks_are_stepped_and_nothing_else_is(seed: str) -> None:
    blows = drawn(seed, (*VICTIMS, f"detect{CLOCK}"), count=100, span_s=3600)
    assert all((blow.kind in STEPS) == (blow.victim == f"detect{CLOCK}") for blow in blows)


_ASKED = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.time_ns(), time.monotonic(), flush=True)
"""


def test_a_clock_is_stepped_while_its_process_runs_and_back(tmp_path: Path) -> None:
    (tmp_path / "asked.py").write_text(_ASKED)
    clocks = Clocks(tmp_path)
    spec = clocks.given(ProcessSpec("asked", (sys.executable, "-m", "asked")))
    path = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1]), str(tmp_path)))}
    with subprocess.Popen(spec.argv, env=os.environ | path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
        questions, answers = asked.stdin, asked.stdout
        assert questions is not None
        assert answers is not None

        def ahead_s() -> list[float]:
            questions.write(b"now\n")
            questions.flush()
            wall_s, wall_ns, monotonic_s = map(float, answers.readline().split())
            return [wall_s - time.time(), wall_ns / 1e9 - time.time(), monotonic_s - time.monotonic()]

        assert ahead_s() == pytest.approx([0, 0, 0], abs=10)
        with clocks.stepped("asked", -60.0):
            assert ahead_s() == pytest.approx([-60, -60, 0], abs=10)
        assert ahead_s() == pytest.approx([0, 0, 0], abs=10)
        questions.close()


@given(st.text(max_size=5), st.sampled_from((0.0, 0.3)))
def test_upgrades_are_of_one_process_and_no_more_than_asked_for(seed: str, share: float) -> None:
    blows = drawn(seed, VICTIMS, links=LINKS, upgraded="detect", upgrades=share, count=100, span_s=3600)
    upgrades = [blow for blow in blows if blow.kind in UPGRADES]
    assert {blow.victim for blow in upgrades} == ({"detect"} if share else set())
    assert len(upgrades) <= 2 * share * len(blows)


_SHOWN = """
import json, os
from pathlib import Path
from detectors.engine.upgrade import fingerprint
from services.detect.choices import load_choices
choices = load_choices(Path(os.environ["HINDCAST_DETECT_CONFIG"]))
print(json.dumps([*zip(fingerprint(choices), [kind.spec.state.since for kind, _ in choices])]))
"""


def test_each_release_is_newer_and_differs_in_one_setting_only(tmp_path: Path) -> None:
    releases, before = Releases(tmp_path), fingerprint(choose())
    for _ in range(2):
        shown = subprocess.check_output([sys.executable, "-c", _SHOWN], env=os.environ | releases.make())
        for (name, old, settings), ((new_name, new, new_settings), since) in zip(
            before, json.loads(shown), strict=True
        ):
            assert (new_name, new) == (name, old + 1)
            assert since <= old
            assert (new_settings == settings) == (name != "storage")
        before = [about for about, _ in json.loads(shown)]


@given(st.sets(st.integers(0, 7), min_size=1, max_size=3))
def test_what_is_shrunk_still_fails_and_has_nothing_left_to_leave_out(guilty: set[int]) -> None:
    blows = drawn("shrink", VICTIMS, count=8, span_s=60)
    needed = {blows[number] for number in guilty}
    assert set(shrunk(blows, lambda some: needed <= set(some))) == needed


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it is sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(client,), daemon=True).start()

        def answer(client: socket.socket) -> None:
            with client, suppress(ConnectionError):
                while data := client.recv(1024):
                    client.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def _linked(echo: int) -> Iterator[tuple[Network, int]]:
    with PortBook() as ports, Network() as network:
        yield network, network.link("us>echo", echo, ports)


def _asked(port: int) -> socket.socket:
    """Return a connection that has been answered once."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    assert _answer(client, b"before") == b"before"
    return client


def _answer(client: socket.socket, question: bytes, within_s: float = 10) -> bytes:
    """Return what comes back; nothing within the time is nothing."""
    client.settimeout(within_s)
    client.sendall(question)
    try:
        return client.recv(1024)
    except TimeoutError:
        return b""


def test_a_refused_link_resets_and_refuses_and_is_then_there_again(echo: int) -> None:
    with _linked(echo) as (network, port):
        client = _asked(port)
        with closing(client), network.cut("us>echo", "refuse"):
            with pytest.raises(ConnectionError):
                client.recv(1)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=10)
        _asked(port).close()


def test_what_is_dropped_arrives_when_the_link_is_healed(echo: int) -> None:
    with _linked(echo) as (network, port), closing(_asked(port)) as client:
        with network.cut("us>echo", "drop"):
            assert _answer(client, b"late", within_s=0.2) == b""
        client.settimeout(10)
        assert client.recv(1024) == b"late"


def test_a_mute_link_loses_answers_and_ends_the_connections_that_lost_one(echo: int) -> None:
    with _linked(echo) as (network, port), closing(_asked(port)) as client, closing(_asked(port)) as silent:
        with network.cut("us>echo", "mute"):
            assert _answer(client, b"heard", within_s=0.2) == b""
        client.settimeout(10)
        with pytest.raises(ConnectionError):
            client.recv(1)
        assert _answer(silent, b"after") == b"after"


def test_a_link_with_parts_is_cut_in_all_of_them_or_in_one(echo: int) -> None:
    with PortBook() as ports, Network() as network:
        one, other = (network.link(f"us>echo/{number}", echo, ports) for number in (1, 2))
        with closing(_asked(one)) as first, closing(_asked(other)) as second:
            with network.cut("us>echo/1", "drop"):
                assert _answer(first, b"late", within_s=0.2) == b""
                assert _answer(second, b"now") == b"now"
            first.settimeout(10)
            assert first.recv(1024) == b"late"
            with network.cut("us>echo", "drop"):
                assert _answer(first, b"late", within_s=0.2) == _answer(second, b"late", within_s=0.2) == b""


def test_a_half_open_connection_stays_silent_and_new_ones_do_not(echo: int) -> None:
    with _linked(echo) as (network, port), closing(_asked(port)) as client:
        with network.cut("us>echo", "half-open"):
            pass
        assert _answer(client, b"gone", within_s=0.2) == b""
        _asked(port).close()


def test_a_slow_link_brings_everything(echo: int) -> None:
    with _linked(echo) as (network, port), closing(_asked(port)) as client:
        with network.cut("us>echo", "slow"):
            assert _answer(client, b"slow", within_s=0.2) == b""
            client.settimeout(10)
            assert client.recv(1024) == b"slow"
        assert _answer(client, b"after") == b"after"
