"""What the detectors of an engine read, and the order in which it hands log lines over."""

from collections.abc import Collection, Sequence
from typing import Any

from detectors.contract import KINDS, Kind, LogRecord
from detectors.engine.upgrade import Choice
from detectors.fleet.jobs import FIELDS
from detectors.signals.xid import XIDS


def fields_read(choices: Sequence[Choice], streams: Collection[str] = ()) -> dict[Kind, tuple[str, ...]]:
    """Return the fields of each kind that some detector reads, of the kinds among `streams` though it be none.

    A field with ``{xid}`` in its name is one for every code of the catalogue.
    """
    read = {kind for detector, _ in choices for kind in detector.spec.reads}.union(streams)
    wanted: dict[Kind, set[str]] = {kind: set() for kind in KINDS if kind in read}
    for detector, _ in choices:
        for kind, names in detector.spec.fields.items():
            wanted[kind].update(name.format(xid=code) for name in names for code in (XIDS if "{xid}" in name else [0]))
    if "dcgm" in wanted:
        wanted["dcgm"].update(FIELDS)
    return {kind: tuple(sorted(names)) for kind, names in wanted.items()}


def streams_read(choices: Sequence[Choice]) -> set[str]:
    """Return the streams that matter: what some detector reads, and the jobs."""
    return {"jobs"}.union(*(detector.spec.reads for detector, _ in choices))


def log_order(record: LogRecord) -> tuple[Any, ...]:
    """Return what puts log lines in an order that their arrival has no part in."""
    return record.at, record.source, record.node or "", record.job_id or "", record.rank or -1, record.message
