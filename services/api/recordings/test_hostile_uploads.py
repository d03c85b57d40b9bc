"""Uploads that are small, and as large as they may be once they are read: memory stays where it is."""

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from services.api.recordings.test_archive import FILES, zipped
from tests.mangled import FOUND

_MORE = 120_000_000
"""Bytes that an import may take beyond what the program has before."""
_NAME = "n" * 10_000_000
"""In an upload of 250 kB."""
_FOOTER = FOUND / "test_damaged.test_a_damaged_stream" / "a-histogram-of-the-wrong-length"
"""A footer that ends the process of whoever asks pyarrow for its columns' sizes."""
_IMPORT = f"""
import re, resource, sys
from pathlib import Path
from services.api.recordings.archive import import_archive
from services.api.conftest import settings_at
from services.kit.problems import RefusedError
folder = Path(sys.argv[1])
settings = settings_at(folder)
held = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (held + {_MORE}, held + {_MORE}))
for archive in sys.argv[2:]:
    try:
        print(import_archive(Path(archive), folder / "recordings", settings).name)
    except RefusedError as error:
        print(error.status, str(error).splitlines()[0][:60])
"""


def recording(**files: bytes) -> bytes:
    """Return the archive of a recording with some files that are others, and a manifest that says so."""
    changed = FILES | {name.replace("_", "."): content for name, content in files.items()}
    manifest = yaml.safe_load(changed["recording.yaml"])
    for listed, ending in ((manifest["streams"], ".parquet"), (manifest["files"], "")):
        for name in listed:
            listed[name]["sha256"] = hashlib.sha256(changed[name + ending]).hexdigest()
    return zipped(changed | {"recording.yaml": yaml.safe_dump(manifest).encode()})


def named_in_a_stream(name: str) -> bytes:
    table = pq.read_table(io.BytesIO(FILES["dcgm.parquet"]))
    nodes = table["node"].to_pylist()
    known = list(dict.fromkeys(nodes))
    codes = pa.array([known.index(node) for node in nodes], pa.int32())
    names = pa.DictionaryArray.from_arrays(codes, pa.array([name, *known[1:]]))
    out = io.BytesIO()
    pq.write_table(table.set_column(table.schema.get_field_index("node"), "node", names), out, compression="zstd")
    return out.getvalue()


def event(message: str) -> bytes:
    return json.dumps(json.loads(FILES["events.jsonl"].splitlines()[0]) | {"message": message}).encode() + b"\n"


def test_what_is_small_and_grows_is_refused_or_read_in_little_memory(tmp_path: Path) -> None:
    topology = FILES["topology.json"].replace(b'"v001"', b'"%s"' % _NAME.encode())
    uploads = {
        "422 topology.json: the name nnn": recording(topology_json=topology),
        "422 dcgm.parquet: column node": recording(dcgm_parquet=named_in_a_stream(2 * _NAME)),
        "422 dcgm.parquet: not a readable": recording(dcgm_parquet=_FOOTER.read_bytes()),
        "422 the recording is not valid: dcgm.parquet": recording(dcgm_parquet=named_in_a_stream(_NAME)),
        "413 events.jsonl: line 1 is more": recording(events_jsonl=event("m" * 30_000_000)),
        "422 the recording is not valid: events.jsonl": recording(events_jsonl=b"x\n" * 100_000),
        "vela-healthy": recording(events_jsonl=event("m") * 300_000),
    }
    archives = [tmp_path / f"{number}.zip" for number in range(len(uploads))]
    for archive, content in zip(archives, uploads.values(), strict=True):
        archive.write_bytes(content)
    command = [sys.executable, "-c", _IMPORT, *map(str, (tmp_path, *archives))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())
    printed = done.stdout.splitlines()
    assert len(printed) == len(uploads), done.stderr[-1000:]
    assert [(one, words) for one, words in zip(printed, uploads, strict=True) if not one.startswith(words)] == []
