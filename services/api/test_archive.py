"""Uploads: what is a recording comes in whole, everything else is refused and leaves nothing behind."""

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


def test_an_upload_that_is_too_large_is_broken_off(tmp_path: Path) -> None:
    with client_of(settings_at(tmp_path, upload_bytes=1000)) as client:
        claimed = client.post("/api/v1/recordings", content=bytes(2000), headers=ZIP)
        unsaid = client.post("/api/v1/recordings", content=_dripping(), headers=ZIP)
        assert (claimed.status_code, unsaid.status_code) == (413, 413)
        assert "HINDCAST_API_UPLOAD_BYTES" in unsaid.json()["remedy"]


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
