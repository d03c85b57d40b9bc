"""`hindcast backup` and `restore`: what is put back is what was there, and nothing is put back by halves."""

import fcntl
import io
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.store import MIGRATIONS, Store
from services.cli.conftest import hindcast
from services.detect.store import SnapshotStore
from services.detect.test_detect import STORED, TOPICS
from services.kit.errors import UserError
from services.replay.journal import Journal
from services.replay.test_journal import entry


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """State of the API, of detect and of replay where the settings have it, and the API's store open in between."""
    api, stack = tmp_path / "api", tmp_path / "stack"
    monkeypatch.setenv("HINDCAST_API_DATA_DIR", str(api))
    monkeypatch.setenv("HINDCAST_STACK_STATE_DIR", str(stack))
    SnapshotStore(stack / "services" / "detect", TOPICS).save(STORED)
    Journal(stack / "services" / "replay").save(entry(150, "a"))
    (api / "recordings" / "one").mkdir(parents=True)
    (api / "recordings" / "one" / "dcgm.parquet").write_bytes(b"large")
    store = Store(api / "api.sqlite")
    with store.migrated(), store.writing() as db:
        db.execute("INSERT INTO shadow VALUES ('straggler')")
        db.execute("COMMIT")
        db.execute("BEGIN")
        yield tmp_path


def called(*arguments: str | Path) -> str:
    done = hindcast(*arguments, catch=False)
    assert done.exit_code == 0, done.output
    return done.output


def backed_up(folder: Path, *more: str) -> Path:
    file = folder / "backup.tar.gz"
    called("backup", "--out", file, *more)
    return file


def test_what_is_restored_is_what_was_there(kept: Path) -> None:
    file = backed_up(kept)
    assert file.stat().st_mode & 0o777 == 0o600
    called("restore", file, "--into", kept / "new")
    assert Store(kept / "new" / "api" / "api.sqlite").one("SELECT detector FROM shadow")["detector"] == "straggler"  # type: ignore[index] # a row
    assert SnapshotStore(kept / "new" / "services" / "detect", TOPICS).load(STORED.unit) == STORED
    assert Journal(kept / "new" / "services" / "replay").load() == [entry(150, "a")]
    assert not (kept / "new" / "api" / "recordings").exists()


def test_recordings_and_files_come_along_where_asked(kept: Path) -> None:
    calibration = kept / "calibration.json"
    calibration.write_text("{}")
    file = kept / "other.tar.gz"
    called("backup", "--out", file, "--recordings", calibration, kept / "api")
    called("restore", file, "--into", kept / "new")
    assert (kept / "new" / "calibration.json").read_text() == "{}"
    assert (kept / "new" / "api" / "recordings" / "one" / "dcgm.parquet").read_bytes() == b"large"


def test_what_is_there_is_replaced_only_where_asked_and_kept_beside(kept: Path) -> None:
    file = backed_up(kept)
    journal = Journal(kept / "stack" / "services" / "replay")
    journal.save(entry(350, "a"))
    with pytest.raises(UserError, match="is there already"):
        called("restore", file)
    assert journal.load() == [entry(350, "a")]
    called("restore", file, "--replace")
    assert journal.load() == [entry(150, "a")]
    assert Journal(kept / "stack" / "services.before-restore" / "replay").load() == [entry(350, "a")]


def test_what_is_in_use_is_not_replaced(kept: Path) -> None:
    file = backed_up(kept)
    with (kept / "stack" / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="services: is in use"):
            called("restore", file, "--replace")
    assert not (kept / "api.before-restore").exists()


def test_a_damaged_backup_changes_nothing(kept: Path) -> None:
    file = backed_up(kept)
    whole = file.read_bytes()
    for damaged in (whole[:-200], whole[: len(whole) // 2] + b"\xff" * 50 + whole[len(whole) // 2 + 50 :], b"", b"x"):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="not a whole backup"):
            called("restore", file, "--into", kept / "new")
    assert not (kept / "new").exists()


def test_a_backup_that_is_not_there_is_a_matter_of_usage(kept: Path) -> None:
    with pytest.raises(UserError, match="no such file") as refused:
        called("restore", kept / "nowhere.tar.gz", "--into", kept / "new")
    assert (refused.value.exit_code, "another backup" in refused.value.remedy) == (2, False)


def test_a_backup_that_points_elsewhere_is_refused(kept: Path) -> None:
    file = kept / "evil.tar.gz"
    for manifest in (
        {"parts": {"0-api": "/nowhere"}, "files": {"0-api/../../evil": "0" * 64}},
        {"parts": {"0-../../evil": "/nowhere"}, "files": {}},
    ):
        text = json.dumps(manifest).encode()
        with tarfile.open(file, "w:gz") as archive:
            info = tarfile.TarInfo("backup.json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
        with pytest.raises(UserError, match="outside of the backup"):
            called("restore", file, "--into", kept / "new")


def test_before_a_migration_the_store_is_copied(kept: Path) -> None:
    path = kept / "old.sqlite"
    with sqlite3.connect(path) as db:
        for script in (MIGRATIONS[0], "PRAGMA user_version = 1", "INSERT INTO shadow VALUES ('old')"):
            db.executescript(script)
    db.close()
    Store(path).migrate()
    assert Store(path).one("PRAGMA user_version")[0] == len(MIGRATIONS)  # type: ignore[index] # a row
    before = Store(path.with_name("old.sqlite.tables-1"))
    assert before.one("PRAGMA user_version")[0] == 1  # type: ignore[index] # a row
    assert before.one("SELECT detector FROM shadow")["detector"] == "old"  # type: ignore[index] # a row
    Store(path).migrate()
    assert len(list(kept.glob("old.sqlite.*"))) == 1
