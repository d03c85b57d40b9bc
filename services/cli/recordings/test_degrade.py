from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from services.recording.without import WORDS
from services.synth.library import LIBRARY

BRAKE = LIBRARY / "small" / "vela-power-brake"


def test_a_recording_without_is_written_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "poor"
    result = hindcast(
        "degrade", BRAKE, "--without", "default-fields,rank-steps", "--without", "logs", "--out", str(out)
    )
    assert result.exit_code == 0, result.output
    assert "written, without default-fields, rank-steps, logs" in result.output
    assert validate_recording(out) == []
    assert Recording.open(out).manifest.name == "poor"
    again = hindcast("degrade", BRAKE, "--without", "bmc", "--out", str(out))
    assert isinstance(again.exception, UserError)
    assert "exists already" in again.exception.message


def test_every_word_is_in_the_help() -> None:
    shown = hindcast("degrade", "--help").output
    assert [word for word in WORDS if f" {word} " not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--without", "gpus", "--out", "x"), "'gpus' cannot be taken away"),
        (("--without", "bmc", "--out", "Bad_Name"), "is no name for a recording"),
    ],
)
def test_what_is_wrong_is_a_matter_of_usage(arguments: tuple[str, ...], message: str) -> None:
    result = hindcast("degrade", BRAKE, *arguments)
    assert isinstance(result.exception, UserError)
    assert message in result.exception.message
    assert result.exception.exit_code == 2
