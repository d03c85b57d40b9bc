"""`hindcast postmortem` as users call it."""

from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.recording.cut import cut_recording
from services.recording.reader import Recording

HANG = Path(__file__).resolve().parents[3] / "replay-data" / "small" / "sakuraone-job-hang"


def test_a_page_is_written_with_what_would_have_caught_it_sooner(tmp_path: Path) -> None:
    out, whole = tmp_path / "report.html", Recording.open(HANG)
    start = whole.manifest.start
    part = cut_recording(whole, tmp_path / HANG.name, start=start, end=start + 1_000_000, name=HANG.name)
    asked = ["postmortem", str(part), "--out", str(out), "--price", "2.5"]
    result = hindcast(*asked, catch=False)
    assert result.exit_code == 0
    assert "job_hang on job 20117" in result.stdout
    page = out.read_text()
    assert "half the patience" in page
    assert "hindcast postmortem sakuraone-job-hang --out report.html --price 2.5" in page
    assert "nothing, even at a quarter of their thresholds" in page


def test_markdown_without_trials_names_the_settings_that_differ(tmp_path: Path) -> None:
    config, out = tmp_path / "detectors.yaml", tmp_path / "report.md"
    config.write_text("job_health: {hang_spinning_s: 100}\n")
    asked = ["postmortem", str(HANG), "--out", str(out), "--config", str(config), "--no-what-if"]
    result = hindcast(*asked, catch=False)
    assert result.exit_code == 0
    text = out.read_text()
    assert "`hang_spinning_s: 100.0`" in text
    assert "half the patience" not in text
    assert "| detectors.yaml |" in text


@pytest.mark.parametrize(
    ("subject", "out", "message", "remedy"),
    [
        (str(HANG), "report.pdf", r"neither \.html nor \.md", "report.html"),
        (str(HANG), "nowhere/report.md", r"nowhere/report\.md: cannot be written", "a folder that you may write to"),
        (str(HANG), "folder.md", r"folder\.md: is a folder", "name a file"),
        ("vela-power-brake", "report.md", "neither a recording's directory", "hindcast make vela-power-brake"),
        ("nonesuch", "report.md", "nonesuch: neither a recording's directory", "recording.yaml"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    tmp_path: Path, subject: str, out: str, message: str, remedy: str
) -> None:
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(UserError, match=message) as refused:
        hindcast("postmortem", subject, "--out", str(tmp_path / out), catch=False)
    assert remedy in (refused.value.remedy or "")
