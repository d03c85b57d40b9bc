"""Generated files are what the code makes now."""

from services.cli.generated.generate import generated


def test_generated_files_are_current() -> None:
    stale = [
        str(path) for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `make generate` and commit what changed"
