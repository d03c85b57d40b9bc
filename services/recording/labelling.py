"""Edits the truth of a recording by hand: labels.jsonl, and its hash in recording.yaml; nothing else is touched.

New labels are checked like those of any recording before anything is written. The two files are replaced one after
the other, each at once; if that is broken off in between, the next edit completes it.
"""

import fcntl
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.kit.documents import NOT_YAML, parse_yaml
from services.kit.errors import UsageError, UserError
from services.recording.model import Label
from services.recording.reader import Recording, describe, read_lines, read_manifest, to_json_line
from services.recording.validate import validate_recording
from services.recording.writer import sha256_of

_LABELS, _MANIFEST = "labels.jsonl", "recording.yaml"
_PREPARED_LABELS, _PREPARED_MANIFEST = ".labels.jsonl.new", ".recording.yaml.new"
_HASH = re.compile(r"""(?P<before>["']?labels\.jsonl["']?:\s*\{?\s*["']?sha256["']?:\s*["']?)(?P<hash>[0-9a-f]{64})""")
_FILES = re.compile(r"^files:[ \t]*(?:\{\}[ \t]*)?\n", re.MULTILINE)
_INTEGERS = frozenset({"gpu"})


def labels_of(directory: Path) -> list[Label]:
    """Return the labels, in the file's order."""
    Recording.open(directory)
    return list(read_lines(directory / _LABELS, Label))


def add_label(directory: Path, fields: Mapping[str, Any]) -> Label:
    """Add a label; without an ``id`` it gets the next free one. UserError where it is not valid for the recording."""
    with _locked(directory):
        labels = labels_of(directory)
        taken = {label.id for label in labels}
        letter = "d" if fields.get("distractor") else "f"
        free = next(name for name in (f"{letter}{number}" for number in range(1, len(taken) + 2)) if name not in taken)
        label = _label({"id": free, **fields})
        if label.id in taken:
            raise UsageError(f"label {label.id} is there already", remedy="`edit` it, or give another --id")
        _replace(directory, [*labels, label])
    return label


def edit_label(directory: Path, label_id: str, fields: Mapping[str, Any], clear: Sequence[str] = ()) -> Label:
    """Change fields of a label, and take those in ``clear`` away. UserError where the result is not valid."""
    with _locked(directory):
        labels = labels_of(directory)
        place = _place(labels, label_id)
        content = labels[place].model_dump(exclude_unset=True)
        unknown = [name for name in clear if name not in content or Label.model_fields[name].is_required()]
        if unknown:
            raise UsageError(f"label {label_id} has no {unknown[0]} to take away", remedy="see `list`")
        label = _label({**{key: value for key, value in content.items() if key not in clear}, **fields})
        labels[place] = label
        _replace(directory, labels)
    return label


def remove_label(directory: Path, label_id: str) -> None:
    """Remove a label. UserError where there is none of that id."""
    with _locked(directory):
        labels = labels_of(directory)
        del labels[_place(labels, label_id)]
        _replace(directory, labels)


def parse_entity(text: str, where: str = "") -> dict[str, str | int]:
    """Return the entity of ``node=v041,gpu=3``. UserError where it is not written so; `where` says what it is in."""
    entity: dict[str, str | int] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        number = key in _INTEGERS and value.isascii() and value.isdecimal() and len(value) < 6
        if not equals or not key or not value or key in entity or (key in _INTEGERS and not number):
            raise UsageError(
                f"{where}: {text!r} is no entity" if where else f"{text!r} is no entity",
                remedy="write it as node=v041,gpu=3 or switch=leaf-1,port=Ethernet8",
            )
        entity[key] = int(value) if number else value
    return entity


def _place(labels: list[Label], label_id: str) -> int:
    for place, label in enumerate(labels):
        if label.id == label_id:
            return place
    there = ", ".join(label.id for label in labels) or "no label at all"
    raise UsageError(f"no label {label_id!r}", remedy=f"there is {there}")


def _label(fields: Mapping[str, Any]) -> Label:
    try:
        label = Label.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"the label: {describe(error)}", remedy="give what is missing or wrong") from error
    if not math.isfinite(label.within_s):
        raise UsageError("within_s is no number of seconds", remedy="give a number")
    return label


# -- writing -------------------------------------------------------------------------------------------------------


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one edit at a time at a recording, and complete one that was broken off."""
    read_manifest(directory)
    try:
        handle = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            _complete(directory)
            yield
        finally:
            os.close(handle)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written: {error}", remedy="check its permissions") from error


def _complete(directory: Path) -> None:
    """Finish an edit whose labels were replaced and whose manifest was not; drop one that came less far."""
    prepared = directory / _PREPARED_MANIFEST
    if prepared.exists():
        files = (parse_yaml(prepared.read_text(encoding="utf-8")) or {}).get("files", {})
        wanted = files.get(_LABELS, {}).get("sha256")
        if (directory / _LABELS).exists() and sha256_of(directory / _LABELS) == wanted:
            prepared.replace(directory / _MANIFEST)
    for name in (_PREPARED_LABELS, _PREPARED_MANIFEST):
        (directory / name).unlink(missing_ok=True)


def _replace(directory: Path, labels: list[Label]) -> None:
    ordered = sorted(labels, key=lambda label: (label.onset, label.id))
    text = "".join(f"{to_json_line(label)}\n" for label in ordered)
    _check(directory, text)
    _write(directory / _PREPARED_LABELS, text)
    manifest = _with_hash(directory / _MANIFEST, sha256_of(directory / _PREPARED_LABELS))
    _write(directory / _PREPARED_MANIFEST, manifest)
    (directory / _PREPARED_LABELS).replace(directory / _LABELS)
    (directory / _PREPARED_MANIFEST).replace(directory / _MANIFEST)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _check(directory: Path, text: str) -> None:
    """Raise UserError with every violation that the labels would be, as `hindcast validate` finds them."""
    with tempfile.TemporaryDirectory() as name:
        beside = Path(name, directory.resolve().name)
        beside.mkdir()
        for file in (_MANIFEST, "topology.json", "jobs.jsonl"):
            if (directory / file).exists():
                (beside / file).symlink_to((directory / file).resolve())
        (beside / _LABELS).write_text(text, encoding="utf-8")
        # What the copy lacks is listed too; only what concerns the labels themselves is asked for. Not their hash.
        found = [one for one in validate_recording(beside) if one.file == _LABELS and one.where]
    if found:
        lines = "".join(f"\n  {one.problem} ({one.remedy})" for one in found)
        raise UsageError(f"the labels would not be valid:{lines}", remedy="correct what is named")


def _with_hash(path: Path, digest: str) -> str:
    """Return recording.yaml with another hash for labels.jsonl and every other byte as it was."""
    with path.open(encoding="utf-8", newline="") as file:
        text = file.read()
    entry = f"  {_LABELS}:\n    sha256: {digest}\n"
    if _HASH.search(text):
        changed = _HASH.sub(rf"\g<before>{digest}", text, count=1)
    elif _FILES.search(text):
        changed = _FILES.sub(f"files:\n{entry}", text, count=1)
    else:
        changed = f"{text}{'' if text.endswith(chr(10)) else chr(10)}files:\n{entry}"
    before, after = _files_apart(text), _files_apart(changed)
    if before[0] != after[0] or after[1] != {**before[1], _LABELS: {"sha256": digest}}:
        raise UserError(
            f"{path}: the hash of {_LABELS} cannot be replaced in it",
            remedy=f"write `files:` with `{_LABELS}: {{sha256: ...}}` as a mapping of its own",
        )
    return changed


def _files_apart(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        content = parse_yaml(text)
    except NOT_YAML:
        return {}, {}
    files = content.pop("files", None) or {}
    return content, files
