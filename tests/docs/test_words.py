"""Documents and code use the words of the field: what stands here is old, private or a riddle, and has a plain word."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = {
    "told": "reported, found, named, sent",
    "said": "reported, stated",
    "owed": "due, required",
    "beat": "step window",
    "befell": "happened to",
    "lest": "or, so that not",
    "upon which": "and then",
    "come again": "try again",
    "cried wolf": "false alarms",
    "cry wolf": "false alarms",
    "cries wolf": "raises false alarms",
}
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder, pattern in ((".", "*.md"), ("docs", "**/*.md"))
    for path in (ROOT / folder).glob(pattern)
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_plain_words(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    wrong = [
        f"{page}:{number}: {word!r}, better: {plain}"
        for number, line in enumerate(lines, start=1)
        for word, plain in PLAIN.items()
        if re.search(rf"\b{word}\b", re.sub(r"`[^`]*`", "", line), re.IGNORECASE)
    ]
    assert wrong == []


TELL = dict.fromkeys(("tell", "tells"), "report, show, name, distinguish")
# Names in stored files and snapshots, on the wire, in findings and of random streams; and of a file with one in it.
WIRE = {
    "said_at", '"said"', '"told"', "`told` whether", r"told: BoolArray = column", r"(?:self|_heat)\.told\[", "told_by",
    "reboots_are_told", r'normal\("beat"', r"\.tell\(",
}  # fmt: skip
CODE = sorted(f"services/{path.name}" for path in (ROOT / "services").iterdir() if path.is_dir())
NOT_OURS = {"node_modules", "static"}


def _files(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - NOT_OURS)
        yield from (Path(at, name) for name in sorted(names) if name.endswith((".py", ".yaml", ".md")))


@pytest.mark.parametrize("package", [*CODE, "detectors", "benchmarks", "tests"])
def test_code_uses_plain_words(package: str) -> None:
    found = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(PLAIN | TELL)})(?![A-Za-z])", re.IGNORECASE)
    wire = re.compile("|".join(WIRE))
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {words}"
        for path in _files(ROOT / package)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (words := found.findall(wire.sub("", line)))
    ]
    assert wrong == []
