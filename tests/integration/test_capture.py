"""What was replayed into the servers, captured back: every sample of the recording, at its time, with its value.

Compared are all rows and values of all streams that Prometheus can hold (dcgm, nic, switch, bmc, steps, storage), and
the machines that have series. Not compared is what has no series: `up` and staleness markers, which the sink makes up
and a range of raw samples does not show; log lines, labels, wiring, and what a job was called.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from services.cli.pipeline import Pipeline, sink_group
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.times import parse_instant
from services.kit.wait import until
from services.recording.conftest import TICKS, batch, documents, header, topology
from services.recording.diff import diff_recordings
from services.recording.importers.prometheus import convert
from services.recording.instants import format_instant
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.validate import validate_recording
from services.recording.writer import RecordingWriter
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from services.synth.library import scenario_paths
from services.synth.make import Variant, make_recording
from tests import web
from tests.small import Brake, small_recording


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("capture")


@pytest.fixture(scope="module")
def brake(folder: Path) -> Path:
    """Four nodes, six minutes, one brake: dcgm, bmc and steps as the generator makes them."""
    return small_recording(folder, "brake", nodes=4, minutes=6, brakes=[Brake("v002", 60, 150)])


@pytest.fixture(scope="module")
def every_stream(folder: Path) -> Path:
    """A recording that has every stream, a null here and a NaN there."""
    out = folder / "every-stream"
    with RecordingWriter(out) as writer:
        for stream in STREAMS:
            writer.write(stream, batch(stream, 0, TICKS), interval_s=5)
        documents(writer)
        writer.finish(header("every-stream"), topology())
    return out


@pytest.fixture(scope="module")
def pipeline(stack: Stack) -> Iterator[Pipeline]:
    """The services that replay and land, on the servers of the session."""
    own = [spec for spec in services(stack.service_context()) if spec.name.startswith(("topics", "replay", "sink"))]
    for spec in own:
        stack.add(spec)
    stack.start_all()
    yield Pipeline(KafkaSettings(bootstrap=stack.addresses.kafka), stack.addresses.services)
    for spec in reversed(own):
        stack.remove(spec.name)


def _replayed(pipeline: Pipeline, recording: Path, name: str, **asked: object) -> int:
    """Replay a recording and return by how many ms its times were shifted."""
    pipeline.start_replay(str(recording), speed="max", name=name, **asked)
    status = pipeline.wait_over(name)
    pipeline.wait_caught_up(sink_group(str(status["target"])))
    return int(str(status["shift_ms"]))


def _captured(url: str, recording: Path, out: Path, name: str, shift_ms: int, *, chunk: float = 3600) -> Recording:
    manifest = Recording.open(recording).manifest
    convert(
        out,
        url=url,
        from_=format_instant(manifest.start + shift_ms),
        to=format_instant(manifest.end + shift_ms),
        replay=name,
        shift=shift_ms / 1000,
        chunk=chunk,
    )
    assert validate_recording(out) == []
    return Recording.open(out)


def _check_same(recording: Path, captured: Recording) -> None:
    """No row, no sample and no machine lost, added or changed."""
    original = Recording.open(recording)
    found = diff_recordings(original, captured, parts=["streams"])
    assert list(found.streams) == list(original.streams())
    for name, stream in found.streams.items():
        assert stream.same, (name, stream)
        assert sum(column.compared for column in stream.columns.values()) > 0, name
    reporting = {
        (row["node"], row["gpu"])
        for part in original.batches("dcgm", columns=[])
        for row in pa.Table.from_batches([part]).group_by(["node", "gpu"]).aggregate([]).to_pylist()
    }
    known = [(n.name, g.gpu, g.uuid, g.pci_bus_id) for n in original.topology.nodes for g in n.gpus]
    found_gpus = [(n.name, g.gpu, g.uuid, g.pci_bus_id) for n in captured.topology.nodes for g in n.gpus]
    assert found_gpus == [gpu for gpu in known if gpu[:2] in reporting]
    stepping: set[str] = set()
    for part in original.batches("steps", columns=[]) if "steps" in original.streams() else ():
        stepping.update(str(job) for job in part.column("job_id").unique().to_pylist())
    assert {job.job_id for job in captured.jobs()} == stepping


def test_a_replay_captured_back_from_prometheus_is_the_recording(
    stack: Stack, pipeline: Pipeline, brake: Path, folder: Path
) -> None:
    shift_ms = _replayed(pipeline, brake, "there-and-back")
    url = stack.addresses.prometheus
    # A stretch of 50 s does not divide the recording's ticks evenly: no sample may be lost or doubled at its ends.
    _check_same(brake, _captured(url, brake, folder / "back", "there-and-back", shift_ms, chunk=50))


def test_every_stream_comes_back(stack: Stack, pipeline: Pipeline, every_stream: Path, folder: Path) -> None:
    shift_ms = _replayed(pipeline, every_stream, "all-of-it")
    url = stack.addresses.prometheus
    _check_same(every_stream, _captured(url, every_stream, folder / "all-back", "all-of-it", shift_ms))


@pytest.mark.parametrize("scenario", ["sakuraone-pfc-storm", "lustre-slow-oss"])
def test_a_library_recording_comes_back(stack: Stack, pipeline: Pipeline, scenario: str, folder: Path) -> None:
    """Hours of all streams: network and storage counters, gaps and restarts as the incident has them."""
    made = make_recording(scenario_paths()[scenario], folder / scenario, Variant(scale=0.05))
    shift_ms = _replayed(pipeline, made, scenario)
    _check_same(made, _captured(stack.addresses.prometheus, made, folder / f"{scenario}-back", scenario, shift_ms))


def test_a_replay_at_its_own_time_comes_back_from_thanos(
    stack: Stack, pipeline: Pipeline, brake: Path, folder: Path
) -> None:
    assert _replayed(pipeline, brake, "kept-time", shift="keep") == 0
    url, total = stack.addresses.thanos_query, Recording.open(brake).manifest.streams["dcgm"].rows
    end = Recording.open(brake).manifest.end / 1000
    query = 'sum(count_over_time(DCGM_FI_DEV_GPU_TEMP{replay="kept-time"}[1h]))'

    def served() -> bool:
        # Thanos Query looks for its stores every few seconds, not at once.
        answer = web.get(f"{url}/api/v1/query", params={"query": query, "time": end}).json()
        result = answer.get("data", {}).get("result", [])
        return bool(result) and int(result[0]["value"][1]) >= total

    until(served, what="Thanos Query to serve the replay", interval_s=1)
    _check_same(brake, _captured(url, brake, folder / "kept-back", "kept-time", 0))


def test_two_replays_are_not_mixed_into_one_recording(
    stack: Stack, pipeline: Pipeline, brake: Path, folder: Path
) -> None:
    manifest = Recording.open(brake).manifest
    shifts = [_replayed(pipeline, brake, name) for name in ("one-of-two", "two-of-two")]
    with pytest.raises(UserError, match=r"replays there: .*one-of-two.*two-of-two"):
        convert(
            folder / "mixed",
            url=stack.addresses.prometheus,
            from_=format_instant(manifest.start + min(shifts)),
            to=format_instant(manifest.end + max(shifts)),
            match=['{replay=~".*-of-two"}'],
        )


def test_a_graphs_steps_can_be_captured_too(stack: Stack, pipeline: Pipeline, brake: Path, folder: Path) -> None:
    shift_ms = _replayed(pipeline, brake, "stepped")
    manifest = Recording.open(brake).manifest
    begin = manifest.start + shift_ms
    convert(
        folder / "stepped",
        url=stack.addresses.prometheus,
        from_=format_instant(begin),
        to=format_instant(begin + 120_000),
        rebase=format_instant(manifest.start),
        replay="stepped",
        match=["DCGM_FI_DEV_GPU_TEMP"],
        step=30.0,
    )
    assert validate_recording(folder / "stepped") == []
    rows = [row for part in Recording.open(folder / "stepped").batches("dcgm") for row in part.to_pylist()]
    times = sorted({round(row["timestamp"].timestamp() * 1000) for row in rows})
    assert times[-1] == manifest.start + 120_000
    assert {later - earlier for earlier, later in pairwise(times)} == {30_000}


def test_an_empty_stretch_is_answered_with_what_prometheus_holds(
    stack: Stack, pipeline: Pipeline, brake: Path, folder: Path
) -> None:
    shift_ms = _replayed(pipeline, brake, "held-range")
    manifest = Recording.open(brake).manifest
    with pytest.raises(UserError) as raised:
        convert(
            folder / "empty", url=stack.addresses.prometheus, from_="2019-04-01T08:00:00Z", to="2019-04-01T09:00:00Z"
        )
    found = re.search(r"holds such from (\S+) to (\S+) \(dcgm: DCGM_FI_DEV_", raised.value.message)
    assert found is not None, raised.value.message
    # By the samples of one metric, whose nodes are not all read at once.
    assert parse_instant(found[1]) <= manifest.start + shift_ms + 60_000
    assert parse_instant(found[2]) >= manifest.end + shift_ms - 60_000
    assert "--from and --to" in (raised.value.remedy or "")
