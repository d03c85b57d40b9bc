"""What Slurm 22.05, 24.11 and 26.05 print of the same nodes; the files are what they printed, cut to fewer fields.

v002 was drained, v003 is in a reservation for maintenance v004 in a user's; v001 and v002 will be in one
later, an administrator set v005 down, and v006 never answered.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from detectors.fleet.scheduling import words_of
from services.kit.errors import UserError
from services.live.listing import Listing
from services.live.maintenance import Maintenance, NodeState
from services.live.slurm import Slurm, command_source

PRINTED = Path(__file__).with_name("printed")
DAY_MS = 86_400_000


def reserved_at(version: str) -> int:
    document = json.loads((PRINTED / f"reservations-{version}.json").read_text())
    return int(document["reservations"][0]["start_time"]["number"]) * 1000


def asked(now: int, *files: Path | str) -> Listing:
    return Slurm([command_source(f"cat {PRINTED / file}") for file in files], lambda: now).ask()


def closed(listing: Listing) -> dict[str, tuple[str, int | None]]:
    return {node: (state.closed, state.since) for node, state in listing.nodes.items() if state.closed}


@pytest.mark.parametrize(
    ("file", "drained_at"),
    [
        ("sinfo-22.05.json", 1_795_457_472_000),
        ("nodes-24.11.json", 1_795_456_916_000),
        ("sinfo-24.11.json", 1_795_456_916_000),
        ("nodes-26.05.json", 1_795_457_267_000),
        ("sinfo-26.05.json", 1_795_457_267_000),
    ],
)
def test_a_drain_and_a_reservation_for_maintenance_close_a_node_in_every_version(file: str, drained_at: int) -> None:
    listing = asked(drained_at, file)
    assert closed(listing) == {
        "v002": ("DRAIN in Slurm: fan swap HD-1", drained_at),
        "v003": ("MAINTENANCE in Slurm", None),
    }
    assert listing.nodes.keys() == {f"v00{number}" for number in range(1, 7)}
    assert not any(state.is_down for state in listing.nodes.values())
    assert not listing.lists_jobs  # of jobs it says nothing: those that labels name count


@pytest.mark.parametrize("version", ["24.11", "26.05"])
def test_a_reservation_says_since_when_and_until_when(version: str) -> None:
    files = f"nodes-{version}.json", f"reservations-{version}.json"
    start = reserved_at(version)
    assert closed(asked(start, *files))["v003"] == ("reservation maint1 in Slurm", start)
    alone = files[1:]
    assert closed(asked(start - 1, *alone)) == {}
    assert closed(asked(start, *alone)).keys() == {"v003"}
    assert closed(asked(start + 3_600_000, *alone)) == {}
    later = closed(asked(start + 2 * 3_600_000, *files))
    assert {node: words for node, (words, _) in later.items()} == {
        "v001": "reservation later in Slurm",
        "v002": "DRAIN in Slurm: fan swap HD-1",  # and that since before
        "v003": "MAINTENANCE in Slurm",
    }


def test_a_reservation_that_is_listed_no_more_is_over(tmp_path: Path) -> None:
    start = reserved_at("26.05")
    file = tmp_path / "reservations.json"
    file.write_text((PRINTED / "reservations-26.05.json").read_text())
    slurm = Slurm([command_source(f"cat {file}")], lambda: start)
    maintenance = Maintenance(lambda: slurm.ask().nodes)
    assert states(maintenance, start - 60_000, start + 30_000) == [("v003", start, "out")]
    file.write_text('{"reservations": []}')
    assert states(maintenance, start, start + 90_000) == [("v003", start + 90_000, "back")]


def states(maintenance: Maintenance, after: int, now: int) -> list[tuple[str, int, str]]:
    return [(node, line.at, words) for line in maintenance.lines(after, now) for node, words in words_of(line)]


def node(name: str, state: Any, reason: str = "", since: Any = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "reason": reason, "reason_changed_at": since, **more}


def listed(tmp_path: Path, **lists: Any) -> Listing:
    file = tmp_path / "printed.json"
    file.write_text(json.dumps(lists))
    return asked(0, file)


def test_states_that_close_a_node_and_those_that_do_not(tmp_path: Path) -> None:
    out = {
        "a": ["IDLE", "REBOOT_REQUESTED"], "b": ["ALLOCATED", "REBOOT_ISSUED"], "c": ["IDLE", "POWERED_DOWN", "CLOUD"],
        "d": "idle+drain", "e": "drained*", "f": ["IDLE", "POWERING_DOWN"], "g": "maint", "h": ["DOWN", "DRAIN"],
        "i": "draining@",
    }  # fmt: skip
    there = {
        "n": ["IDLE", "PLANNED"], "o": ["MIXED", "RESERVED"], "p": ["ALLOCATED", "COMPLETING"], "q": ["UNKNOWN"],
        "r": ["IDLE", "POWERING_UP"], "s": ["IDLE", "REBOOT_CANCELED"], "t": "idle~", "u": ["DOWN"], "v": None,
    }  # fmt: skip
    listing = listed(tmp_path, nodes=[node(name, state) for name, state in (out | there).items()])
    assert closed(listing).keys() == out.keys()
    assert listing.nodes.keys() == (out | there).keys()


def test_a_node_that_slurm_has_lost_is_down_and_not_closed(tmp_path: Path) -> None:
    at = {"set": True, "infinite": False, "number": 1_700_000_000}
    lost = [
        node("v1", ["DOWN", "NOT_RESPONDING"], "Not responding", at),
        node("v2", "down", "Node unexpectedly rebooted", 1_700_000_000),
        node("v3", ["DOWN", "NOT_RESPONDING"], "PSU", at),  # an administrator's words
        node("v4", ["DOWN", "DRAIN", "NOT_RESPONDING"], "Not responding", at),
    ]
    nodes = dict(listed(tmp_path, nodes=lost).nodes)
    assert [name for name, state in nodes.items() if state.is_down] == ["v1", "v2"]
    since = 1_700_000_000_000
    # It went down while event time was behind; one that was down long before is no news, nor is it a second time.
    assert states(Maintenance(lambda: nodes), since + DAY_MS, since + DAY_MS + 60_000) == [
        ("v4", since + DAY_MS + 1, "out")
    ]
    maintenance = Maintenance(lambda: nodes)
    assert states(maintenance, since - 1000, since + 60_000) == [
        ("v1", since, "down"),
        ("v2", since, "down"),
        ("v4", since, "out"),
    ]
    assert states(maintenance, since + 50_000, since + 120_000) == []
    nodes["v1"], nodes["v2"] = NodeState(), NodeState("DRAIN in Slurm", since + 110_000)
    assert states(maintenance, since + 100_000, since + 180_000) == [
        ("v1", since + 180_000, "back"),
        ("v2", since + 110_000, "out"),
    ]
    assert maintenance.down == {}


@pytest.mark.parametrize("reason", ["on failed node v9", "Node v9 not responding", "NODE_FAIL nodes v9"])
def test_the_words_of_a_reason_are_not_taken_for_a_line_of_slurm(reason: str) -> None:
    state = NodeState(f"DRAIN in Slurm: {reason}", 5000)
    assert states(Maintenance(lambda: {"v1": state}), 0, 6000) == [("v1", 5000, "out")]


def test_wrong_objects_are_named_and_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    maint = {"name": "m1", "flags": ["MAINT"], "node_list": "v[1-2", "start_time": 5, "end_time": 9}
    with caplog.at_level(logging.WARNING):
        listing = listed(
            tmp_path,
            nodes=[
                "v1",
                {},
                node("v2", 3),
                node("v3", ["DRAIN"], since="yesterday"),
                node("v4", ["DRAIN"], since={"set": True, "infinite": False, "number": 1 << 62}),
                node("v5", ["DRAIN"]),
            ],
            reservations=[maint, maint | {"name": "m2", "node_list": "v2", "end_time": None}],
            sinfo=[{"node": {"state": ["DRAIN"]}, "nodes": {"nodes": "v7"}}],
        )
    assert closed(listing) == {"v5": ("DRAIN in Slurm", None)}
    source = f"--slurm 'cat {tmp_path / 'printed.json'}'"
    assert [record.getMessage().removeprefix(source) for record in caplog.records] == [
        ": nodes: 1 is passed over: no object",
        ": nodes: 2 is passed over: a node without a name",
        ": nodes: v2 is passed over: state is no text and no list of texts",
        ': nodes: v3 is passed over: "yesterday" is no time',
        f": nodes: v4 is passed over: {1 << 62} is no time",
        ": sinfo: 1 is passed over: nodes is no list of names",
        ": reservations: m1 is passed over: brackets that do not match in 'v[1-2'",
        ": reservations: m2 is passed over: a reservation without start_time and end_time",
    ]


@pytest.mark.parametrize("printed", ['{"meta": {}}', '{"nodes": 3}', '{"nodes": [', "{" * 5000])
def test_what_lists_nothing_is_refused(tmp_path: Path, printed: str) -> None:
    file = tmp_path / "printed.json"
    file.write_text(printed)
    with pytest.raises(UserError, match="--slurm 'cat ") as refused:
        asked(0, file)
    assert (refused.value.exit_code, "scontrol show nodes --json" in refused.value.remedy) == (2, True)
