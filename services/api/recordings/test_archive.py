"""Uploads: what is a recording comes in whole, everything else is refused and leaves nothing behind."""

import asyncio
import errno
import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.api.conftest import SMALL, Client, client_of, settings_at
from services.api.recordings.archive import LEFT
from services.kit.archive_members import opened
from services.kit.errors import UserError

FILES = {path.name: path.read_bytes() for path in sorted((SMALL / "vela-healthy").iterdir())}
ZIP, TAR = {"content-type": "application/zip"}, {"content-type": "application/gzip"}


def zipped(files: dict[str, bytes], prefix: str = "") -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
    return whole.getvalue()


def tarred(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in more:
            archive.addfile(info)
    return whole.getvalue()


def member(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def symlink_in_zip() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        info = zipfile.ZipInfo("labels.jsonl")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return whole.getvalue()


def lying_zip() -> bytes:
    """A member whose header says that it is small."""
    content = zipped({"recording.yaml": bytes(4 << 20)})
    return content.replace((4 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))


def long_header() -> bytes:
    """A pax header that unpacks to far more than any file name."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("recording.yaml")
        info.pax_headers = {"comment": "x" * (3 << 19)}
        archive.addfile(info)
    return whole.getvalue()


def chain() -> bytes:
    """A name after a name after a name."""
    name = member("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    name.size = 10
    link = name.tobuf(tarfile.GNU_FORMAT) + b"recording\0".ljust(512, b"\0")
    return gzip.compress(2000 * link + member("x", tarfile.SYMTYPE, "y").tobuf())


def sparse() -> bytes:
    """A file whose map of what it holds is longer than memory."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("recording.yaml")
        info.pax_headers = {f"GNU.sparse.{name}": value for name, value in (("major", "1"), ("minor", "0"))}
        archive.addfile(info)
    return whole.getvalue()


def sparse_of_old() -> bytes:
    """A file whose map goes on in a block that is not what it should be."""
    info = bytearray(member("recording.yaml", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    info[482] = 1
    info[148:156] = b"%06o\0 " % (sum(info[:148]) + 8 * 32 + sum(info[156:]))
    return gzip.compress(bytes(info) + b"1" * 100)


def dense_zip() -> bytes:
    """A member of 64 MiB in some hundred bytes, which zipfile would unpack in one piece."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_BZIP2) as archive, archive.open("recording.yaml", "w") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    return whole.getvalue()


def without(name: str) -> dict[str, bytes]:
    return {file: content for file, content in FILES.items() if file != name}


def with_manifest(text: str) -> bytes:
    return zipped(FILES | {"recording.yaml": text.encode()})


@pytest.mark.parametrize(
    "archive",
    [zipped(FILES), zipped(FILES, "vela-healthy/"), tarred(FILES), tarred({f"./{n}": c for n, c in FILES.items()})],
    ids=["zip", "zip of a folder", "tar", "tar of ."],
)
def test_a_recording_comes_in_whole(tmp_path: Path, archive: bytes) -> None:
    with client_of(settings_at(tmp_path, library=())) as client:
        answer = client.post("/api/v1/recordings", content=archive, headers=ZIP)
        assert answer.status_code == 201, answer.text
        assert (answer.json()["name"], answer.json()["read_only"]) == ("vela-healthy", False)
        target = tmp_path / "data" / "recordings" / "vela-healthy"
        assert {path.name: path.read_bytes() for path in target.iterdir()} == FILES
        assert client.post("/api/v1/recordings", content=archive, headers=ZIP).status_code == 409
        assert client.delete("/api/v1/recordings/vela-healthy").status_code == 204
        assert client.get("/api/v1/recordings").json() == []
        assert list((tmp_path / "data" / "recordings").iterdir()) == []


def test_what_comes_in_takes_no_place_of_a_recording_that_the_library_has(tmp_path: Path) -> None:
    with client_of(settings_at(tmp_path)) as client:
        before = client.get("/api/v1/recordings/vela-healthy").json()
        answer = client.post("/api/v1/recordings", content=zipped(FILES), headers=ZIP)
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "there is a recording vela-healthy, in a library that is only read",
        )
        assert client.get("/api/v1/recordings/vela-healthy").json() == before
        assert list((tmp_path / "data" / "recordings").iterdir()) == []


ATTACKS: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "up and out": (lambda: zipped(FILES, "../../"), 422, "a name that no file"),
    "up and out, tar": (lambda: tarred({"../recording.yaml": b"x"}), 422, "a name that no file"),
    "absolute": (lambda: tarred({"/var/recording.yaml": b"x"}), 422, "a name that no file"),
    "backslashes": (lambda: zipped({"..\\..\\recording.yaml": b"x"}), 422, "a name that no file"),
    "hidden": (lambda: zipped({".ssh": b"x"}), 422, "a name that no file"),
    "folders": (lambda: zipped({"a/b/recording.yaml": b"x"}), 422, "a name that no file"),
    "two recordings": (lambda: zipped({"a/recording.yaml": b"x", "b/recording.yaml": b"x"}), 422, "several folders"),
    "symlink": (lambda: tarred(FILES, member("more", tarfile.SYMTYPE, "/etc/passwd")), 422, "no regular file"),
    "hard link": (lambda: tarred(FILES, member("more", tarfile.LNKTYPE, "/etc/passwd")), 422, "no regular file"),
    "device": (lambda: tarred(FILES, member("more", tarfile.CHRTYPE)), 422, "no regular file"),
    "pipe": (lambda: tarred(FILES, member("more", tarfile.FIFOTYPE)), 422, "no regular file"),
    "symlink in a zip": (symlink_in_zip, 422, "no regular file"),
    "twice": (lambda: tarred(FILES | {"./labels.jsonl": b""}), 422, "labels.jsonl twice"),
    "twice but for case": (lambda: zipped({"recording.yaml": b"x", "Recording.yaml": b"x"}), 422, "twice"),
    "bomb": (lambda: zipped({"recording.yaml": bytes(8 << 20)}), 413, "unpacked"),
    "bomb in a tar": (lambda: tarred({"recording.yaml": bytes(8 << 20)}), 413, "unpacked"),
    "a lying header": (lying_zip, 422, "damaged"),
    "a long header": (long_header, 422, "header"),
    "a chain of names": (chain, 422, "no regular file"),
    "a sparse file": (sparse, 422, "more than its name"),
    "a sparse file of old": (sparse_of_old, 422, "no regular file"),
    "a dense zip": (dense_zip, 422, "neither stored nor deflated"),
    "many files": (lambda: zipped({f"f{number}": b"" for number in range(100)}), 422, "more than 64"),
    "cut short": (lambda: zipped(FILES)[:-200], 422, "damaged"),
    "cut short, tar": (lambda: tarred(FILES)[:-2000], 422, "damaged"),
    "noise": (lambda: gzip.compress(b"noise" * 1000), 422, "damaged"),
    "nothing": (lambda: b"", 415, "neither"),
    "text": (lambda: b"recording.yaml: none", 415, "neither"),
    "no manifest": (lambda: zipped(without("recording.yaml")), 422, "no recording.yaml"),
    "no stream": (lambda: zipped(without("dcgm.parquet")), 422, "dcgm.parquet"),
    "another's content": (
        lambda: zipped(FILES | {"events.jsonl": FILES["events.jsonl"] + b"\n{}"}),
        422,
        "events.jsonl",
    ),
    "aliases": (lambda: with_manifest("a: &a [x, x]\nb: [*a, *a]\n"), 422, "aliases"),
    "no day": (lambda: with_manifest("start: 2024-99-99\n"), 422, "not YAML: month must be in 1..12"),
    "depth": (lambda: with_manifest("a: " + "[" * 5000), 422, "nests too deep"),
    "a name with a path": (
        lambda: with_manifest(FILES["recording.yaml"].decode().replace("name: vela-healthy", "name: ../../escaped", 1)),
        422,
        "name: String should match",
    ),
    "a rubbish stream": (lambda: zipped(FILES | {"dcgm.parquet": b"PAR1" + bytes(100) + b"PAR1"}), 422, "dcgm.parquet"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_everything_else_is_refused_and_leaves_nothing(tmp_path: Path, attack: str) -> None:
    make, status, words = ATTACKS[attack]
    with client_of(settings_at(tmp_path, library=(), unpacked_bytes=2 << 20)) as client:
        answer = client.post("/api/v1/recordings", content=make(), headers=TAR)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert words in answer.json()["detail"]
        assert answer.json()["remedy"]
        assert str(tmp_path) not in answer.text
        assert client.get("/api/v1/recordings").json() == []
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert {path for path in left if not path.startswith("data/api.")} <= {"data", "data/recordings"}


def test_long_names_are_taken_and_other_extended_headers_are_not(tmp_path: Path) -> None:
    deep = "/".join(["folder" * 10] * 5)
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        path = tmp_path / f"{form}.tar"
        with tarfile.open(path, "w", format=form) as archive:
            name = deep if form != tarfile.USTAR_FORMAT else deep[:150]
            for file, content in ((f"{name}/one", b"1" * 600), ("two", b"")):
                info = tarfile.TarInfo(file)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        with opened(path, UserError) as members:
            assert [(one.name, one.size, one.open().__enter__().read(1000)) for one in members] == [
                (f"{name}/one", 600, b"1" * 600),
                ("two", 0, b""),
            ]


def test_what_a_crash_has_left_goes_at_the_next_start(tmp_path: Path) -> None:
    recordings = tmp_path / "data" / "recordings"
    for name in (".import-1/unpacked/recording", ".gone.deleted", "kept"):
        (recordings / name).mkdir(parents=True)
    (recordings / f"{LEFT}upload").write_bytes(b"x")
    with client_of(settings_at(tmp_path)):
        assert [path.name for path in recordings.iterdir()] == ["kept"]


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, folder: Path, *__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr("services.api.recordings.archive._write", full)
    with client_of(settings_at(tmp_path, library=())) as client:
        answer = client.post("/api/v1/recordings", content=zipped(FILES), headers=ZIP)
        assert (answer.status_code, answer.json()["detail"]) == (507, "the disk is full")


def test_an_upload_that_is_too_large_is_broken_off(tmp_path: Path) -> None:
    with client_of(settings_at(tmp_path, upload_bytes=1000)) as client:
        claimed = client.post("/api/v1/recordings", content=bytes(2000), headers=ZIP)
        unsaid = client.post("/api/v1/recordings", content=_dripping(), headers=ZIP)
        assert (claimed.status_code, unsaid.status_code) == (413, 413)
        assert "HINDCAST_API_UPLOAD_BYTES" in unsaid.json()["remedy"]


@pytest.mark.parametrize("path", ["recordings", "labels"])
def test_a_body_that_does_not_come_is_not_waited_for(api: Client, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr("services.kit.middleware._PATIENCE_S", 0.05)
    answer = api.post(f"/api/v1/{path}", content=stuck(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (408, "application/problem+json")
    assert answer.json()["remedy"].startswith("send it again")


async def _dripping() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield bytes(100)


def test_rows_that_take_no_place_in_a_file_count(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"timestamp": pa.array([0] * 300_000, pa.timestamp("ms", "UTC"))}), path)
    assert path.stat().st_size < 10_000
    with client_of(settings_at(tmp_path, library=(), rows=200_000)) as client:
        archive = zipped(FILES | {"dcgm.parquet": path.read_bytes()})
        answer = client.post("/api/v1/recordings", content=archive, headers=ZIP)
        assert answer.status_code == 413
        assert "rows" in answer.json()["detail"]


def test_a_body_of_json_is_limited(api: Client) -> None:
    note = {"run": "0123456789ab", "mark": "right", "note": "x" * (2 << 20)}
    answer = api.post("/api/v1/labels", json=note)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
