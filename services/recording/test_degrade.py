from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detectors.exporters import exporters
from services.kit.errors import UserError
from services.recording.conftest import START, batch, documents, header, topology
from services.recording.degrade import degrade_recording
from services.recording.model import Job
from services.recording.reader import Recording, times_of
from services.recording.schema import STREAMS, TIMESTAMP, name_column
from services.recording.validate import validate_recording
from services.recording.without import WORDS, parse_words
from services.recording.writer import RecordingWriter

HOURS = 12


def degraded(made: Path, tmp_path: Path, *words: str, seed: int = 0) -> Recording:
    out = degrade_recording(Recording.open(made), tmp_path / "-".join(words)[:60], words, seed=seed)
    assert validate_recording(out) == []
    return Recording.open(out)


@pytest.mark.parametrize("word", WORDS)
def test_whatever_is_taken_away_a_valid_recording_is_left_with_its_labels(
    made: Path, tmp_path: Path, word: str
) -> None:
    before, after = Recording.open(made), degraded(made, tmp_path, word)
    assert list(after.labels()) == list(before.labels())
    assert after.manifest.model_dump()["degraded"]["of"] == "small"
    left = set(before.streams()) - set(after.streams())
    assert left == ({word} & set(STREAMS))
    for stream in after.streams():
        kept = after.manifest.streams[stream]
        assert kept.interval_s == 5
        if word in {"kernel-logs", "jobs", "logs", "bmc"}:
            assert kept.sha256 == before.manifest.streams[stream].sha256


def test_all_at_once_leaves_the_topology(made: Path, tmp_path: Path) -> None:
    after = degraded(made, tmp_path, *STREAMS, "logs", "jobs")
    assert (after.streams(), list(after.events()), list(after.jobs())) == ((), [], [])
    assert after.topology == Recording.open(made).topology


def test_logs_go_by_source(made: Path, tmp_path: Path) -> None:
    assert [event.source for event in degraded(made, tmp_path, "sel").events()] == ["job"]
    assert [event.source for event in degraded(made, tmp_path, "job-logs", "kernel-logs").events()] == ["sel"]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a day of two GPUs with two fields, read every 10 s, and of one sensor, read every minute."""
    out = tmp_path_factory.mktemp("long") / "long"
    ticks = np.repeat(np.arange(HOURS * 360), 2)
    entity = np.tile(np.array([0, 1]), HOURS * 360)
    rows = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(START + ticks * 10_000).cast(TIMESTAMP),
            "node": name_column(entity, ["n1", "n2"]),
            "gpu": pa.array(np.zeros(len(ticks), np.uint8)),
            "DCGM_FI_DEV_GPU_TEMP": pa.array(ticks.astype(np.float32)),
            "DCGM_FI_DEV_ROW_REMAP_PENDING": pa.array(ticks.astype(np.float32)),
        }
    )
    minutes = np.arange(HOURS * 60)
    sensor: dict[str, Any] = batch("bmc", 0, len(minutes)).slice(0, len(minutes)).to_pydict()
    sensor["timestamp"] = pa.array(START + minutes * 60_000).cast(TIMESTAMP)
    sensor["node"] = name_column(np.zeros(len(minutes), np.int64), ["n1"])
    sensor["sensor"] = name_column(np.zeros(len(minutes), np.int64), ["node_power"])
    sensor["unit"] = name_column(np.zeros(len(minutes), np.int64), ["W"])
    with RecordingWriter(out) as writer:
        writer.write("dcgm", rows, interval_s=10)
        writer.write("bmc", pa.RecordBatch.from_pydict(sensor), interval_s=60)
        documents(writer)
        writer.finish(header("long") | {"end": START + HOURS * 3_600_000}, topology())
    return out


def gaps_s(recording: Recording, stream: str, node: str, usual_s: float) -> list[float]:
    """Return the silences of one node's readings that are longer than usual."""
    times: list[int] = []
    for part in recording.batches(stream):
        names = np.array(part.column("node").to_pylist())
        times += times_of(part)[names == node].tolist()
    apart = np.diff(times) / 1000
    return [float(gap) for gap in apart if gap > usual_s]


def test_default_fields_are_what_is_left(long: Path, tmp_path: Path) -> None:
    (part, *_) = degraded(long, tmp_path, "default-fields").batches("dcgm")
    assert part.schema.names == ["timestamp", "node", "gpu", "DCGM_FI_DEV_GPU_TEMP"]
    assert "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" not in exporters().dcgm_default


def test_scrapes_are_lost_in_runs_of_three_to_eight_and_never_for_five_minutes(long: Path, tmp_path: Path) -> None:
    one = degraded(long, tmp_path, "scrapes")
    first, second = (gaps_s(one, "dcgm", node, 10) for node in ("n1", "n2"))
    assert 1 <= len(first) <= 16
    assert first != second
    assert all(40 <= gap <= 170 for gap in first + second)
    assert all(120 < gap < 300 for gap in gaps_s(one, "bmc", "n1", 60))
    again = degrade_recording(Recording.open(long), tmp_path / "again", ("scrapes",))
    assert gaps_s(Recording.open(again), "dcgm", "n1", 10) == first
    other = degraded(long, tmp_path / "seeded", "scrapes", seed=5)
    assert gaps_s(other, "dcgm", "n1", 10) != first


def test_a_pause_of_the_collector_is_one_of_all_exporters(long: Path, tmp_path: Path) -> None:
    one = degraded(long, tmp_path, "pauses")
    gaps = gaps_s(one, "dcgm", "n1", 10)
    assert gaps
    assert gaps == gaps_s(one, "dcgm", "n2", 10)
    assert all(20 <= gap <= 110 for gap in gaps)


def steps_of(recording: Recording) -> list[dict[str, object]]:
    return [row for part in recording.batches("steps") for row in part.to_pylist()]


def test_the_jobs_steps_stay_where_there_are_some(made: Path, tmp_path: Path) -> None:
    after = steps_of(degraded(made, tmp_path, "rank-steps"))
    assert repr(after) == repr([row for row in steps_of(Recording.open(made)) if row["rank"] == -1])


def test_without_them_the_ranks_median_is_the_jobs_at_the_time_of_the_last(tmp_path: Path) -> None:
    ranks, iterations = 3, [4, 5, 4]  # it fell back to iteration 4
    rows = len(iterations) * ranks
    rank = np.tile(np.arange(ranks), len(iterations)).astype(np.int32)
    at = START + np.repeat([10_000, 20_000, 60_000], ranks) + rank
    loss = np.where((np.arange(rows) == 4), np.nan, 2.0).astype(np.float32)
    table = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(at).cast(TIMESTAMP),
            "job_id": name_column(np.zeros(rows, np.int64), ["812"]),
            "rank": pa.array(rank),
            "node": name_column(np.minimum(rank, 1).astype(np.int64), ["n1", "n2"]),
            "iteration": pa.array(np.repeat(iterations, ranks)),
            "step_time_s": pa.array(np.array([1, 2, 9, 1, 3, 9, 1, 4, 9], np.float32)),
            "loss": pa.array(loss, mask=rank == 2),
            "tokens_per_s": pa.array(np.full(rows, 5, np.float32)),
        }
    )
    with RecordingWriter(tmp_path / "ranks") as writer:
        writer.write("steps", table)
        writer.write_jobs([Job(job_id="812", nodes=["n1", "n2"], start=START, end=None, state="RUNNING")])
        writer.finish(header("ranks"), topology())
    after = steps_of(degraded(tmp_path / "ranks", tmp_path, "rank-steps"))
    assert [(row["rank"], row["node"], row["iteration"], row["step_time_s"]) for row in after] == [
        (-1, None, 4, 2.0), (-1, None, 5, 3.0), (-1, None, 4, 4.0),
    ]  # fmt: skip
    assert [row["tokens_per_s"] for row in after] == [15.0] * 3
    assert repr([row["loss"] for row in after]) == "[2.0, nan, 2.0]"
    assert [int(row["timestamp"].timestamp() * 1000) - START for row in after] == [10_002, 20_002, 60_002]  # type: ignore[attr-defined]  # it is a time


def test_words_are_lists_by_commas_and_all_that_are_none_are_named() -> None:
    assert parse_words(["logs, bmc", "all-but-default-fields,logs"]) == ("logs", "bmc", "default-fields")
    with pytest.raises(UserError, match="'dmesg', 'gpus'") as caught:
        parse_words(["logs,gpus,dmesg"])
    assert caught.value.exit_code == 2
    with pytest.raises(UserError, match="nothing"):
        parse_words([","])
