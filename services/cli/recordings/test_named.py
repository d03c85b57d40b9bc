import re
import shutil
from pathlib import Path

import pytest
import yaml

from services import __version__
from services.cli.conftest import hindcast
from services.cli.recordings.named import recording_of, recordings_of
from services.kit.errors import UserError
from services.synth.library import LIBRARY, scenario_paths
from services.synth.make import AS_WRITTEN, fingerprint

SMALL = LIBRARY / "small" / "vela-power-brake"


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_there_is_taken_as_it_is(no_cache: Path) -> None:
    assert recording_of(SMALL) == SMALL
    assert recording_of(no_cache) == no_cache, "the reader says what is missing in it"
    assert recording_of(None) is None
    assert recordings_of([SMALL, SMALL]) == [SMALL, SMALL]


@pytest.mark.parametrize(
    ("given", "words", "remedy"),
    [
        ("vela-healthy", "vela-healthy: a scenario, of which no recording is made yet", "hindcast make vela-healthy"),
        ("vela-helthy", "vela-helthy: no such recording; did you mean vela-healthy?", "hindcast list"),
        ("mine/tuesdy", "mine/tuesdy: no such recording; did you mean tuesday?", "recording.yaml"),
        ("quite-another-thing", "quite-another-thing: no such recording\n", "recording.yaml"),
    ],
)
def test_what_is_not_there_is_refused_with_what_may_be_meant(
    no_cache: Path, given: str, words: str, remedy: str
) -> None:
    (no_cache / "mine" / "tuesday").mkdir(parents=True)
    (no_cache / "mine" / "tuesday" / "recording.yaml").write_text("x")
    with pytest.raises(UserError, match=words.replace("?", r"\?")) as caught:
        recording_of(Path(given))
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_name_is_that_of_the_recording_that_was_made(no_cache: Path) -> None:
    made = Path(shutil.copytree(SMALL, no_cache / "hindcast" / "recordings" / "vela-power-brake"))
    with pytest.raises(UserError, match="no recording is made yet"):
        recording_of(Path("vela-power-brake"))  # a smaller case of it is not it
    manifest = yaml.safe_load((made / "recording.yaml").read_text())
    manifest["generator"] = {"fingerprint": fingerprint(scenario_paths()["vela-power-brake"], AS_WRITTEN)}
    (made / "recording.yaml").write_text(yaml.safe_dump(manifest))
    assert recording_of(Path("vela-power-brake")) == made


def test_every_command_says_it() -> None:
    for command in (
        ["run"],
        ["validate"],
        ["show"],
        ["coverage"],
        ["diff", str(SMALL)],
        ["cut"],
        ["repair", "--out", "x"],
    ):
        result = hindcast(*command, "vela-power-brak")
        assert isinstance(result.exception, UserError), command
        assert "did you mean vela-power-brake?" in result.exception.message, command


def test_the_version_is_printed() -> None:
    result = hindcast("--version")
    assert result.exit_code == 0
    assert re.fullmatch(r"hindcast \d+\.\d+\S*\n", result.output)
    assert result.output == f"hindcast {__version__}\n"
