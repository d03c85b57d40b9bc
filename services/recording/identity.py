"""Which names are one machine's, and which GPU numbers one GPU's: short and full names, addresses, BMCs, UUIDs.

What says so: a full name begins with the short one; a BMC is called after its machine; a hosts file names an address;
two names have the same GPUs. A file of the user's has the last word:

    gpu07: [10.0.0.7, gpu07-mgmt, node-17]   # these are all gpu07
    gpu08: []                                # gpu08 is a machine of its own, whatever else says
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from services.kit.documents import NOT_YAML, parse_yaml
from services.kit.errors import UsageError
from services.recording.importers.contract import Draft, Report
from services.recording.model import Event, Job, Node, Topology
from services.recording.reader import Recording
from services.recording.schema import STREAMS

_BMC = r"(?:bmc|ipmi|i?lo|ilom|i?drac|imm|xcc|cimc|oob|mgmt|sp)"
_BMC_NAME = re.compile(
    rf"(?:{_BMC}[-_.](?P<behind>.+)|(?P<before>.+?)[-_.]?{_BMC}(?:\.(?P<domain>.+))?)", re.IGNORECASE
)
_LARGEST_FILE = 1 << 20
_OF_JOBS = 2
_COUNTED = re.compile(r"(?:.+-)?node-\d+")
"""What the importer of training logs calls nodes of which the log does not give the names."""


@dataclass
class Identity:
    """Machines by their other names, and why; by recording, new GPU numbers by node and number."""

    names: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    gpus: list[dict[tuple[str, int], int]] = field(default_factory=list)

    def name(self, name: str) -> str:
        """Return what a machine is called."""
        return self.names.get(name, name)

    def notes(self) -> list[str]:
        """Return in words which names were taken for one machine, and which GPUs were numbered anew."""
        notes = [f"{alias} is {name}: {self.why[alias]}" for alias, name in sorted(self.names.items())]
        moved = Counter(self.name(node) for part in self.gpus for (node, old), new in part.items() if old != new)
        return notes + [
            f"{count} GPUs of {node} have another number in some files: they are distinguished by UUID"
            for node, count in sorted(moved.items())
        ]


def read_aliases(path: Path) -> dict[str, list[str]]:
    """Return the names of a user's file by machine. UserError where it is none, or names one machine twice."""
    remedy = "write a line for each machine: gpu07: [10.0.0.7, gpu07-bmc]"
    try:
        text = path.read_text(encoding="utf-8")
        found = parse_yaml(text) if len(text) < _LARGEST_FILE else None
    except (OSError, *NOT_YAML) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f": line {mark.line + 1}"
        raise UsageError(f"{path}{place}: no file of aliases", remedy=remedy) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: no file of aliases", remedy=remedy)
    aliases: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for machine, names in found.items():
        if not isinstance(machine, str) or not isinstance(names, list | None):
            raise UsageError(f"{path}: {machine!r} is no name with a list of names", remedy=remedy)
        aliases[machine] = [str(name) for name in names or []]
        for name in aliases[machine]:
            if owner.setdefault(name, machine) != machine or name in found:
                raise UsageError(f"{path}: {name} stands for two machines", remedy="leave it with one")
    return aliases


def identify(
    recordings: Sequence[Recording],
    aliases: Mapping[str, Sequence[str]],
    hosts: Iterable[tuple[str, ...]] = (),
) -> Identity:
    """Return which names are one machine's, by all that shows it; `hosts` are names of one machine, as files say.

    Of several names the machine keeps that under which jobs or GPUs are known, else the shortest that is no address.
    """
    found = Identity()
    names = _names(recordings)
    settled = {machine: machine for machine in aliases} | {
        alias: machine for machine, known in aliases.items() for alias in known
    }
    for alias, machine in settled.items():
        if alias != machine:
            found.names[alias], found.why[alias] = machine, "as the file of aliases says"
    scheduled = frozenset(name for name in names if names[name] == _OF_JOBS)
    groups = _Groups((name for name in names if name not in settled), scheduled)
    for known in hosts:
        groups.join(known, "a hosts file says so")
    _by_name(groups, names, settled)
    _by_uuid(groups, recordings)
    for group in groups.found():
        best = max(group, key=lambda name: (names[name], not _is_address(name), "." not in name, -len(name), name))
        for name in group - {best}:
            found.names[name], found.why[name] = best, groups.why[name if name in groups.why else best]
    _by_job(found, recordings)
    found.gpus = _numbers(recordings, found)
    return found


def _by_job(found: Identity, recordings: Sequence[Recording]) -> None:
    """Give the nodes that a training log could only count the names that the scheduler has for its job's, in order."""
    placed: dict[str, list[str]] = {}
    counted: dict[str, tuple[str, list[str]]] = {}
    for recording in recordings:
        for job in recording.jobs():
            if not all(_COUNTED.fullmatch(node) for node in job.nodes):
                placed.setdefault(job.job_id, job.nodes)
                continue
            for node in job.nodes:  # that of several logs is nobody's
                counted[node] = ("", []) if node in counted else (job.job_id, job.nodes)
    for node, (job_id, nodes) in counted.items():
        names = placed.get(job_id, [])
        if names and len(names) == len(nodes):
            found.names[node] = found.name(names[nodes.index(node)])
            found.why[node] = f"in the order of the scheduler's nodes of job {job_id}"


def _names(recordings: Sequence[Recording]) -> Counter[str]:
    """Return all names of machines, with how good a name each is: best where jobs run on it, then where it has GPUs."""
    names: Counter[str] = Counter()
    for recording in recordings:
        for node in recording.topology.nodes:
            names[node.name] = max(names[node.name], 1 if node.gpus else 0)
        for job in recording.jobs():
            for name in job.nodes:
                names[name] = 0 if _COUNTED.fullmatch(name) else _OF_JOBS
    return names


class _Groups:
    """Names that were found to be one machine's; those that the scheduler knows are `apart`."""

    def __init__(self, names: Iterable[str], apart: frozenset[str]) -> None:
        self._of = {name: {name} for name in names}
        self._apart = apart
        self.why: dict[str, str] = {}

    def join(self, names: Iterable[str], why: str) -> None:
        """Take names for one machine's; those that nothing else has are left out."""
        there = [name for name in names if name in self._of]
        for name in there[1:]:
            both = self._of[name] | self._of[there[0]]
            if self._of[name] is self._of[there[0]] or len(both & self._apart) > 1:
                continue
            self._of[there[0]] |= self._of[name]
            for member in self._of[name]:
                self._of[member] = self._of[there[0]]
            self.why.setdefault(name, why)
            self.why.setdefault(there[0], why)

    def found(self) -> list[set[str]]:
        """Return the groups of more than one name."""
        return [group for group in {id(group): group for group in self._of.values()}.values() if len(group) > 1]


def _by_name(groups: _Groups, names: Counter[str], settled: Mapping[str, str]) -> None:
    folded: dict[str, str] = {}
    for name in sorted(names):
        groups.join((folded.setdefault(name.lower(), name), name), "the same name in other letters")
    short = Counter(name.partition(".")[0].lower() for name in names if "." in name and not _is_address(name))
    for name in sorted(names):
        first = name.partition(".")[0]
        if "." in name and not _is_address(name) and short[first.lower()] == 1 and first in names:
            groups.join((first, name), "its full name")
        match = _BMC_NAME.fullmatch(name)
        base = None if match is None else match["behind"] or match["before"]
        for machine in (base, None if base is None else base.partition(".")[0]):
            if machine and machine in names and name not in settled:
                groups.join((machine, name), "the name of its BMC")
                break


def _by_uuid(groups: _Groups, recordings: Sequence[Recording]) -> None:
    """Join names of which one's GPUs are the other's: most of those that are known of the one with fewer."""
    have: dict[str, set[str]] = {}
    for recording in recordings:
        for node in recording.topology.nodes:
            have.setdefault(node.name, set()).update(gpu.uuid for gpu in node.gpus if gpu.uuid)
    owners: dict[str, list[str]] = {}
    for name, uuids in sorted(have.items()):
        for uuid in uuids:
            owners.setdefault(uuid, []).append(name)
    for names in owners.values():
        for other in names[1:]:
            common = have[names[0]] & have[other]
            if 2 * len(common) > min(len(have[names[0]]), len(have[other])):
                groups.join((names[0], other), "it has the same GPUs, by their UUIDs")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _numbers(recordings: Sequence[Recording], identity: Identity) -> list[dict[tuple[str, int], int]]:
    """Return by recording and its (node, number) the number under which the first recording has the GPU's UUID."""
    first: dict[tuple[str, str], int] = {}
    parts = []
    for recording in recordings:
        part: dict[tuple[str, int], int] = {}
        taken: dict[str, set[int]] = {}
        for node in recording.topology.nodes:
            for gpu in node.gpus:
                if gpu.uuid:
                    new = first.setdefault((identity.name(node.name), gpu.uuid), gpu.gpu)
                    part[node.name, gpu.gpu] = new
                    taken.setdefault(node.name, set()).add(new)
        moved = {node for (node, old), new in part.items() if old != new}
        # All GPUs of a node must stay apart: where one without UUID would be in the way, none is moved.
        there = Counter(node.name for node in recording.topology.nodes for _ in node.gpus)
        moved = {name for name in moved if len(taken[name]) == there[name]}
        parts.append({key: new for key, new in part.items() if key[0] in moved})
    return parts


def renamed(recording: Recording, out: Path, identity: Identity, number: int) -> Recording:
    """Return a recording, number `number` of those that were identified, under the machines' names.

    It is the recording itself where nothing is called otherwise, else one that is written to `out`.
    """
    gpus = identity.gpus[number]
    mine = {node.name for node in recording.topology.nodes} | {name for job in recording.jobs() for name in job.nodes}
    if not gpus and not mine & set(identity.names):
        return recording
    manifest = recording.manifest
    with Draft(out, Report()) as draft:
        for stream in recording.streams():
            for batch in recording.batches(stream):
                draft.add(stream, _batch(batch, identity, gpus), interval_s=manifest.streams[stream].interval_s)
        draft.add_events(_event(event, identity) for event in recording.events())
        draft.add_jobs(_job(job, identity, gpus) for job in recording.jobs())
        draft.add_labels(recording.labels())
        header = manifest.model_dump(exclude={"format", "streams", "files"}, exclude_unset=True)
        draft.finish(header, _topology(recording.topology, identity, gpus))
    return Recording.open(out)


def _batch(batch: pa.RecordBatch, identity: Identity, gpus: Mapping[tuple[str, int], int]) -> pa.RecordBatch:
    names = batch.schema.names
    if "node" not in names:
        return batch
    columns: dict[str, Any] = {name: batch.column(name) for name in names}
    nodes: Any = columns["node"]
    dictionary = nodes.dictionary.to_pylist()
    if gpus and "gpu" in names:
        codes, old = nodes.indices.to_numpy(zero_copy_only=False), columns["gpu"].to_numpy(zero_copy_only=False)
        new = np.array(old)
        for (node, number), wanted in gpus.items():
            if node in dictionary:
                new[(codes == dictionary.index(node)) & (old == number)] = wanted
        columns["gpu"] = pa.array(new, pa.uint8())
    kind = STREAMS["dcgm"].key_type("node")
    plain = pa.DictionaryArray.from_arrays(nodes.indices, pa.array([identity.name(name) for name in dictionary]))
    columns["node"] = plain.cast(pa.string()).dictionary_encode().cast(kind)
    return pa.RecordBatch.from_pydict(columns)


def _event(event: Event, identity: Identity) -> Event:
    return event if event.node is None else event.model_copy(update={"node": identity.name(event.node)})


def _job(job: Job, identity: Identity, gpus: Mapping[tuple[str, int], int]) -> Job:
    update: dict[str, Any] = {"nodes": list(dict.fromkeys(identity.name(name) for name in job.nodes))}
    if job.gpus is not None:
        update["gpus"] = {
            identity.name(node): sorted(gpus.get((node, gpu), gpu) for gpu in held) for node, held in job.gpus.items()
        }
    return job.model_copy(update=update)


def _topology(topology: Topology, identity: Identity, gpus: Mapping[tuple[str, int], int]) -> Topology:
    nodes: dict[str, Node] = {}
    for node in topology.nodes:
        name = identity.name(node.name)
        cards = [gpu.model_copy(update={"gpu": gpus.get((node.name, gpu.gpu), gpu.gpu)}) for gpu in node.gpus]
        held = nodes.get(name)
        if held is not None:
            known = {gpu.gpu for gpu in held.gpus}
            cards = [*held.gpus, *(gpu for gpu in cards if gpu.gpu not in known)]
        base = node if held is None else held
        update: dict[str, Any] = {"name": name}
        if cards:
            update["gpus"] = sorted(cards, key=lambda gpu: gpu.gpu)
        nodes[name] = base.model_copy(update=update)
    return topology.model_copy(update={"nodes": list(nodes.values())})
