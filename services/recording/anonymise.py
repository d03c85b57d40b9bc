"""Renames whatever names people, machines and sites in a recording, alike in every file, so that it can be shared.

Hosts, switches, racks, pods, power feeds, users, jobs' names, serial numbers, UUIDs, GUIDs, IP, MAC and mail addresses,
mount paths and what lies below them. Readings, times, PCI addresses, GPU numbers, port names and job numbers stay.
"""

import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa

from detectors.fleet.scheduling import ADMINS, is_maintenance
from services.kit.errors import UsageError
from services.recording.importers.contract import Progress, Report, silent
from services.recording.model import Cluster, Event, Gpu, Job, Label, Link, Manifest, Nic, Node, Topology
from services.recording.pseudonyms import Pseudonyms
from services.recording.reader import Recording
from services.recording.schema import NAME, STREAMS, is_name_type
from services.recording.stream_file import open_stream, stored
from services.recording.writer import RecordingWriter

_SHORTEST_SALT = 16
# key of a document -> what its text names
_KINDS = {
    "node": "node",
    "nodes": "node",
    "switch": "switch",
    "rack": "rack",
    "pod": "pod",
    "power_feeds": "feed",
    "uuid": "uuid",
    "mount": "mount",
    "user": "user",
    "account": "user",
    "owner": "user",
    "hostname": "node",
    "host": "node",
    "serial": "serial",
    "serial_number": "serial",
    "board_serial": "serial",
    "chassis_serial": "serial",
    "service_tag": "serial",
    "asset_tag": "serial",
}
_KIND_OF_KEY = {"node": "node", "switch": "switch", "mount": "mount"}
# keys whose text is of the format's own vocabulary, or a reading
_KEPT = frozenset(
    {
        "gpu_model", "role", "kind", "pci_bus_id", "state", "fault", "severity", "layout", "order", "unit", "format",
        "origin", "licence",
    }
)  # fmt: skip


def read_salt(path: Path) -> bytes:
    """Return the secret of a file. UserError where it is missing or too short to be one."""
    try:
        salt = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", remedy="name a file with the salt") from error
    if len(salt) < _SHORTEST_SALT:
        raise UsageError(
            f"{path}: a salt of {len(salt)} bytes can be guessed",
            remedy=f"make one of at least {_SHORTEST_SALT}, as in: openssl rand -hex 32 > {path}",
        )
    return salt


def anonymise_recording(
    recording: Recording, out: Path, *, salt: bytes | None = None, progress: Progress = silent
) -> Report:
    """Write the recording to ``out`` with other names.

    With a ``salt`` a name gets the same new name in every recording; without one the new names are short and those of
    this recording alone. UserError: ``out`` exists or cannot be written, or the recording cannot be read.
    """
    names = Pseudonyms(salt or secrets.token_bytes(32), compact=salt is None)
    _collect(recording, names)
    names.settle()
    report = Report()
    report.read["recordings"] = 1
    manifest = recording.manifest
    rows = sum(info.rows for info in manifest.streams.values()) or 1
    with RecordingWriter(out) as writer:
        for stream in recording.streams():
            for batch in recording.batches(stream):
                writer.write(stream, _renamed(batch, names), interval_s=manifest.streams[stream].interval_s)
                report.made[stream] += batch.num_rows
                progress(sum(report.made.values()) / rows)
        documents = ("events", "jobs", "labels")
        present = {name: (recording.path / f"{name}.jsonl").exists() for name in documents}
        if present["events"]:
            writer.write_events(_document(Event, event, names) for event in recording.events())
        if present["jobs"]:
            writer.write_jobs(_job(job, names) for job in recording.jobs())
        if present["labels"]:
            writer.write_labels(_document(Label, label, names) for label in recording.labels())
        topology = Topology.model_validate(
            _walked(recording.topology.model_dump(mode="json", exclude_unset=True), names)
        )
        writer.finish(_header(recording, out, names), topology)
    report.made.update({f"new names of {kind}s": count for kind, count in sorted(names.renamed.items())})
    if names.only_in_fields:
        few = ", ".join(sorted(names.only_in_fields)[:10])
        report.notes.append(
            f"replaced in fields, but too short or too common a word to be looked for inside messages: {few}"
        )
    report.notes.append(
        "read title, summary, notes and some messages before you share it: a name that nothing lists, "
        "and that has no form of its own, cannot be found"
    )
    return report


# -- collecting ----------------------------------------------------------------------------------------------------


def _collect(recording: Recording, names: Pseudonyms) -> None:
    """Learn the names that stand in fields, the most telling kinds first."""
    topology = recording.topology
    names.know("cluster", [recording.manifest.cluster.name])
    names.know("node", (node.name for node in topology.nodes))
    names.know("switch", (switch.name for switch in topology.switches))
    names.know("mount", (mount.mount for mount in topology.mounts))
    _learn(topology.model_dump(mode="json", exclude_unset=True), names)
    for job in recording.jobs():
        names.know("user", [job.user])
        names.know("job name", [job.name])
        names.know("job", [job.job_id] if not _is_number(job.job_id) else [])
        _learn(job.model_dump(mode="json", exclude_unset=True), names)
    for event in recording.events():
        _learn(event.model_dump(mode="json", exclude_unset=True, exclude={"message"}), names)
    for label in recording.labels():
        _learn(label.model_dump(mode="json", exclude_unset=True, exclude={"note"}), names)
    for stream in recording.streams():
        _learn_stream(recording, stream, names)
    names.know("recording", [recording.manifest.name])


def _learn(value: Any, names: Pseudonyms, kind: str | None = None) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _learn(inner, names, _KINDS.get(key))
    elif isinstance(value, list):
        for inner in value:
            _learn(inner, names, kind)
    elif isinstance(value, str) and kind is not None:
        names.know(kind, [value])


def _learn_stream(recording: Recording, stream: str, names: Pseudonyms) -> None:
    schema = STREAMS[stream]
    wanted = [name for name in schema.key_names if name in _KIND_OF_KEY or name == "job_id"]
    path = recording.path / schema.file
    with open_stream(path) as file:
        for batch in stored(file, path, wanted, 65536, list(range(file.num_row_groups))):
            for name in wanted:
                column: Any = batch.column(name)
                texts = column.dictionary if pa.types.is_dictionary(column.type) else column.unique()
                for text in texts.to_pylist():
                    if name == "job_id":
                        names.know("job", [text] if text is not None and not _is_number(text) else [])
                    else:
                        names.know(_KIND_OF_KEY[name], [text])


def _is_number(job_id: str) -> bool:
    """Whether a job id is a scheduler's number, with or without an array's task or a run: it names nobody."""
    return job_id.replace("_", "").replace("#run", "").replace("+", "").isdecimal()


# -- renaming ------------------------------------------------------------------------------------------------------


def _renamed(batch: pa.RecordBatch, names: Pseudonyms) -> pa.RecordBatch:
    columns: dict[str, Any] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        texts: Any = column
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            texts = texts.cast(pa.string()).dictionary_encode()
        if is_name_type(texts.type) and field.name not in _KEPT:
            new = [None if text is None else names.name(text) for text in texts.dictionary.to_pylist()]
            texts = pa.DictionaryArray.from_arrays(texts.indices, pa.array(new, pa.string())).cast(NAME)
        columns[field.name] = texts
    return pa.RecordBatch.from_pydict(columns)


def _document(model: Any, record: Any, names: Pseudonyms) -> Any:
    return model.model_validate(_walked(record.model_dump(exclude_unset=True), names))


def _job(job: Job, names: Pseudonyms) -> Job:
    """Return a job with other names; one that only keeps its nodes goes on doing so."""
    renamed: Job = _document(Job, job, names)
    if not is_maintenance(job.name, job.user, job.gpus_per_node):
        return renamed
    return renamed.model_copy(update={"name": "MAINT", "user": job.user if job.user in ADMINS else renamed.user})


def _walked(value: Any, names: Pseudonyms, key: str = "") -> Any:
    """Return a document with other names, also where they are keys (``gpus: {v001: [0, 1]}``)."""
    if isinstance(value, dict):
        return {_key(inner, names): _walked(content, names, inner) for inner, content in value.items()}
    if isinstance(value, list):
        return [_walked(inner, names, key) for inner in value]
    if isinstance(value, str) and key not in _KEPT:
        return names.text(value) if key in {"message", "note", "title", "summary"} else names.name(value)
    return value


def _key(key: str, names: Pseudonyms) -> str:
    return key if key in _FIELD_NAMES else names.name(key)


_MODELS = (Manifest, Cluster, Event, Job, Label, Topology, Node, Gpu, Nic, Link)
_FIELD_NAMES = frozenset(name for model in _MODELS for name in model.model_fields) | _KINDS.keys() | _KEPT


def _header(recording: Recording, out: Path, names: Pseudonyms) -> dict[str, Any]:
    manifest = recording.manifest
    header = manifest.model_dump(exclude={"format", "streams", "files", "source"}, exclude_unset=True)
    # Where a recording came from, and the hashes of what it was made from, would lead back to the original.
    header = {key: value for key, value in header.items() if key not in {"cut_of", "merged"}}
    walked: dict[str, Any] = _walked(header, names)
    notes = manifest.source.get("notes", [])
    source: dict[str, Any] = {"document": "anonymised by hindcast", "notes": _walked(notes, names, "note")}
    if "licence" in manifest.source:
        source["licence"] = manifest.source["licence"]
    kept = {"origin": manifest.origin, "start": manifest.start, "end": manifest.end}
    return {**walked, **kept, "name": out.resolve().name, "source": source}
