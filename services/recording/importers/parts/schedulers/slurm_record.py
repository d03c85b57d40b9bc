"""One job of Slurm's accounting: its fields under the names that sacct prints, whichever form they came in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.recording.importers.parts.schedulers.hostlist import HostListError, expand

_INDICES = re.compile(r"gpu[^(]*\((?:S:[^,)]*,)?IDX:(?P<list>[\d,-]*)\)")


@dataclass(frozen=True)
class Record:
    """The fields of a job or a step, as text; a field that is not there is empty."""

    fields: dict[str, str]
    gpus: dict[str, list[int]] = field(default_factory=dict)
    """By node: which GPUs the job had, where the source names them."""

    def has(self, name: str) -> bool:
        """Whether the source gives the field at all, empty or not."""
        return name in self.fields

    def text(self, *names: str) -> str:
        """Return the first of the fields that is not empty."""
        return next((self.fields[name].strip() for name in names if self.fields.get(name, "").strip()), "")

    def with_missing_from(self, step: "Record") -> "Record":
        """Return the record with what it leaves empty filled from one of its steps."""
        known = ("NodeList", "AllocTRES", "ExitCode", "FailedNode")
        extra = {name: step.text(name) for name in known if self.has(name) and not self.text(name) and step.text(name)}
        return Record(self.fields | extra, self.gpus) if extra else self


def is_step(job_id: str) -> bool:
    """Whether an id is that of a step: ``123.batch``, ``123_4.0``, ``123+1.extern``."""
    return "." in job_id


def gpus_of(hosts: str, details: Sequence[str]) -> dict[str, list[int]]:
    """Return the GPUs by node from Slurm's details, ``gpu:h100:4(IDX:0-3)``: one for all hosts, or one for each.

    Nothing where they name none, or not for every host.
    """
    try:
        nodes = expand(hosts)
    except HostListError:
        return {}
    if len(details) not in {1, len(nodes)}:
        return {}
    found: dict[str, list[int]] = {}
    for place, node in enumerate(nodes):
        indices: set[int] = set()
        for match in _INDICES.finditer(details[0 if len(details) == 1 else place]):
            for part in filter(None, match["list"].split(",")):
                first, _, last = part.partition("-")
                if not (first.isdecimal() and (last or first).isdecimal() and int(last or first) < 256):
                    return {}
                indices.update(range(int(first), int(last or first) + 1))
        if indices:
            found[node] = sorted(indices)
    return found
