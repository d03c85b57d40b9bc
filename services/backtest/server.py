"""A history that a Prometheus or a Thanos Query holds: captured window by window, and kept."""

import concurrent.futures
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from detectors.contract import Instant
from services.backtest.keys import data_of, hash_of
from services.backtest.pieces import Piece
from services.backtest.windows import Cuts, Window, windows
from services.recording.importers.parts.series.held import NothingHeldError
from services.recording.importers.parts.series.query_api import Access
from services.recording.importers.prometheus import capture
from services.recording.instants import format_instant
from services.recording.reader import Recording


def captured(
    server: Access,
    cluster: str | None,
    cuts: Cuts,
    asked: tuple[Instant, Instant],
    folder: Path,
    pool: concurrent.futures.Executor,
    moved: Callable[[float], None] = lambda _: None,
) -> list[Piece]:
    """Return the windows from `asked` (ms, both included) that the server holds something of, kept in `folder`.

    `cluster`: only series with this label cluster; None, all.
    What is kept of a window that was over is not asked for again. `moved` hears the share that is there.
    UserError: the server cannot be asked, or holds nothing of all that time.
    """
    lie = windows(cuts, asked, asked)
    kept = {window: _place(server, cluster, window, folder) for window in lie}
    waiting = {pool.submit(_capture, server, cluster, window, place): window for window, place in kept.items()}
    found: list[Piece] = []
    nothing: NothingHeldError | None = None
    for number, future in enumerate(concurrent.futures.as_completed(waiting), start=1):
        try:
            recording = Recording.open(future.result())
            found.append(Piece(recording, data_of(recording), waiting[future], cuts.grid_ms))
        except NothingHeldError as error:
            nothing = error
        moved(number / len(lie))
    if not found and nothing is not None:
        raise nothing
    return sorted(found, key=lambda piece: piece.window.begin)


def _place(server: Access, cluster: str | None, window: Window, folder: Path) -> Path:
    who = {"url": server.url, "cluster": cluster, "tenant": server.tenant}
    return folder / f"w{window.begin}-{hash_of([who, asdict(window)])[:12]}"


def _capture(server: Access, cluster: str | None, window: Window, out: Path) -> Path:
    if (out / "recording.yaml").exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    capture(out, server, format_instant(window.read_from), format_instant(window.read_to), cluster=cluster)
    return out
