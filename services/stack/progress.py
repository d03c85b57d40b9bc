"""Shows what several things are doing at once: one line each, kept up to date on a terminal."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

_STYLES = {"done": "green", "healthy": "green", "failed": "red", "died": "red", "waiting": "dim", "cached": "green"}
# States in which nothing more is expected: the clock of the line stands still.
_FINAL = frozenset({"done", "healthy", "failed", "died", "cached", "stopped"})


@dataclass
class _Line:
    state: str = "waiting"
    detail: str = ""
    began: float | None = None
    ended: float | None = None

    def elapsed_s(self) -> float:
        if self.began is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.began


class Board:
    """A line per name with its state and how long it has been at it; plain lines, one a change, without a terminal."""

    def __init__(self, title: str, names: Iterable[str], *, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console(stderr=True)
        self._lines = {name: _Line() for name in names}
        self._lock = threading.Lock()
        self._live = (
            Live(get_renderable=self._table, console=self._console, refresh_per_second=4)
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, name: str, state: str, detail: str = "") -> None:
        """Set the state of `name`; may be called from any thread."""
        with self._lock:
            line = self._lines.setdefault(name, _Line())
            if (line.state, line.detail) == (state, detail):
                return
            now = time.monotonic()
            if line.began is None and state != "waiting":
                line.began = now
            line.ended = now if state in _FINAL else None
            line.state, line.detail = state, detail
            elapsed_s = line.elapsed_s()
        if self._live is None:
            self._console.print(
                f"{self._title}: {name} {state} after {elapsed_s:.1f} s {detail}".rstrip(), markup=False, soft_wrap=True
            )

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, title=self._title, title_justify="left", pad_edge=False)
        with self._lock:
            for name, line in self._lines.items():
                style = _STYLES.get(line.state, "cyan")
                table.add_row(name, f"[{style}]{line.state}[/]", f"{line.elapsed_s():6.1f} s", escape(line.detail))
        return table
