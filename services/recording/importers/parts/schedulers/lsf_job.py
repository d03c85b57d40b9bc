"""What every form of LSF's accounting says of a job: hosts with their slots, GPUs of a host, how it ended."""

import re
from collections.abc import Iterable

from services.recording.importers.parts.moments import plausible
from services.recording.importers.parts.schedulers.allocations import RUNNING, Allocation
from services.recording.model import Job

MALFORMED = "a record of LSF whose fields are not where they should be"
_HOST = re.compile(r"(?:\d{1,6}\*)?(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]{0,252})")
_GPUS = re.compile(r"ngpus_physical=(?P<count>\d{1,3})")
_ASKED = re.compile(r"\bnum=(?P<count>\d{1,3})\b")
_MOST = 256


def hosts_of(slots: Iterable[str]) -> list[str]:
    """Return the hosts of execution slots, each once: ``8*gpu01`` or ``gpu01`` for each slot. ValueError for others."""
    found: dict[str, None] = {}
    for slot in slots:
        match = _HOST.fullmatch(slot.strip("<>"))
        if match is None:
            raise ValueError(slot)
        found[match["name"]] = None
    return list(found)


def gpus_a_host(needs: str) -> int:
    """Return how many GPUs a resource requirement takes of each host (``ngpus_physical``, ``-gpu num=``); 0: none."""
    match = _GPUS.search(needs) or _ASKED.search(needs)
    return min(int(match["count"]), _MOST) if match is not None else 0


def allocation(
    job_id: str,
    *,
    name: str,
    user: str,
    hosts: list[str],
    times: tuple[int | None, int | None, int | None],
    state: str,
    gpus: int,
    words: str,
) -> Allocation | str:
    """Return a job from its times (submitted, started, ended, in ms), or why it is none."""
    submit, start, end = times
    running = state in RUNNING
    if not start or not hosts:
        return "the job never started"
    if not all(plausible(at) for at in (start, start if end is None else end)):
        return MALFORMED
    if (end is None) != running or (end is not None and end < start):
        return "the job is over, and its end is missing or before its start"
    job = Job(
        job_id=job_id,
        name=name,
        user=user,
        nodes=hosts,
        gpus_per_node=gpus or None,
        submit=min(submit, start) if submit and plausible(submit) else None,
        start=start,
        end=end,
        state=state,
    )
    return Allocation(job, gpus, words=words)
