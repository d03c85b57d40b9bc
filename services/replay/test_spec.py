"""What is decided once: window, shift, target, name."""

from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import UserError
from services.recording.reader import Recording
from services.replay.conftest import END, START
from services.replay.spec import ReplayRequest, check_name, free_name, plan

NOW = 1_800_000_000_000


def planned(recording_dir: Path, **asked: Any) -> Any:
    request = ReplayRequest.model_validate({"recording": recording_dir, **asked})
    return plan(request, Recording.open(recording_dir), (), NOW)


def test_now_lets_the_windows_end_land_now(recording_dir: Path) -> None:
    spec = planned(recording_dir, speed="max", to="+00:05:00")
    assert spec.to_ms == START + 300_000
    assert spec.to_ms + spec.shift_ms == NOW
    assert (spec.name, spec.cluster, spec.target) == ("small", "vela", "prometheus")


def test_start_now_lets_its_start_land_now(recording_dir: Path) -> None:
    spec = planned(recording_dir, shift="start-now", **{"from": "2024-04-01T08:01:00Z"})
    assert spec.from_ms == START + 60_000
    assert spec.from_ms + spec.shift_ms == NOW


def test_keep_moves_nothing_and_lands_in_receive(recording_dir: Path) -> None:
    spec = planned(recording_dir, shift="keep")
    assert (spec.from_ms, spec.to_ms, spec.shift_ms, spec.target) == (START, END, 0, "receive")
    assert planned(recording_dir, shift="keep", target="prometheus").target == "prometheus"


def test_a_window_may_be_counted_from_either_end(recording_dir: Path) -> None:
    spec = planned(recording_dir, **{"from": "+2m", "to": "-30s"})
    assert (spec.from_ms, spec.to_ms) == (START + 120_000, END - 30_000)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"shift": "start-now", "speed": 2}, "start-now at speed 2"),
        ({"shift": "start-now", "speed": "max"}, "start-now at speed max"),
        ({"from": "+00:05:00", "to": "+00:05:00"}, "the window is empty"),
        ({"from": "+00:11:00"}, r"\+00:11:00 is outside the recording"),
        ({"to": "2024-04-01T07:59:00Z"}, "is outside the recording"),
        ({"to": "yesterday"}, "to: 'yesterday' is not"),
        ({"from": "+5"}, "from: '.5' is not an offset"),
        ({"name": "Vela"}, "'Vela' cannot be the name"),
        ({"name": "live"}, "'live' cannot be the name"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(recording_dir: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        planned(recording_dir, **asked)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_a_name_is_given_once() -> None:
    assert free_name("vela", ()) == "vela"
    assert free_name("vela", ("vela", "vela-2")) == "vela-3"
    assert free_name("live", ()) == "live-2"
    assert len(free_name("v" * 80, {"v" * 59})) <= 63
    with pytest.raises(UserError, match="there is a replay named vela already"):
        check_name("vela", ("vela",))


@pytest.mark.parametrize("name", ["-a", "a-", "a/b", "..", "", "a" * 64, "a.b", "a\n"])
def test_names_that_would_not_do_as_labels_or_folders_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name"):
        check_name(name, ())
