"""Markdown tables and headings of the reference pages."""

from collections.abc import Iterable, Sequence

MADE = "Made by `make generate`; `tests/docs/test_generated.py` fails where it is not what the code says.\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell keeps its text on one line."""
    lines = [_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(text: object) -> str:
    """Return text as a code span; nothing for nothing."""
    return f"`{text}`" if text not in {"", None} else ""


def page(title: str, about: str, *parts: str) -> str:
    """Return a page: its title, what it is about, how it is made, and its parts."""
    return "\n".join([f"# {title}\n", f"{about}\n", MADE, *parts])
