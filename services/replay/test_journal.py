"""A state file is the old one or the new one, whenever the machine dies."""

import os
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.replay.journal import Entry, Journal
from services.replay.spec import ReplaySpec


def entry(position_ms: int = 99, name: str = "a") -> Entry:
    spec = ReplaySpec(
        name=name, cluster="c", recording="/r", from_ms=100, to_ms=900, shift="now", shift_ms=5, target="prometheus",
        detectors={"straggler": {"shadow": True}},
    )  # fmt: skip
    return Entry(
        spec=spec, speed=1, state="running", generation=2, warm_from_ms=100, from_ms=100, position_ms=position_ms
    )


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state")
    saved = [entry(150, "a"), entry(250, "b")]
    for one in saved:
        journal.save(entry(100, one.spec.name))
        journal.save(one)
    loaded = Journal(tmp_path / "state").load()
    assert loaded == saved
    assert loaded[0].public().detectors == {"straggler": {"shadow": True}}
    journal.remove("a")
    assert journal.load() == saved[1:]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_crash_while_saving_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    journal = Journal(tmp_path)
    journal.save(entry(150))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, die)
        with pytest.raises(KeyboardInterrupt):
            journal.save(entry(250))
    assert journal.load() == [entry(150)]
    journal.save(entry(350))
    assert journal.load() == [entry(350)]


def test_a_half_written_draft_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "a.draft").write_text('{"spec": {')
    assert Journal(tmp_path).load() == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="state cannot be kept there") as caught:
        Journal(tmp_path / "file" / "state")
    assert caught.value.exit_code == 2
