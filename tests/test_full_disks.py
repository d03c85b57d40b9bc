"""What services say and keep when their disk is full, and when it is not any more; files of state that are damaged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.conftest import client_of, settings_at
from services.api.recordings.test_archive import ZIP
from services.kit.durable import DAMAGED, UNKEPT, replace_file, state_folder
from services.kit.errors import UserError
from services.kit.problems import RefusedError
from services.notify.receiver.store import Store as Received
from services.replay.journal import Journal
from services.replay.test_journal import entry
from services.synth.library import ensure_recording
from services.synth.make import Variant
from tests.disks import Disk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def test_a_file_that_cannot_be_replaced_stays_and_its_draft_takes_no_room(disk: Disk) -> None:
    path = disk.folder / "x.state"
    replace_file(path, [b"old"])
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, [bytes(100_000)])
    assert path.read_bytes() == b"old"
    assert not path.with_suffix(".draft").exists()
    assert state_folder(disk.folder, "HINDCAST_X_STATE_DIR") == disk.folder


def test_a_journal_says_that_it_cannot_write_and_goes_on_when_it_can(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    journal = Journal(disk.folder)
    journal.save(entry(150))
    disk.fill()
    for _ in range(3):
        assert not journal.keep(entry(250))
    with pytest.raises(RefusedError, match="cannot be written") as refused:
        journal.save(entry(250))
    assert (refused.value.status, UNKEPT._value.get()) == (507, 1)
    assert journal.load() == [entry(150)]
    disk.free()
    journal.save(entry(350))
    assert journal.load() == [entry(350)]
    assert UNKEPT._value.get() == 0
    messages = [record.message for record in caplog.records]
    assert [line.split(" folder")[0] for line in messages] == [
        "state cannot be kept, going on without",
        "state is kept again",
    ]


def test_a_receiver_whose_disk_is_full_keeps_what_it_has_taken_and_nothing_by_halves(disk: Disk) -> None:
    store = Received(disk.folder)
    disk.fill()
    refused = 0
    for number in range(20):  # a page of the file may have room for some
        if number == 15:
            disk.free()
        try:
            store.add({"alerts": [], "number": number, "words": "x" * 500})
        except OSError:
            refused += 1
    taken = store.entries(None)
    store.close()
    assert len(taken) == 20 - refused
    assert refused >= 5
    again = Received(disk.folder)
    assert again.entries(None) == taken
    again.close()


def test_an_api_whose_disk_is_full_answers_507_and_goes_on_when_it_is_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk, client_of(settings_at(tmp_path, data_dir=disk.folder)) as client:
        disk.fill()
        answers = [
            client.post("/api/v1/recordings", content=bytes(200_000), headers=ZIP),
            client.put("/api/v1/detectors/straggler/shadow", json={"shadow": True}),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["title"]) == (507, "Insufficient Storage"), answer.text
            assert "make room" in answer.json()["remedy"]
        assert client.get("/api/v1/runs").json()["items"] == []
        disk.free()
        assert client.put("/api/v1/detectors/straggler/shadow", json={"shadow": True}).is_success


def test_a_recording_that_does_not_fit_leaves_nothing_and_the_remedy(disk: Disk) -> None:
    with pytest.raises(UserError, match="the disk is full") as refused:
        ensure_recording("sakuraone-spine-loss", disk.folder / "made", Variant(scale=0.1))
    assert "a scale below 1" in refused.value.remedy
    assert list(disk.folder.iterdir()) == []


def test_a_damaged_journal_costs_that_replay_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path)
    journal.save(entry(150, "a"))
    journal.save(entry(250, "b"))
    damaged = DAMAGED._value.get()
    (tmp_path / "a.json").write_text('{"spec": {')
    assert journal.load() == [entry(250, "b")]
    assert (tmp_path / "a.json.damaged").read_text() == '{"spec": {'
    assert "damaged state set aside" in caplog.text
    assert DAMAGED._value.get() == damaged + 1


@pytest.mark.parametrize("at", [0, 4096])
def test_a_damaged_store_is_set_aside_and_the_recordings_stay(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_at(tmp_path)
    with client_of(settings) as client:
        recordings = client.get("/api/v1/recordings").json()
    path = settings.data_dir / "api.sqlite"
    whole = bytearray(path.read_bytes())
    whole[at : at + 3000] = b"\xff" * 3000
    path.write_bytes(whole)
    with client_of(settings) as client:
        assert client.get("/api/v1/recordings").json() == recordings
        assert client.get("/api/v1/runs").json()["items"] == []
    assert path.with_name("api.sqlite.damaged").read_bytes() == whole
    assert "damaged state set aside" in caplog.text
