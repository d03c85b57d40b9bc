"""Tables of figures, and pages of them that need nothing but themselves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1a1a1a }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .75rem; text-align: right }
th { border-bottom: 2px solid #555; vertical-align: bottom } td:first-child, th:first-child { text-align: left }
td.words, th.words { text-align: left } tr:nth-child(even) td { background: #f3f3f3 }
tr.total td { font-weight: 600; border-top: 1px solid #999 } tr.aside td { color: #666; font-style: italic }
tr.short td { color: #a40000 } p { max-width: 60rem } svg { max-width: 100%; height: auto }
"""


@dataclass(frozen=True)
class Row:
    """Cells as text. `kind`: a total, an aside (such as a control), or short of what it should reach."""

    cells: Sequence[str]
    kind: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table with its title and notes; `words` are the columns of text (the first always is)."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    words: frozenset[int] = frozenset({0})

    def html(self) -> str:
        """Return it as HTML."""
        head = "".join(f"<th{self._class(place)}>{escape(title)}</th>" for place, title in enumerate(self.columns))
        rows = "".join(f'<tr class="{row.kind}">{self._cells(row)}</tr>' for row in self.rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if self.rows else ""
        return f"<h2>{escape(self.title)}</h2>{table}{notes}"

    def _cells(self, row: Row) -> str:
        return "".join(f"<td{self._class(place)}>{escape(cell)}</td>" for place, cell in enumerate(row.cells))

    def _class(self, place: int) -> str:
        return ' class="words"' if place in self.words else ""


def page_of(title: str, lead: str, parts: Iterable[Sheet | str]) -> str:
    """Return a page; parts are tables, or HTML as it is (a drawing)."""
    body = "".join(part if isinstance(part, str) else part.html() for part in parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(lead)}</p>{body}"
        "</html>\n"
    )


def number(value: float | None, form: str = ".3g") -> str:
    """Return a figure as text; what has no value is blank."""
    return "" if value is None or value != value else format(value, form)  # noqa: PLR0124 - NaN
