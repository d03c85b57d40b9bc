"""Tables of figures in the terminal."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from services.score.sheet import Sheet

_UNBOUND = 10_000  # columns: longer than any line
_STYLES = {"total": "bold", "aside": "dim italic", "short": "red"}


def plain_console(*, soft_wrap: bool = False, wide: bool = False) -> "Console":
    """Return stdout as a console that prints what a recording says as it stands: in a name, brackets are no markup.

    `wide`: into a file or a pipe lines are as long as they are, unless COLUMNS says how wide it is.
    """
    from rich.console import Console

    width = _UNBOUND if wide and not sys.stdout.isatty() and "COLUMNS" not in os.environ else None
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap, width=width)


def print_sheet(console: "Console", sheet: "Sheet") -> None:
    """Print a table, with its title above and its notes below."""
    from rich.table import Table

    console.print(f"\n{sheet.title}", style="bold")
    if sheet.rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, title in enumerate(sheet.columns):
            if place in sheet.words:
                table.add_column(title, overflow="fold")
            else:
                table.add_column(title, justify="right", no_wrap=True)
        for row in sheet.rows:
            table.add_row(*row.cells, style=_STYLES.get(row.kind))
        console.print(table)
    for note in sheet.notes:
        console.print(note)
