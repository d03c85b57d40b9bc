import shutil
from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.recording.conftest import edit_manifest, rewrite, without_file
from services.recording.reader import Recording
from tests.small import braked_vela, written

SCENARIO = "vela-power-brake"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten minutes of four nodes, made by the command itself."""
    folder = tmp_path_factory.mktemp("cli")
    scenario, profile = braked_vela()
    scenario |= {"name": "small", "duration": "+00:10:00", "happenings": [], "distractors": []}
    out = folder / "out" / "small"
    result = hindcast("make", written(folder, scenario, profile | {"nodes": 4}), "--out", out)
    assert "made" in result.output
    return out


def test_a_second_make_says_that_it_kept_the_first(made: Path) -> None:
    scenario = made.parent.parent / "small" / "scenario.yaml"
    result = hindcast("make", str(scenario), "--out", str(made))
    assert result.exit_code == 0
    assert "cache hit" in result.output


def test_validate_says_valid_or_lists_and_exits_1(made: Path, tmp_path: Path) -> None:
    good = hindcast("validate", str(made))
    assert (good.exit_code, good.output) == (0, f"{made}: valid\n")
    bad = hindcast("validate", str(tmp_path))
    assert bad.exit_code == 1
    assert "recording.yaml: missing" in bad.output
    assert "1 violation(s)" in bad.output


def test_validate_counts_every_row_that_is_wrong(made: Path, tmp_path: Path) -> None:
    double = Path(shutil.copytree(made, tmp_path / "small"))
    rewrite(double, "dcgm", lambda table: table.take([row for row in range(100) for _ in range(2)]))
    assert "100 violation(s)" in hindcast("validate", str(double)).output
    rewrite(double, "dcgm", lambda table: table.take([0] * 10))
    assert "9 violation(s)" in hindcast("validate", str(double)).output


def test_show_prints_what_is_there(made: Path) -> None:
    output = hindcast("show", str(made)).output
    for part in ("4 nodes, 32 GPUs", "dcgm", "5 s", "granite-20b-pretrain", "10 minutes", "1 distractors"):
        assert part in output


def test_show_says_what_is_unknown(made: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(made, tmp_path / "small"))
    for name in ("events.jsonl", "labels.jsonl"):
        without_file(bare, name)
    output = hindcast("show", str(bare)).output
    assert "no log was recorded" in output
    assert "nobody has labelled it" in output
    assert "distractors" not in output


def test_show_takes_no_bracket_for_markup(made: Path, tmp_path: Path) -> None:
    bracketed = Path(shutil.copytree(made, tmp_path / "small"))
    words = {"title": "Rack [a7] went dark", "summary": "See [/var/log] for it, :warning: and all"}
    edit_manifest(bracketed, lambda content: content.update(words))
    jobs = bracketed / "jobs.jsonl"
    jobs.write_text(jobs.read_text().replace("granite-20b-pretrain", "train[/bold]"))
    output = hindcast("show", str(bracketed), catch=False).output
    for part in (*words.values(), "train[/bold]"):
        assert part in output


def test_cut_takes_offsets_and_times(made: Path, tmp_path: Path) -> None:
    result = hindcast("cut", str(made), "--from", "+00:02:00", "--to", "2024-04-01T08:05:00Z")
    assert result.exit_code == 0
    cut = Recording.open(made.parent / "small-cut").manifest
    assert (cut.name, cut.end - cut.start) == ("small-cut", 180_000)
    hindcast("cut", str(made), "--to", "+00:01:00", "--out", str(tmp_path / "first-minute"))
    assert Recording.open(tmp_path / "first-minute").manifest.name == "first-minute"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "soon"), "--from: 'soon' is not an RFC 3339 time"),
        (("--to", "+09:00:00"), "no stretch from"),
        (("--out", "Bad_Name"), "is no name for a recording"),
    ],
)
def test_a_bad_cut_is_a_matter_of_usage(made: Path, arguments: tuple[str, ...], message: str) -> None:
    result = hindcast("cut", str(made), *arguments)
    assert isinstance(result.exception, UserError)
    assert message in result.exception.message
    assert result.exception.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2024-04-01T09:20:00Z", "is not an offset such as"),
        ("10", "is not an offset such as"),
        ("+99d", "30 days at most"),
        ("+00:00:00", "longer than nothing"),
    ],
)
def test_a_length_that_is_none_is_refused_with_how_to_write_one(text: str, words: str) -> None:
    result = hindcast("make", SCENARIO, "--duration", text)
    assert isinstance(result.exception, UserError)
    assert words in result.exception.message
    assert (result.exception.remedy, result.exception.exit_code) == ("write +01:20:00 or +1h20m", 2)


def test_a_profile_that_is_not_there_is_not_looked_for_among_scenarios(tmp_path: Path) -> None:
    result = hindcast("make", SCENARIO, "--profile", tmp_path / "no.yaml", "--out", tmp_path / "out")
    assert isinstance(result.exception, UserError)
    assert "no such profile" in result.exception.message
    assert "hindcast list" not in result.exception.remedy


def test_list_names_the_library() -> None:
    assert SCENARIO in hindcast("list").output


def test_import_refuses_what_is_no_result(tmp_path: Path) -> None:
    result = hindcast("import", "mlperf-power", str(tmp_path), "--out", str(tmp_path / "r"))
    assert isinstance(result.exception, UserError)
    assert "node_N.txt" in result.exception.message
