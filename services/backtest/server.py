"""A history that a Prometheus or a Thanos Query holds: captured window by window, and kept."""

import concurrent.futures
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from detectors.contract import Instant
from services.backtest.keys import data_of, hash_of
from services.backtest.pieces import Piece
from services.backtest.windows import Cuts, Window, windows
from services.recording.importers.parts.series.held import NothingHeldError
from services.recording.importers.prometheus import convert
from services.recording.instants import format_instant
from services.recording.reader import Recording


@dataclass(frozen=True)
class Server:
    """Where to ask, and how we are let in: as for `hindcast capture`."""

    url: str
    cluster: str | None = None
    bearer_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    tenant: str | None = None


def captured(
    server: Server,
    cuts: Cuts,
    asked: tuple[Instant, Instant],
    folder: Path,
    pool: concurrent.futures.Executor,
    moved: Callable[[float], None] = lambda _: None,
) -> list[Piece]:
    """Return the windows from `asked` (ms, both included) that the server holds something of, kept in `folder`.

    What is kept of a window that was over is not asked for again. `moved` hears the share that is there.
    UserError: the server cannot be asked, or holds nothing of all that time.
    """
    lie = windows(cuts, asked, asked)
    waiting = {pool.submit(_capture, server, window, _place(server, window, folder)): window for window in lie}
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


def _place(server: Server, window: Window, folder: Path) -> Path:
    who = {"url": server.url, "cluster": server.cluster, "tenant": server.tenant}
    return folder / f"w{window.begin}-{hash_of([who, asdict(window)])[:12]}"


def _capture(server: Server, window: Window, out: Path) -> Path:
    if (out / "recording.yaml").exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    convert(
        out,
        url=server.url,
        from_=format_instant(window.read_from),
        to=format_instant(window.read_to),
        cluster=server.cluster,
        bearer_file=server.bearer_file,
        user=server.user,
        password_file=server.password_file,
        ca_file=server.ca_file,
        tenant=server.tenant,
    )
    return out
