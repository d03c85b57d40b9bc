"""Generated files are what the code makes now."""

from pathlib import Path

import pytest

from services.cli.generated import generate
from services.synth import small


def test_generated_files_are_current() -> None:
    stale = [
        str(path)
        for path, text in generate.generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `make generate` and commit what changed"


def test_what_is_written_is_named_and_the_rest_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "_ROOT", tmp_path)
    monkeypatch.setattr(generate, "generated", lambda: {tmp_path / "docs" / name: name for name in ("a.md", "b.md")})
    monkeypatch.setattr(small, "SMALL", ())
    generate.generate()
    (tmp_path / "docs" / "b.md").write_text("by hand", encoding="utf-8")
    generate.generate()
    generate.generate()
    assert capsys.readouterr().out.splitlines() == [
        "written: docs/a.md", "written: docs/b.md", "written: docs/b.md", "all is as it should be",
    ]  # fmt: skip
