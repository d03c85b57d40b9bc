"""Unites the documents of recordings: topology, log records, jobs, labels. What is named first wins."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from services.recording.importers.contract import Report
from services.recording.instants import format_instant
from services.recording.merge_parts import Part
from services.recording.model import Event, Job, Label, Topology

_Entry = dict[str, Any]
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED"}


def merged_topology(recordings: Sequence[Part], report: Report) -> Topology:
    """Return all machines and cables: what one recording leaves open, another may give."""
    _note_machines(recordings, report)
    return united_topology(((recording.manifest.name, recording.topology) for recording in recordings), report)


def united_topology(topologies: Iterable[tuple[str, Topology]], report: Report) -> Topology:
    """Return all machines and cables of topologies, each with the name that the report calls it by."""
    united: dict[str, Any] = {}
    for name, topology in topologies:
        for key, value in topology.model_dump(mode="json", exclude_unset=True).items():
            if key in _IDENTITY and isinstance(value, list):
                united[key] = _united_list(united.get(key, []), value, key, name, report)
            else:
                united.setdefault(key, value)
    return Topology.model_validate(united)


# list in a topology -> the keys that distinguish entries
_IDENTITY: dict[str, tuple[str, ...]] = {
    "nodes": ("name",),
    "switches": ("name",),
    "links": ("a", "b"),
    "mounts": ("mount",),
    "gpus": ("gpu",),
    "nics": ("nic",),
}


def _united_list(ours: list[_Entry], theirs: list[_Entry], kind: str, name: str, report: Report) -> list[_Entry]:
    identity = _IDENTITY[kind]

    def key_of(entry: _Entry) -> tuple[Any, ...]:
        parts = [entry[part] for part in identity]
        return tuple(sorted(parts)) if kind == "links" else tuple(parts)  # a cable has no direction

    entries = {key_of(entry): dict(entry) for entry in ours}
    for entry in theirs:
        key = key_of(entry)
        if key not in entries:
            entries[key] = dict(entry)
        else:
            entries[key] = _united(entries[key], entry, f"{name}: {kind} {' '.join(map(str, key))}", identity, report)
    return list(entries.values())


def _united(ours: _Entry, theirs: _Entry, where: str, identity: tuple[str, ...], report: Report) -> _Entry:
    """Return an entry with what either says; a difference is counted, and ours stays."""
    merged = dict(ours)
    for key, value in theirs.items():
        held = merged.get(key)
        if key in identity or value in (None, [], {}):
            continue
        if held in (None, [], {}):
            merged[key] = value
        elif key in _IDENTITY and all(isinstance(entry, dict) for entry in (*held, *value)):
            merged[key] = _united_list(held, value, key, where, report)
        elif held != value:
            report.skip(f"topology: another {key}; the first stays", f"{where}: {held!r} and {value!r}")
    return merged


def _note_machines(recordings: Sequence[Part], report: Report) -> None:
    """Say where recordings speak of different machines: names that were written differently, most likely."""
    sets = [{node.name for node in recording.topology.nodes} for recording in recordings]
    common = set.intersection(*(names for names in sets if names)) if any(sets) else set()
    for recording, names in zip(recordings, sets, strict=True):
        if names and not common:
            example = ", ".join(sorted(names)[:3])
            report.notes.append(f"no node is in all recordings; {recording.manifest.name} has {example}")


def merged_events(recordings: Sequence[Part], report: Report) -> Iterator[Event]:
    """Yield log records in order of time; one that several recordings have is given once.

    A line that one recording has twice in a millisecond was written twice, and stays twice.
    """
    numbered = (
        ((event.timestamp, number, event) for event in recording.events())
        for number, recording in enumerate(recordings)
    )
    ordered = heapq.merge(*(sorted(one, key=lambda item: item[:1]) for one in numbered), key=lambda item: item[:2])
    for _, together in groupby(ordered, key=lambda item: item[0]):
        most: Counter[str] = Counter()
        number_now, seen = -1, Counter[str]()
        for number, event in ((item[1], item[2]) for item in together):
            if number != number_now:
                number_now, seen = number, Counter()
            identity = event.model_dump_json(exclude_none=True)
            seen[identity] += 1
            if seen[identity] > most[identity]:
                most[identity] += 1
                yield event
            else:
                report.skip("events: the same line is in another recording", format_instant(event.timestamp))


def merged_jobs(recordings: Sequence[Part], topology: Topology, report: Report) -> list[Job]:
    """Return all jobs, each once; a recording that saw a job's end knows more than one that saw it run."""
    jobs: dict[str, _Entry] = {}
    owner: dict[str, int] = {}
    for number, recording in enumerate(recordings):
        for job in recording.jobs():
            theirs = job.model_dump(exclude_unset=True)
            ours = jobs.get(job.job_id)
            owner.setdefault(job.job_id, number)
            if ours is None:
                jobs[job.job_id] = theirs
                continue
            if ours.get("end") is None and theirs.get("end") is not None and theirs["end"] >= ours["start"]:
                ours = {**ours, "end": theirs["end"], "state": theirs["state"]}
            elif ours.get("end") is not None and theirs.get("end") is None:
                theirs = {**theirs, "state": ours["state"]}
            merged = _united(ours, theirs, f"{recording.manifest.name}: job {job.job_id}", ("job_id",), report)
            if merged.get("submit") is not None and merged["submit"] > merged["start"]:
                merged["submit"] = merged["start"]
            if (merged.get("end") is None) != (merged["state"] in _RUNNING):
                merged["end"], merged["state"] = ours.get("end"), ours["state"]
            jobs[job.job_id] = merged
    machines = [node.name for node in topology.nodes]
    for job_id, entry in jobs.items():
        if not entry["nodes"] and len(machines) == 1:
            entry["nodes"] = machines
            report.notes.append(
                f"job {job_id} names no node: taken to have run on {machines[0]}, the only one there is"
            )
    return _apart([Job.model_validate(job) for job in jobs.values()], owner, topology, report)


def _apart(jobs: list[Job], owner: dict[str, int], topology: Topology, report: Report) -> list[Job]:
    """Take GPUs from jobs that another recording's job holds at that time.

    Two sources may know one job under two ids, or see two that share a node without saying how. Which GPUs the later
    recording's job had is then not known: ``gpus`` is empty for it there.
    """
    cards = {node.name for node in topology.nodes if node.gpus}
    by_node: dict[str, list[int]] = {}
    parts: dict[int, dict[str, list[int]]] = {}
    for number, job in sorted(enumerate(jobs), key=lambda item: (owner[item[1].job_id], item[1].start)):
        for node in job.nodes:
            if node not in cards or (job.gpus or {}).get(node) == []:
                continue
            clash = next((other for other in by_node.get(node, []) if _clash(jobs[other], job, node, owner)), None)
            if clash is None:
                by_node.setdefault(node, []).append(number)
                continue
            parts.setdefault(number, dict(job.gpus or {}))[node] = []
            reason = "jobs: holds GPUs that a job of an earlier recording holds; they are given as unknown"
            report.skip(reason, f"job {job.job_id} and job {jobs[clash].job_id} on {node}")
    return [job.model_copy(update={"gpus": parts[n]}) if n in parts else job for n, job in enumerate(jobs)]


def _clash(held: Job, job: Job, node: str, owner: dict[str, int]) -> bool:
    if owner[held.job_id] == owner[job.job_id]:
        return False  # as its own recording has it
    over = held.end is not None and held.end <= job.start
    before = job.end is not None and job.end <= held.start
    ours, theirs = (held.gpus or {}).get(node), (job.gpus or {}).get(node)
    apart = ours is not None and theirs is not None and not set(ours) & set(theirs)
    return not (over or before or apart)


def merged_labels(recordings: Sequence[Part], report: Report) -> list[Label]:
    """Return all labels: one that is there already is left out, one whose id is taken gets another."""
    kept: dict[str, Label] = {}
    contents: dict[str, str] = {}
    incidents: set[str] = set()
    roots: set[str] = set()
    for recording in recordings:
        name, labels = recording.manifest.name, list(recording.labels())
        known = {label.id for label in labels if _content(label) in contents}
        # An incident is the same as an earlier recording's if a label of it is.
        same = {label.incident for label in labels if label.id in known}
        renamed = {one: f"{one}-{name}" for one in {label.incident for label in labels} & incidents if one not in same}
        for label in labels:
            if label.id in known:
                report.skip("labels: the same label is in another recording", f"{name}: {label.id}")
                continue
            changes: _Entry = {}
            if label.id in kept:
                changes["id"] = _free(f"{label.id}-{name}", kept)
                report.notes.append(f"label {label.id} of {name} is now {changes['id']}")
            incident = renamed.get(label.incident, label.incident)
            if incident != label.incident:
                changes["incident"] = incident
            if label.root and incident in roots:
                changes["root"] = False
                report.notes.append(f"label {label.id} of {name} is no root: its incident {incident} has one already")
            settled = label.model_copy(update=changes) if changes else label
            kept[settled.id] = settled
            contents.setdefault(_content(label), settled.id)
            incidents |= {incident} if incident else set()
            roots |= {incident} if incident and settled.root else set()
    return list(kept.values())


def _content(label: Label) -> str:
    return label.model_dump_json(exclude={"id"}, exclude_none=True)


def _free(wanted: str, taken: dict[str, Label]) -> str:
    number, name = 2, wanted
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name
