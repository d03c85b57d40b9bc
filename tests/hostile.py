"""A recording in which every name and text that somebody else can choose tries to become markup, code or a template."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from services.recording.model import Event, Job, Label, Topology
from services.recording.reader import Recording
from services.recording.writer import RecordingWriter

PAYLOAD = "<img src=x onerror=\"top.owned='{0}'\"><script>top.owned='{0}'</script>"
"""Runs where it is taken as HTML; what it sets says whose text it was."""
LINK = "[here](javascript:top.owned='{0}') <a href=\"javascript:top.owned='{0}'\">here</a> {{{{ 7 * 7 }}}}"
"""Runs where it is taken as Markdown, and somebody clicks; is computed where it is taken as a template."""
STEERING = "\u202e\x1b]0;owned\x07\x1b[2J"
"""Turns the direction of reading, names a terminal's window and clears it."""


def hostile_recording(source: Path, out: Path, *, node: str, job_id: str) -> Path:
    """Write the recording `source` to `out`: one node, one job, users, titles, notes and log lines are hostile."""
    recording = Recording.open(source)
    names = {name: f"{name}{PAYLOAD.format(kind)}" for kind, name in (("node", node), ("job", job_id))}
    with RecordingWriter(out) as writer:
        for stream in recording.streams():
            for batch in recording.batches(stream):
                interval_s = recording.manifest.streams[stream].interval_s
                writer.write(stream, _renamed(batch, names), interval_s=interval_s)
        writer.write_events(_made(Event, one, names, message="log line") for one in recording.events())
        writer.write_jobs(_made(Job, one, names, name="job's name", user="user") for one in recording.jobs())
        writer.write_labels(_made(Label, one, names, note="note") for one in recording.labels())
        header = recording.manifest.model_dump(exclude={"format", "streams", "files"})
        for field in ("title", "summary"):
            header[field] += _hostile(field)
        topology = _walked(recording.topology.model_dump(mode="json", exclude_unset=True), names)
        writer.finish(header | {"name": out.name}, Topology.model_validate(topology))
    return out


def _hostile(kind: str) -> str:
    return f" {PAYLOAD.format(kind)} {LINK.format(kind)} {STEERING}"


def _made(model: type[Any], record: Any, names: Mapping[str, str], **texts: str) -> Any:
    document = _walked(record.model_dump(mode="json", exclude_unset=True), names)
    for field, kind in texts.items():
        if document.get(field) is not None:
            document[field] += _hostile(kind)
    return model.model_validate(document)


def _walked(value: Any, names: Mapping[str, str]) -> Any:
    text = json.dumps(value)
    for name, hostile in names.items():
        text = text.replace(json.dumps(name), json.dumps(hostile))
    return json.loads(text)


def _renamed(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(one, names) for one in batch.columns], names=batch.schema.names)


def _column(column: Any, names: Mapping[str, str]) -> Any:
    if not pa.types.is_dictionary(column.type):
        return column
    texts = [names.get(text, text) for text in column.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(column.indices, pa.array(texts))
