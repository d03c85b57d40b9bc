"""Documents and code use the words of the field: what stands here is old, private or a riddle, and has a plain word."""

import re
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
# Names in stored files, on the wire and of random streams; and of a file, where one is in it.
WIRE = {"said_at", '"told"', "reboots_are_told", r'normal\("beat"', r"\.tell\("}
CODE = sorted(path.name for path in (ROOT / "services").iterdir() if path.is_dir())


@pytest.mark.parametrize("package", CODE)
def test_code_uses_plain_words(package: str) -> None:
    private = "|".join(PLAIN | TELL)
    found = re.compile(rf"(?<![A-Za-z])(?:{private})(?![A-Za-z])", re.IGNORECASE)
    wire = re.compile("|".join(WIRE))
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {words}"
        for path in sorted((ROOT / "services" / package).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (words := found.findall(wire.sub("", line)))
    ]
    assert wrong == []
