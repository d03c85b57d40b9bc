"""`hindcast calibrate`, and the file it writes where it is taken."""

import json
from pathlib import Path
from typing import Any

import pytest

from detectors.registry import BUDGET, discover
from services.cli.conftest import hindcast
from services.detect.calibration import FORMAT, load_calibration
from services.detect.choices import load_choices
from services.kit.errors import UserError
from services.synth.library import LIBRARY

SMALL = LIBRARY / "small"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("calibration") / "calibration.json"
    result = hindcast("calibrate", str(SMALL / "vela-healthy"), "--out", str(out), "--workers", "1")
    assert result.exit_code == 0, result.output
    return out, result.output


def test_it_says_what_it_learnt_and_which_rate_it_measured(made: tuple[Path, str]) -> None:
    out, printed = made
    document = json.loads(out.read_text())
    assert document["format"] == FORMAT
    assert [one["used"] for one in document["sources"]] == ["fitted", "measured"]
    assert document["measured"]["false_alarms"] == 0
    assert document["measured"]["budget"] == 0.5
    assert document["fitted_node_days"] == pytest.approx(document["measured"]["node_days"], rel=0.05)
    assert "0 false alarm(s), 0 in 100 node-days (at most" in printed
    assert "the budget is 0.5. To be sure of so few it would take 600 node-days" in printed


def test_a_configuration_names_it_beside_itself(made: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "here.json").write_bytes(made[0].read_bytes())
    config = tmp_path / "detectors.yaml"
    config.write_text(f"calibration: here.json\n{BUDGET}: 2\n")
    known = load_calibration(made[0])
    for choices in (load_choices(config), load_choices(None, made[0])):
        assert {kind.spec.name: dict(settings.calibration) for kind, settings in choices if settings.calibration} == {
            name: tails for name, tails in known.items() if tails
        }
    result = hindcast("run", str(SMALL / "vela-healthy"), "--calibration", str(made[0]))
    assert result.exit_code == 0, result.output


def document(**changed: Any) -> dict[str, Any]:
    tails = {"clock": {"bins": [0, 7], "counts": [10.0, 1.0]}}
    known = {"straggler": {"version": discover()["straggler"].spec.version, "tails": tails}}
    whole = {
        "format": FORMAT, "cluster": "c", "fitted_node_days": 1, "sources": [], "measured": None, "detectors": known,
    }  # fmt: skip
    return whole | changed


def test_what_it_says_is_what_detectors_are_given(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document()))
    given = {kind.spec.name: settings.calibration for kind, settings in load_choices(None, path)}
    assert given["straggler"] == {"clock": {"bins": [0, 7], "counts": [10.0, 1.0]}}
    assert given["storage"] == {}


_OLD = {"straggler": {"version": 0, "tails": {}}, "phrenology": {"version": 1, "tails": {}}}
_ODD = {"straggler": {"version": 1, "tails": {"clock": {"bins": [0, 900], "counts": [-1.0]}}}}


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ("not json", ["Invalid JSON"]),
        (json.dumps(document(format="other/v2")), ["format"]),
        (json.dumps(document(detectors=_OLD)), ["version 0", "phrenology: there is no such", "2 thing(s) wrong"]),
        (json.dumps(document(detectors=_ODD)), ["bins.1", "counts.0"]),
    ],
)
def test_a_file_that_is_no_good_is_reported_whole(tmp_path: Path, content: str, messages: list[str]) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        load_choices(None, path)
    assert [word for word in messages if word not in caught.value.message] == []
    assert caught.value.exit_code == 2


def test_a_configuration_that_names_no_file_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    for text, word in (("calibration: 7\n", "not the name of a file"), ("calibration: none.json\n", "none.json")):
        config.write_text(text)
        with pytest.raises(UserError, match=word):
            load_choices(config)


def test_what_cannot_be_calibrated_is_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "c.json")
    healthy, other = str(SMALL / "vela-healthy"), str(SMALL / "sakuraone-job-hang")
    for arguments, word in (
        (("--out", out), "name recordings or a server"),
        ((healthy, other, "--out", out), "2 clusters: sakuraone, vela"),
        ((healthy, "--out", str(tmp_path)), "no file can be written there"),
    ):
        error = hindcast("calibrate", *arguments).exception
        assert isinstance(error, UserError)
        assert word in error.message
        assert error.exit_code == 2
