import re
from functools import partial
from pathlib import Path

import pytest
import yaml

from detectors.fixed import FIXED
from detectors.incidents.knowledge import TABLE
from detectors.registry import BUDGET, XIDS, choose, discover
from services.cli.conftest import hindcast
from services.cli.detection.config import commented
from services.detect.choices import load_choices, load_incident_config
from services.kit.errors import UserError

invoke = partial(hindcast, "config")
_SETTING = re.compile(r"^#( *[a-z_0-9]+:.*)$", re.MULTILINE)


def test_as_it_is_written_nothing_differs_from_the_defaults(tmp_path: Path) -> None:
    result = invoke("init", str(tmp_path / "detectors.yaml"))
    assert result.exit_code == 0
    assert yaml.safe_load((tmp_path / "detectors.yaml").read_text()) is None
    assert load_choices(tmp_path / "detectors.yaml") == choose()
    assert invoke("check", str(tmp_path / "detectors.yaml")).output.endswith(f"good; {len(choose())} detectors run\n")
    again = invoke("init", str(tmp_path / "detectors.yaml"))
    assert isinstance(again.exception, UserError)
    assert "exists already" in again.exception.message
    nowhere = invoke("init", str(tmp_path / "no" / "detectors.yaml"))
    assert isinstance(nowhere.exception, UserError)


def test_with_every_comment_sign_taken_off_it_says_the_defaults_and_all_of_them(tmp_path: Path) -> None:
    text = _SETTING.sub(r"\1", commented()).replace("calibration: calibration.json\n", "")
    found = yaml.safe_load(text)
    assert found.keys() == {*discover(), "incidents", BUDGET, XIDS}
    for name, kind in discover().items():
        assert found[name].keys() == {"enabled", "shadow", *kind.spec.defaults}
    (tmp_path / "detectors.yaml").write_text(text)
    assert load_choices(tmp_path / "detectors.yaml") == choose()
    assert load_incident_config(tmp_path / "detectors.yaml") == TABLE.configure({})
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("straggler: {shadow: true}\n", "good; 13 detectors run, straggler in shadow"),
        ("stragler: {shadow: true}\n", "did you mean straggler?"),
        ("incidents: {hold: 3}\n", "incidents.hold: no such setting; did you mean hold_s?"),
        ("straggler: {a: 3}\nincidents: {hold: 3}\n", "incidents.hold: no such setting; did you mean hold_s?"),
        *(
            (f"{name.replace('.', ': {')}: 60}}\n", f"{name}: no setting any more, fixed at {at}: remove it")
            for name, at in FIXED.items()
        ),
    ],
)
def test_a_file_is_checked(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    result = invoke("check", str(tmp_path / "mine.yaml"))
    found = result.output + (result.exception.message if isinstance(result.exception, UserError) else "")
    assert words.replace("13", str(len(discover()))) in found
