"""Kernels that wait for file servers: whose word counts for which mount, and for how long."""

from dataclasses import replace
from typing import Any

import pytest

from detectors.contract import Finding, LogRecord
from detectors.fleet.fleet import Fleet
from detectors.registry import choose
from detectors.storage.detector import Storage
from detectors.storage.examples import Site, Slow, tape_of
from detectors.storage.hosts import Hosts
from detectors.tapes.cluster import START, changed, name, seconds
from detectors.tapes.tape import play

NFS = "[910390.933496] nfs: server fs-home01 not responding, still trying"
LUSTRE = (
    "[928639.720716] Lustre: 5609:0:(client.c:2289:ptlrpc_expire_one_request()) @@@ Request sent has timed out for "
    "slow reply: [sent 1717/real 1717] req@ffff8b o13->scratch-OST0005-osc@10.20.0.19@o2ib"
)
LNET = "LNet: 5:0:(o2iblnd_cb.c:3394:kiblnd_check_conns()) Timed out tx for 10.20.0.31@o2ib"
BEEGFS = "[2466507.086492] beegfs: Messenger: Retrying communication with node: beegfs-storage stor03"
ANSWERS = "[910390.933496] nfs: server fs-home01 OK"


def found(lines: list[tuple[float, str, str]], kind: str | None = "nfs", slow: float = 6.0) -> list[Finding]:
    """Return what fires where a mount of a kind comes to be slow after 480 s, and the job on it waits no longer."""
    tape = tape_of(Site(wait_share=0.0, slow=[Slow(0, 480, factor=slow)]))
    topology: dict[str, Any] = {"nodes": tape.topology["nodes"], "mounts": []}
    if kind is not None:
        topology["mounts"] = [{"mount": "/scale", "kind": kind}]
    logs = [LogRecord(START + int(1000 * at), "kernel", text, "warning", node) for at, node, text in lines]
    choices = [choice for choice in choose() if choice[0] is Storage]
    return [one for one in play(replace(tape, topology=topology, logs=logs), choices)[0] if one.state == "firing"]


def two(text: str) -> list[tuple[float, str, str]]:
    return [(560, name(1), text), (575, name(3), text)]


@pytest.mark.parametrize(
    ("kind", "text"), [("nfs", NFS), ("nfs4", NFS), (None, NFS), ("lustre", LUSTRE), ("beegfs", BEEGFS)]
)
def test_hosts_whose_servers_do_not_answer_wait_for_a_mount_that_is_slow(kind: str | None, text: str) -> None:
    (fired,) = found(two(text), kind)
    assert (dict(fired.entity), fired.severity) == ({"mount": "/scale"}, "ticket")
    assert fired.detected_at <= START + 480_000 + 210_000
    assert (fired.evidence["clients_waiting"], fired.evidence["nodes_waiting"]) == (2, f"{name(1)}, {name(3)}")
    assert "the kernels of 2 clients wait for its servers" in fired.summary


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (two(NFS), "lustre"),
        (two(LNET), "lustre"),
        (two(ANSWERS), "nfs"),
        (two(NFS)[:1], "nfs"),
        ([(at, name(1), NFS) for at in (560, 575, 590)], "nfs"),
        ([(at - 480, node, text) for at, node, text in two(NFS)], "nfs"),
        ([(at, f"login{node}", text) for at, node, text in two(NFS)], "nfs"),
    ],
    ids=["another kind", "the network", "it answers", "one host", "one host again and again", "long before", "others"],
)
def test_lines_of_others_and_of_other_times_say_nothing(lines: list[tuple[float, str, str]], kind: str) -> None:
    assert [one.severity for one in found(lines, kind)] == ["info"]


def test_hosts_whose_servers_do_not_answer_say_nothing_of_a_mount_that_is_as_quick_as_ever() -> None:
    assert found(two(NFS), slow=1.0) == []


def test_lines_are_of_the_mount_that_is_known_to_be_slow_and_not_of_the_next_one_of_its_kind() -> None:
    tape = tape_of(Site(wait_share=0.0, minutes=24, slow=[Slow(0, 480, 1200, 6.0), Slow(1, 900, factor=6.0)]))
    kinds = {**tape.topology, "mounts": [{"mount": mount, "kind": "nfs"} for mount in ("/scale", "/nfs")]}
    at = [560, 575, *range(910, 1180, 10)]
    logs = [LogRecord(START + 1000 * second, "kernel", NFS, "warning", name(second % 4)) for second in at]
    # What nobody reads or writes is never slow: some bytes a second are enough.
    tape = changed(tape, "storage", "read_bytes", lambda rows, moved: moved + 1e6 * seconds(rows))
    choices = [choice for choice in choose() if choice[0] is Storage]
    fired = [one for one in play(replace(tape, topology=kinds, logs=logs), choices)[0] if one.state == "firing"]
    assert [(one.severity, one.entity["mount"]) for one in fired] == [("ticket", "/scale"), ("info", "/nfs")]


def test_a_state_of_a_version_that_kept_no_lines_goes_on_without() -> None:
    hosts = Hosts(Fleet({}))
    hosts.take([LogRecord(START, "kernel", NFS, "warning", name(1))])
    document, arrays = hosts.saved()
    assert document == {"heard": {"nfs": {name(1): START}}}
    later = Hosts(Fleet({}))
    later.take_saved({}, arrays)
    assert later.heard == {}
    later.take_saved(document, arrays)
    later.forget(START + 3_600_001, ())
    assert later.heard == {}
