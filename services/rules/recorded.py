"""What rules recorded, and their ALERTS, written back to a server: with the sink's own encoding and connection."""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from services.kit.errors import ServerError, UsageError, UserError
from services.kit.wait import until
from services.sink.connection import Connection, Reply
from services.sink.encode import EARLIEST_MS, LATEST_MS, Samples, request
from services.sink.pages import PAGE_SERIES, Catalogue
from services.sink.settings import SinkSettings

_HEADER = struct.Struct("<cI")
_PATIENCE_S = 60.0
_LATER = {0, 429}


def windows(file: IO[bytes], catalogue: Catalogue) -> Iterator[list[Samples]]:
    """Yield what the evaluator's `-recorded` file has, window by window of event time; new series go to `catalogue`."""
    blocks: list[Samples] = []
    while True:
        kind, size = _HEADER.unpack(file.read(_HEADER.size))
        payload = file.read(size)
        match kind:
            case b"L":
                for labels in json.loads(payload):
                    catalogue.add(labels)
            case b"S":
                blocks.append(_samples(payload))
            case b"W":
                yield blocks
                blocks = []
            case _:
                return


def _samples(payload: bytes) -> Samples:
    count, width = struct.unpack_from("<II", payload)
    series = np.frombuffer(payload, "<u4", count, 8).astype(np.int64)
    times, values = 8 + 4 * count, 8 + 4 * count + 8 * count * width
    return Samples(
        series,
        np.frombuffer(payload, "<i8", count * width, times).reshape(count, width),
        # Copied as bits: a staleness marker is one NaN among many.
        np.frombuffer(payload, "<f8", count * width, values).reshape(count, width),
    )


def write_back(path: Path, settings: SinkSettings, *, replay: str = "live") -> int:
    """Write what the evaluator left at `path` to the server of `settings`; return how many samples it has taken.

    `replay` chooses the tenant, where the settings have one for each. UserError: the server refuses samples, or does
    not answer for a minute; what it had taken by then stays, and writing it again is harmless.
    """
    connection, catalogue, taken = Connection(settings), Catalogue(settings.protocol), 0
    try:
        with path.open("rb") as file:
            for blocks in windows(file, catalogue):
                for page, parts in _by_page(blocks).items():
                    _post(connection, settings, request(catalogue.pages[page], parts), replay)
                    taken += sum(part.count for part in parts)
    finally:
        connection.close()
    return taken


def _by_page(blocks: list[Samples]) -> dict[int, list[Samples]]:
    """Return the blocks by page of the catalogue, those of equal width as one."""
    alike: dict[tuple[int, int], list[Samples]] = defaultdict(list)
    for block in blocks:
        alike[int(block.series[0]) // PAGE_SERIES, block.times.shape[1]].append(block)
    found: dict[int, list[Samples]] = defaultdict(list)
    for (page, _), some in alike.items():
        series, times, values = (
            np.concatenate([getattr(block, name) for block in some]) for name in ("series", "times", "values")
        )
        if times.min() < EARLIEST_MS or times.max() > LATEST_MS:
            raise UsageError("the series would lie before 1971 or after 2109", remedy="give another --at")
        found[page].append(Samples(series, times, values))
    return found


def _post(connection: Connection, settings: SinkSettings, body: bytes, tenant: str) -> None:
    last: list[Reply] = []

    def answered() -> Reply | None:
        last[:] = [connection.post(body, tenant)]
        return None if last[0].status in _LATER or last[0].status >= 500 else last[0]

    try:
        reply = until(answered, timeout_s=_PATIENCE_S, what=f"{settings.url} to take samples", interval_s=1)
    except UserError as error:
        raise ServerError(
            f"{error.message}: {last[0].status or 'no answer'} {last[0].text[:300]}",
            remedy="is it a remote-write receiver, and is it up?",
        ) from error
    if reply.status // 100 != 2:
        raise ServerError(
            f"{settings.url} refuses what rules recorded: {reply.status} {reply.text[:300]}",
            remedy="a Prometheus takes what is older than its newest only within storage.tsdb.out_of_order_time_window",
        )
    if settings.protocol == "v2" and reply.written is None:
        raise ServerError(
            f"{settings.url} answers {reply.status} and does not say what it has written: it knows no remote-write v2",
            remedy="set HINDCAST_SINK_PROTOCOL=v1",
        )
