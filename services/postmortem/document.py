"""A report before it has a form: sections of paragraphs, tables, lists and charts; HTML and Markdown are made of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.postmortem.chart import Chart


@dataclass(frozen=True)
class Text:
    """A paragraph; what stands between backticks is code."""

    words: str


@dataclass(frozen=True)
class Items:
    """A list; `numbered` where the order matters."""

    entries: Sequence[str]
    numbered: bool = False


@dataclass(frozen=True)
class Code:
    """Text as it is, such as a command."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells as text. `figures` are the columns of numbers, set to the right; `strong` the rows that stand out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: frozenset[int] = frozenset()
    strong: frozenset[int] = frozenset()


def filled(table: Table) -> Table:
    """Return the table without the columns that are empty in every row."""
    kept = [place for place in range(len(table.columns)) if any(row[place] for row in table.rows)]
    return Table(
        [table.columns[place] for place in kept],
        [[row[place] for place in kept] for row in table.rows],
        frozenset(number for number, place in enumerate(kept) if place in table.figures),
        table.strong,
    )


@dataclass(frozen=True)
class Figure:
    """A chart, with what it shows in words and its figures as a table, so that nothing is in the picture alone."""

    chart: Chart
    caption: str
    table: Table


Block = Text | Items | Code | Table | Figure


@dataclass(frozen=True)
class Section:
    """A part of the report under its heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """The whole report; `facts` are the few figures that are read first, each with what it is."""

    title: str
    lead: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
