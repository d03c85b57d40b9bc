"""Reads lsb.acct, LSF's accounting: one record a line, fields by their place (lsb.acct(5), LSF 7 to 10.1).

Some fields hold lists whose length stands before them, so that places are counted on the way.
"""

import csv
from collections.abc import Sequence

from services.recording.importers.parts.schedulers.allocations import Allocation
from services.recording.importers.parts.schedulers.lsf_job import MALFORMED, allocation, gpus_a_host, hosts_of

FINISHED = "JOB_FINISH"
_TERM = {
    # lsbatch.h, TERM_*: why LSF ended a job
    1: "PREEMPTED", 5: "TIMEOUT", 6: "DEADLINE", 8: "CANCELLED", 9: "CANCELLED", 12: "TIMEOUT", 14: "CANCELLED",
    15: "CANCELLED", 16: "OUT_OF_MEMORY", 20: "OUT_OF_MEMORY", 23: "CANCELLED", 27: "NODE_FAIL",
}  # fmt: skip
_DONE = 64


def records_of(line: str) -> list[str]:
    """Return a line's fields: blanks between them, quotes around text, doubled quotes inside of it."""
    try:
        return next(csv.reader([line], delimiter=" ", quotechar='"', doublequote=True, strict=False), [])
    except csv.Error:
        return []


def finished(fields: Sequence[str]) -> Allocation | str | None:
    """Return the job of a JOB_FINISH record, why it is none, or None where the record is of another kind."""
    if not fields or fields[0] != FINISHED:
        return None
    try:
        return _finished(_Fields(fields))
    except (IndexError, ValueError):
        return MALFORMED


def _finished(fields: "_Fields") -> Allocation | str:
    fields.skip(2)  # type, version
    end, job = fields.number(), fields.number()
    fields.skip(3)  # user id, options, processors
    submit = fields.number()
    fields.skip(2)  # not before, not after
    start = fields.number()
    user, _queue, asked = fields.text(), fields.text(), fields.text()
    fields.skip(8)  # conditions, files, host of submission
    fields.skip(fields.number())  # hosts that were asked for
    hosts = hosts_of([fields.text() for _ in range(fields.number())])
    status = fields.number()
    fields.skip(1)  # factor of the host
    name = fields.text()
    fields.skip(1 + 19 + 2)  # command, usage, mail, project
    code = fields.number()
    fields.skip(3)  # processors, shell, event
    index = fields.number()
    fields.skip(8)
    why = fields.number()
    fields.skip(13)
    fields.skip(1)  # description
    fields.skip(2 * fields.number())  # pairs of the submission
    fields.skip(5 * fields.number())  # usage by host
    fields.skip(3)
    needed = fields.text()
    state = "COMPLETED" if status == _DONE else _TERM.get(why, "FAILED")
    number = f"{job}[{index}]" if index else str(job)
    words = f"lsb.acct JOB_FINISH JobID={number} State={state} exitStatus={code} exitInfo={why} hosts={','.join(hosts)}"
    return allocation(
        number,
        name=name,
        user=user,
        hosts=hosts,
        times=(submit * 1000 or None, start * 1000, end * 1000),
        state=state,
        gpus=gpus_a_host(needed) or gpus_a_host(asked),
        words=words,
    )


class _Fields:
    """The fields of a record, taken one after the other."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields, self._at = fields, 0

    def text(self) -> str:
        """Return the next field. IndexError behind the last."""
        self._at += 1
        return self._fields[self._at - 1]

    def number(self) -> int:
        """Return the next field as a number. ValueError where it is none, IndexError behind the last."""
        return int(self.text())

    def skip(self, count: int) -> None:
        """Leave fields out. ValueError for a negative count, as a damaged length may be."""
        if count < 0:
            raise ValueError
        self._at += count
