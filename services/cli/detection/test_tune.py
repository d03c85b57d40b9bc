"""`hindcast tune` on a small recording of the library."""

import json
from functools import partial
from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.synth.library import LIBRARY

invoke = partial(hindcast, "tune", columns=100)
BRAKE = str(LIBRARY / "small" / "vela-power-brake")


def test_a_setting_is_swept_and_the_best_value_named(tmp_path: Path) -> None:
    out, page = tmp_path / "tune.json", tmp_path / "tune.html"
    asked = ("--setting", "clock_ratio=0.01", "--setting", "power_ratio=0.01", "--workers", "1")
    result = invoke("power_throttle", BRAKE, *asked, "--json", str(out), "--html", str(page))
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())["settings"]
    assert set(figures) == {"clock_ratio", "power_ratio"}
    swept = figures["clock_ratio"]
    assert swept["best"] == swept["default"]
    assert swept["values"][str(swept["default"])]["hits"] == 1
    assert "training seeds" in result.output
    assert "default, best" in result.output
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("power_throttle", BRAKE, "--first-seed", "900000"), "for tests"),
        (("power_throttle", BRAKE, "--setting", "clock_ratio=fast"), "can't be fast"),
        (("power_throttle", BRAKE, "--setting", "crystal=1"), "no setting"),
        (("power_throttle", BRAKE, "--setting", "crystal"), "no setting"),
    ],
)
def test_what_can_not_be_tuned_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, UserError), result.output
    assert message in result.exception.message
