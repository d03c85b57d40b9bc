import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.kit.errors import UserError
from services.recording.conftest import END, START
from services.recording.labelling import add_label, edit_label, labels_of, parse_entity, remove_label
from services.recording.validate import validate_recording


def fault(**changes: Any) -> dict[str, Any]:
    given = {"fault": "thermal_throttle", "entity": {"node": "n1"}, "onset": START, "end": END, "within_s": 60}
    return {**given, **changes}


def hashes(directory: Path) -> dict[str, str]:
    paths = (path for path in directory.iterdir() if path.name not in {"labels.jsonl", "recording.yaml"})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_label_is_added_and_nothing_else_changes(small: Path) -> None:
    before, manifest = hashes(small), (small / "recording.yaml").read_text()
    label = add_label(small, fault(note="fan wall", also=[{"node": "n1", "gpu": 1}]))
    assert label.id == "f2"
    assert validate_recording(small) == []
    assert [one.id for one in labels_of(small)] == ["d1", "f2", "f1"]
    assert hashes(small) == before
    changed = [
        pair
        for pair in zip(manifest.splitlines(), (small / "recording.yaml").read_text().splitlines(), strict=True)
        if pair[0] != pair[1]
    ]
    assert len(changed) == 1, "one line of recording.yaml: the hash of labels.jsonl"


def test_a_label_is_edited_and_removed(small: Path) -> None:
    edit_label(small, "f1", {"within_s": 90.0, "cause": "psu_failure"}, clear=["impact", "job_id"])
    label = next(one for one in labels_of(small) if one.id == "f1")
    assert (label.within_s, label.cause, label.impact, label.job_id, label.root) == (
        90.0,
        "psu_failure",
        None,
        None,
        True,
    )
    assert validate_recording(small) == []
    remove_label(small, "f1")
    remove_label(small, "d1")
    assert labels_of(small) == []
    assert validate_recording(small) == []


def test_a_recording_without_labels_gets_the_file(small: Path) -> None:
    (small / "labels.jsonl").unlink()
    content = yaml.safe_load((small / "recording.yaml").read_text())
    del content["files"]["labels.jsonl"]
    (small / "recording.yaml").write_text(yaml.safe_dump(content))
    assert add_label(small, fault(distractor=True, fault="none", within_s=0)).id == "d1"
    assert validate_recording(small) == []


@pytest.mark.parametrize("files", ["", "files: {}\n", "files:\n  'labels.jsonl': {sha256: '" + "0" * 64 + "'}\n"])
def test_manifests_written_by_hand_keep_their_form(small: Path, files: str) -> None:
    content = yaml.safe_load((small / "recording.yaml").read_text())
    del content["files"]
    text = "# ours\n" + yaml.safe_dump(content) + files
    (small / "recording.yaml").write_text(text)
    add_label(small, fault())
    after = (small / "recording.yaml").read_text()
    assert after.startswith("# ours\n")
    assert validate_recording(small) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (fault(entity={"node": "n9"}), "n9"),
        (fault(entity={"gpu": 1}), "pinned to"),
        (fault(fault="gremlins"), "gremlins"),
        (fault(onset=START - 1), "outside the recording"),
        (fault(end=START - 1), "before onset"),
        (fault(within_s=0), "within_s is 0"),
        (fault(within_s=float("nan")), "within_s"),
        (fault(within_s=float("inf")), "within_s"),
        (fault(id="f1"), "there already"),
        (fault(job_id="7"), "jobs.jsonl"),
        (fault(root=True), "root without an incident"),
        (fault(incident="i1", root=True), "has a root already"),
        ({"fault": "straggler"}, "entity"),
    ],
)
def test_what_is_not_valid_is_refused_and_nothing_written(small: Path, fields: dict[str, Any], words: str) -> None:
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    with pytest.raises(UserError, match=words):
        add_label(small, fields)
    assert {path.name: path.read_bytes() for path in small.iterdir()} == before


def test_an_unknown_id_and_an_unknown_field_are_named(small: Path) -> None:
    with pytest.raises(UserError, match="no label 'f9'"):
        remove_label(small, "f9")
    with pytest.raises(UserError, match="no cause to take away"):
        edit_label(small, "f1", {}, clear=["cause"])
    with pytest.raises(UserError, match="no entity to take away"):
        edit_label(small, "f1", {}, clear=["entity"])


@pytest.mark.parametrize("completed", [1, 2])
def test_an_edit_that_was_broken_off_is_completed_or_dropped(
    small: Path, monkeypatch: pytest.MonkeyPatch, completed: int
) -> None:
    """Break off before the first or before the second of the two files is replaced."""
    replace, calls = Path.replace, []

    def broken(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == completed:
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        add_label(small, fault())
    monkeypatch.undo()
    remove_label(small, "d1")
    assert [one.id for one in labels_of(small)] == (["f1"] if completed == 1 else ["f2", "f1"])
    assert validate_recording(small) == []
    assert not [path for path in small.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("text", ["", "node", "node=", "node=a,node=b", "node=a,gpu=x", "=a", "gpu=-1"])
def test_what_is_no_entity(text: str) -> None:
    with pytest.raises(UserError, match="no entity"):
        parse_entity(text)


def test_entities() -> None:
    assert parse_entity("node=7, gpu=3") == {"node": "7", "gpu": 3}
    assert parse_entity("switch=leaf-1,port=Ethernet8") == {"switch": "leaf-1", "port": "Ethernet8"}
