"""Files that people write or send, and files of state, when they are damaged: read, or refused with what is wrong."""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
import yaml

from detectors.engine.state import StateError
from detectors.job_health.examples import hugging_face, megatron, torchtitan
from detectors.job_health.reports import reports_of
from services.api.conftest import settings_at
from services.api.recordings.archive import import_archive
from services.api.recordings.test_archive import FILES, tarred, zipped
from services.backtest.tickets import read_tickets
from services.detect.choices import load_choices, load_incident_config
from services.detect.store import SnapshotStore, Stored
from services.kit.access import tokens_in
from services.kit.errors import UserError
from services.recording.identity import read_aliases
from services.recording.importers import heap
from services.replay.journal import Entry, Journal
from services.replay.spec import ReplaySpec
from services.synth.library import LIBRARY
from services.synth.story.scenario import load_scenario
from tests.mangled import fuzzed, survives

TICKETS = b"""id,title,host,opened,closed,started,fault,entity,gpu_hours_lost
1,GPU off the bus,n1,2026-03-04T09:12:00Z,2026-03-04T10:12:00Z,2026-03-04 09:10,gpu_lost,node=n1 gpu=3,12.5
2,slow job,n2,04/Mar/26 9:12 AM,,,,,
"""
ALIASES = b"gpu07: [10.0.0.7, gpu07-bmc]\ngpu08:\n- a\ngpu09:\n"
DETECTORS = b"""power_throttle: {confirm_readings: 3}
straggler:
  shadow: true
false_alarms_per_100_node_days: 0.5
incidents: {hold_s: 60}
"""
TOKENS = yaml.safe_dump([{"name": "ann", "role": "viewer", "sha256": "0" * 64}]).encode()
SCENARIO, PROFILE = ((LIBRARY / name).read_bytes() for name in ("vela-power-brake/scenario.yaml", "profiles/vela.yaml"))
SPEC = ReplaySpec(
    name="a", cluster="c", recording="/r", from_ms=100, to_ms=900, shift="now", shift_ms=5, target="prometheus"
)
ENTRY = Entry(spec=SPEC, speed=1, state="ended", generation=2, warm_from_ms=100, from_ms=100, position_ms=99)
LINES = "[Mon Apr  1 08:00:00 2024] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n" * 3


def read(parse: Callable[[Path], Any], name: str, content: bytes, *refusals: type[Exception]) -> None:
    """Parse a file of this content; what is no refusal goes up."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with suppress(UserError, *refusals):
            parse(path)


@fuzzed(*(wording(120, 2.3, 0.5).encode() for wording in (hugging_face, megatron, torchtitan)))
def test_what_jobs_print(content: bytes) -> None:
    text = content.decode(errors="replace")
    reports = reports_of([text, *text.splitlines()])
    assert {len(values) for values in reports.values.values()} == {1 + len(text.splitlines())}


@fuzzed(TICKETS)
def test_tickets(content: bytes) -> None:
    read(read_tickets, "tickets.csv", content)


@fuzzed(ALIASES)
def test_aliases(content: bytes) -> None:
    read(read_aliases, "aliases.yaml", content)


@pytest.mark.parametrize("parse", [load_choices, load_incident_config])
@fuzzed(DETECTORS)
def test_settings_of_detectors(parse: Callable[[Path], object], content: bytes) -> None:
    read(parse, "detectors.yaml", content)


@fuzzed(TOKENS)
def test_tokens(content: bytes) -> None:
    read(tokens_in, "tokens.yaml", content, ValueError)


@fuzzed(SCENARIO)
def test_a_scenario(content: bytes) -> None:
    def parse(path: Path) -> None:
        (path.parents[1] / "profiles").mkdir()
        (path.parents[1] / "profiles" / "vela.yaml").write_bytes(PROFILE)
        load_scenario(path)

    read(parse, "x/scenario.yaml", content)


@fuzzed(PROFILE)
def test_a_profile(content: bytes) -> None:
    def parse(path: Path) -> None:
        (path.parents[1] / "x").mkdir()
        (path.parents[1] / "x" / "scenario.yaml").write_bytes(SCENARIO)
        load_scenario(path.parents[1] / "x" / "scenario.yaml")

    read(parse, "profiles/vela.yaml", content)


@fuzzed(ENTRY.model_dump_json().encode())
def test_a_journal(content: bytes) -> None:
    read(lambda path: [entry.public() for entry in Journal(path.parent).load()], "a.json", content)


def _snapshot() -> bytes:
    with TemporaryDirectory() as folder:
        SnapshotStore(Path(folder), {"logs": "id-1"}).save(Stored("u", 3, {"logs": 7}, "[]", True, b"engine" * 20))
        return Path(folder, "u.state").read_bytes()


@fuzzed(_snapshot())
def test_a_snapshot(content: bytes) -> None:
    read(lambda path: SnapshotStore(path.parent, {"logs": "id-1"}).load("u"), "u.state", content, StateError)


SMALLEST = {name: content for name, content in FILES.items() if not name.endswith(".parquet")}


@fuzzed(zipped(SMALLEST), tarred(SMALLEST))
def test_an_uploaded_archive(content: bytes) -> None:
    read(lambda path: import_archive(path, path.parent / "all", settings_at(path.parent)), "upload", content)


def _packed() -> tuple[bytes, ...]:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w:xz") as archive:
        info = tarfile.TarInfo("v1/dmesg.txt")
        info.size = len(LINES)
        archive.addfile(info, io.BytesIO(LINES.encode()))
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as members:
        members.writestr("v1/dmesg.txt", LINES)
        members.writestr("inner.tar.xz", plain.getvalue())
    zstd = pa.Codec("zstd").compress(LINES.encode(), asbytes=True)
    return whole.getvalue(), plain.getvalue(), zstd


@pytest.mark.parametrize("name", ["all.zip", "all.tar.xz", "v1-dmesg.txt.zst", "v1-dmesg.txt.gz"])
@fuzzed(*_packed())
def test_an_archive_in_a_heap(name: str, content: bytes) -> None:
    survives(heap.convert, {name: content})


def test_the_samples_are_good(tmp_path: Path) -> None:
    """The damaged copies prove something only if the sample itself can be read."""
    for name, content in {"t.csv": TICKETS, "a.yaml": ALIASES, "d.yaml": DETECTORS, "k.yaml": TOKENS}.items():
        (tmp_path / name).write_bytes(content)
    assert len(read_tickets(tmp_path / "t.csv")) == 2
    assert len(read_aliases(tmp_path / "a.yaml")) == 3
    assert load_choices(tmp_path / "d.yaml")
    assert len(tokens_in(tmp_path / "k.yaml")) == 1
    assert json.loads(ENTRY.model_dump_json())["spec"]["name"] == "a"
