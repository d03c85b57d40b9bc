"""README and the other documents say what is so: commands, targets and links exist."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main

from services.cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for folder, pattern in ((".", "*.md"), ("docs", "**/*.md"), ("alert-rules", "**/*.md"), ("benchmarks", "*.md"))
    for path in (ROOT / folder).glob(pattern)
)
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
ALL = "\n".join(TEXTS.values())


def _documented(program: str) -> set[tuple[str, ...]]:
    """Return the documented calls of `program`, as words, from code spans and code blocks."""
    spans = re.findall(r"`([^`\n]+)`", ALL) + re.findall(r"^(?:\.venv/bin/)?(\w[^\n#]*)", _blocks(), re.MULTILINE)
    return {tuple(span.split()) for span in spans if span.split()[:1] == [program]}


def _blocks() -> str:
    return "\n".join(re.findall(r"```sh\n(.*?)```", ALL, re.DOTALL))


def _resolve(words: tuple[str, ...]) -> Any:
    command: Any = typer.main.get_command(app)
    for word in words[1:]:
        if not hasattr(command, "list_commands") or word.startswith("-"):
            break
        assert word in command.list_commands(None), f"`{' '.join(words)}`: there is no command {word!r}"
        command = command.get_command(None, word)
    return command


@pytest.mark.parametrize("words", sorted(_documented("hindcast")), ids=" ".join)
def test_every_documented_command_exists_with_its_options(words: tuple[str, ...]) -> None:
    command = _resolve(words)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.rstrip(";") for word in words if word.startswith("--")} - {"--help"}
    assert used <= known, f"{command.name} has no option {', '.join(sorted(used - known))}"


@pytest.mark.parametrize("words", sorted(_documented("make")), ids=" ".join)
def test_every_documented_target_is_in_the_makefile(words: tuple[str, ...]) -> None:
    done = subprocess.run(["make", "--dry-run", words[1]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_make_target_of_the_readme_promise_is_there() -> None:
    assert {("make", "demo"), ("make", "test"), ("make", "doctor")} <= _documented("make")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_between_documents_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", TEXTS[name])
    assert [target for target in targets if not (ROOT / name).parent.joinpath(target).exists()] == []


def test_the_layout_in_architecture_is_the_layout() -> None:
    table = re.findall(r"^\| (`[^|]+`) \|", TEXTS["ARCHITECTURE.md"], re.MULTILINE)
    folders = [folder.strip("`/") for row in table for folder in row.split() if folder.startswith("`")]
    assert len(folders) > 8
    missing = [f for f in folders if not (ROOT / f).is_dir() and not (ROOT / "services" / f).is_dir()]
    assert missing == []
