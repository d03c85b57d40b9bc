"""Checks a whole recording against the format and lists every violation, not only the first."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from services.kit.errors import UserError
from services.recording.faults import FAULTS, SHAPES
from services.recording.instants import format_instant
from services.recording.model import Event, Job, Label, Manifest, Topology
from services.recording.reader import describe, read_manifest, read_topology
from services.recording.schema import STREAMS
from services.recording.validate_streams import Known, differs, validate_stream
from services.recording.violation import Violation

_Line = TypeVar("_Line", bound=BaseModel)
_MOST_LINES = 1000
"""Lines of one file that are listed as wrong; beyond it only a count helps."""
_STATES_AT_REST = "COMPLETED, FAILED, CANCELLED and the like"


def validate_recording(directory: Path) -> list[Violation]:
    """Return every violation of a recording; an empty list says that it is valid.

    Manifest and topology come first: if one of them cannot be read, the rest cannot be judged.
    """
    try:
        manifest = read_manifest(directory)
        topology = read_topology(directory)
    except UserError as error:
        message = error.message.removeprefix(f"{directory}/")
        file, _, problem = message.partition(": ")
        return [Violation(file, "", problem, error.remedy)]
    found: list[Violation] = []
    jobs = list(_records(directory / "jobs.jsonl", Job, found))
    labels = list(_records(directory / "labels.jsonl", Label, found))
    listed = [job.job_id for _, job in jobs] if (directory / "jobs.jsonl").exists() else None
    known = Known.of(topology, listed)
    found.extend(_manifest(directory, manifest, topology))
    found.extend(_topology(topology))
    for stream in STREAMS:
        if stream in manifest.streams:
            found.extend(validate_stream(directory, stream, manifest, known))
    found.extend(_fewer("jobs.jsonl", _jobs(jobs, known)))
    unread: list[Violation] = []
    events = _records(directory / "events.jsonl", Event, unread)
    found.extend(_fewer("events.jsonl", _events(events, manifest, known)))
    found.extend(_fewer("labels.jsonl", _labels(labels, manifest, known)))
    return found + unread


def _fewer(file: str, violations: Iterator[Violation]) -> Iterator[Violation]:
    """Yield the first violations of a file, and how many more there are."""
    yield from itertools.islice(violations, _MOST_LINES)
    if rest := sum(1 for _ in violations):
        yield Violation(file, "", f"is wrong in {rest} further places", "mend the first, and validate again", rest)


def _records(path: Path, model: type[_Line], found: list[Violation]) -> Iterator[tuple[int, _Line]]:
    """Yield the good records of a JSON-lines file with their line numbers; add the bad ones to ``found``."""
    if not path.exists():
        return
    bad = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield number, model.model_validate_json(line)
            except ValidationError as error:
                bad += 1
                if bad <= _MOST_LINES:
                    found.append(Violation(path.name, f"line {number}", describe(error), "correct the line"))
    if bad > _MOST_LINES:
        rest = bad - _MOST_LINES
        found.append(Violation(path.name, "", f"cannot be read in {rest} further lines", "correct them", rest))


def _manifest(directory: Path, manifest: Manifest, topology: Topology) -> Iterator[Violation]:
    file = "recording.yaml"
    if manifest.end < manifest.start:
        yield Violation(file, "end", "is before start", "correct the two")
    if manifest.name != directory.resolve().name:
        remedy = "rename the directory or correct the name"
        yield Violation(file, "name", f"is {manifest.name}, and the directory is {directory.resolve().name}", remedy)
    if manifest.origin == "synthetic" and manifest.seed is None:
        yield Violation(file, "seed", "is missing from a synthetic recording", "write the seed it was made with")
    gpus = sum(len(node.gpus) for node in topology.nodes)
    for name, stated, there in (
        ("nodes", manifest.cluster.nodes, len(topology.nodes)),
        ("gpus", manifest.cluster.gpus, gpus),
    ):
        if stated != there:
            yield Violation(
                file, f"cluster.{name}", f"is {stated}, and topology.json has {there}", "correct the number"
            )
    for name in manifest.streams:
        if name not in STREAMS:
            remedy = f"the format has {', '.join(STREAMS)}"
            yield Violation(file, f"streams.{name}", "is no stream of the format", remedy)
    for path in sorted(directory.glob("*.parquet")):
        if path.stem in STREAMS and path.stem not in manifest.streams:
            yield Violation(path.name, "", "is not listed in recording.yaml", "list it there or remove it")
    for name, info in manifest.files.items():
        path = directory / name
        if not path.is_file():
            yield Violation(name, "", "is missing, although recording.yaml lists it", "copy the recording again")
        else:
            yield from differs(path, info.sha256)


def _topology(topology: Topology) -> Iterator[Violation]:
    file, remedy = "topology.json", "name each once"
    switches = {switch.name for switch in topology.switches}
    names = [node.name for node in topology.nodes] + [switch.name for switch in topology.switches]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Violation(file, name, "is there more than once", remedy)
    for node in topology.nodes:
        gpus = [gpu.gpu for gpu in node.gpus]
        if len(set(gpus)) != len(gpus):
            yield Violation(file, node.name, "has a GPU number twice", remedy)
        for nic in node.nics:
            if nic.switch is not None and nic.switch not in switches:
                yield Violation(file, node.name, f"{nic.nic} goes to unknown switch {nic.switch}", "add the switch")
    for link in topology.links:
        for end in (link.a, link.b):
            if end.partition(":")[0] not in switches:
                yield Violation(file, f"link {link.a} - {link.b}", f"{end} is at no known switch", "add the switch")


def _jobs(jobs: list[tuple[int, Job]], known: Known) -> Iterator[Violation]:
    file = "jobs.jsonl"
    seen: dict[str, int] = {}
    for line, job in jobs:
        if job.job_id in seen:
            yield Violation(file, f"line {line}", f"job {job.job_id} is on line {seen[job.job_id]} already", "keep one")
        seen.setdefault(job.job_id, line)
        if job.submit is not None and job.submit > job.start:
            yield Violation(file, f"line {line}", f"job {job.job_id} starts before its submit", "correct the times")
        if job.end is not None and job.end < job.start:
            yield Violation(file, f"line {line}", f"job {job.job_id} ends before its start", "correct the times")
        if (job.end is None) != (job.state in {"RUNNING", "COMPLETING", "SUSPENDED"}):
            problem = f"job {job.job_id} is {job.state} with {'no end' if job.end is None else 'an end'}"
            yield Violation(file, f"line {line}", problem, f"a job has an end once it is {_STATES_AT_REST}")
        for node in sorted(set(job.nodes) - known.nodes):
            yield Violation(file, f"line {line}", f"node {node} is not in topology.json", "add it or correct the name")
        for node, gpus in (job.gpus or {}).items():
            for gpu in gpus:
                if (node, gpu) not in known.gpus:
                    problem = f"node {node} has no GPU {gpu} in topology.json"
                    yield Violation(file, f"line {line}", problem, "correct the job's gpus")
    yield from _overlaps(jobs, known)


def _overlaps(jobs: list[tuple[int, Job]], known: Known) -> Iterator[Violation]:
    """Yield jobs that hold the same GPU at the same time."""
    held: dict[tuple[str, int], list[tuple[int, int, Job]]] = defaultdict(list)
    whole = defaultdict(list)
    for node, gpu in known.gpus:
        whole[node].append(gpu)
    for line, job in sorted(jobs, key=lambda item: item[1].start):
        clashes = set()
        for node in job.nodes:
            part = (job.gpus or {}).get(node)
            for gpu in whole[node] if part is None else part:
                for end, _, other in held[node, gpu][-1:]:
                    if end > job.start and other.job_id != job.job_id:
                        clashes.add((other.job_id, node))
                held[node, gpu].append((2**62 if job.end is None else job.end, line, job))
        for other_id, node in sorted(clashes)[:3]:
            yield Violation(
                "jobs.jsonl",
                f"line {line}",
                f"job {job.job_id} and job {other_id} hold the same GPUs of {node} at once",
                "correct the times, or say in `gpus` which part of the node each has",
            )


def _events(events: Iterator[tuple[int, Event]], manifest: Manifest, known: Known) -> Iterator[Violation]:
    file, latest = "events.jsonl", None
    for line, event in events:
        if latest is not None and event.timestamp < latest:
            problem = "timestamp is before that of an earlier line"
            yield Violation(file, f"line {line}", problem, "sort the lines by timestamp")
        latest = event.timestamp if latest is None else max(latest, event.timestamp)
        if not manifest.start <= event.timestamp <= manifest.end:
            problem = f"{format_instant(event.timestamp)} lies outside the recording"
            yield Violation(file, f"line {line}", problem, "correct start and end, or leave the line out")
        if event.node is not None and event.node not in known.nodes | known.switches:
            problem = f"{event.node} is no node and no switch of topology.json"
            yield Violation(file, f"line {line}", problem, "add it or correct the name")


def _labels(labels: list[tuple[int, Label]], manifest: Manifest, known: Known) -> Iterator[Violation]:
    file, ids, roots = "labels.jsonl", set(), set()
    for line, label in labels:
        problems = [*_label_times(label, manifest), *_label_kind(label)]
        for entity in (label.entity, *label.also):
            problems.extend(_entity(entity, label, known))
        if label.id in ids:
            problems.append(("id is that of an earlier label", "give each label its own"))
        ids.add(label.id)
        if label.job_id is not None and not known.has_job(label.job_id):
            problems.append((f"job {label.job_id} is not in jobs.jsonl", "correct the job"))
        if label.root and label.incident is None:
            problems.append(("root without an incident", "name the incident it is the root of"))
        if label.root and label.incident in roots:
            problems.append((f"incident {label.incident} has a root already", "mark one label as root"))
        if label.root and label.incident:
            roots.add(label.incident)
        for problem, remedy in problems:
            yield Violation(file, f"line {line}", f"label {label.id}: {problem}", remedy)


def _label_times(label: Label, manifest: Manifest) -> Iterator[tuple[str, str]]:
    if label.end < label.onset:
        yield "end is before onset", "correct the times"
    for name, at in (("onset", label.onset), ("end", label.end)):
        if not manifest.start <= at <= manifest.end:
            yield f"{name} lies outside the recording", "clip the label to the recording"


def _label_kind(label: Label) -> Iterator[tuple[str, str]]:
    if label.distractor:
        if label.fault != "none":
            yield f"a distractor of fault {label.fault}", "a distractor's fault is none"
        if label.within_s != 0:
            yield "a distractor with within_s", "no alert is due for it: write 0"
    elif label.fault not in FAULTS:
        yield f"fault {label.fault} is not one of the format's", f"use one of {', '.join(FAULTS)}"
    elif label.within_s == 0:
        yield "within_s is 0, so that no alert can be in time", "say how soon after the onset an alert is due"


def _entity(entity: dict[str, str | int], label: Label, known: Known) -> Iterator[tuple[str, str]]:
    shape = frozenset(entity)
    allowed = FAULTS.get(label.fault, SHAPES)
    if shape not in allowed:
        shapes = " or ".join("+".join(sorted(one)) for one in allowed)
        yield f"entity is {'+'.join(sorted(shape)) or 'empty'}", f"{label.fault} is pinned to {shapes}"
        return
    there: dict[str, bool] = {
        "node": entity.get("node") in known.nodes,
        "gpu": (entity.get("node"), entity.get("gpu")) in known.gpus,
        "nic": (entity.get("node"), entity.get("nic")) in known.nics,
        "switch": entity.get("switch") in known.switches,
        "mount": entity.get("mount") in known.mounts,
        "job_id": known.has_job(entity.get("job_id")),
    }
    for key in sorted(shape & there.keys()):
        if not there[key]:
            yield f"{key} {entity[key]} is unknown", "name an entity of topology.json or jobs.jsonl"
            return
