import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.importers.contract import Report, silent
from services.recording.importers.parts.series import operation_trace
from services.recording.importers.parts.series.operation_trace import read_trace
from services.recording.importers.straggler_analysis import convert
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.data import public
from tests.mangled import fuzzed, survives

REAL = "bytedance-straggler-traces"
META = "trial_name: T\ndp_size: 2\npp_size: 1\ntp_size: 2\nworld_size: 4\n"

# step, rank, operation, start, duration
Operation = tuple[int, int, str, float, float]
SMALL: list[Operation] = [
    (7, 0, "forward-compute", 0.0, 2.0),
    (7, 0, "backward-compute", 2.0, 3.0),
    (7, 0, "forward-recv", 1.0, 2.0),  # hidden behind the computing
    (7, 0, "grads-reduce-scatter", 4.5, 1.5),  # 1.0 of it is not
    (7, 2, "forward-compute", 0.5, 1.0),
    (7, 2, "grads-reduce-scatter", 2.0, 4.0),
    (7, 2, "params-all-gather", 3.0, 1.0),  # within the other
    (9, 0, "forward-compute", 0.0, 4.0),
    (9, 2, "forward-compute", 0.0, 1.0),
    (9, 2, "optimizer-clip-main-grad", 1.0, 3.0),
]


def written(folder: Path, rows: list[Operation], name: str = "T", meta: str = META) -> Path:
    columns = list(zip(*rows, strict=True))
    table = pa.table(
        {
            "step": pa.array(columns[0], pa.int64()),
            "rank": pa.array(columns[1], pa.int16()),
            "optype": pa.array(columns[2]).dictionary_encode(),
            "start_ts": pa.array(columns[3], pa.float32()),
            "duration": pa.array(columns[4], pa.float32()),
        }
    )
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / f"trace-{name}.parquet", row_group_size=4)
    (folder / f"meta-{name}.yaml").write_text(meta)
    return folder


def steps_of(directory: Path) -> dict[str, Any]:
    table = pq.read_table(directory / "steps.parquet")
    return {name: table[name].to_numpy() for name in table.column_names}


def test_steps_of_ranks_with_what_they_computed_and_waited(tmp_path: Path) -> None:
    convert(written(tmp_path / "in", SMALL), tmp_path / "out", start="2024-04-01T08:00:00Z", gpus_per_node=2)
    assert validate_recording(tmp_path / "out") == []
    rows = steps_of(tmp_path / "out")
    of = {
        (int(rank), int(step)): index
        for index, (rank, step) in enumerate(zip(rows["rank"], rows["iteration"], strict=True))
    }
    assert set(of) == {(rank, step) for rank in (-1, 0, 2) for step in (7, 9)}
    first, second, third = of[0, 7], of[2, 7], of[2, 9]
    assert rows["compute_s"][[first, second, third]].tolist() == [5.0, 1.0, 1.0]
    assert rows["comm_wait_s"][[first, second, third]].tolist() == [1.0, 4.0, 3.0]
    assert rows["forward_compute_s"][first] == 2.0
    assert rows["step_time_s"][[first, second, of[-1, 7], of[-1, 9]]].tolist() == [6.0, 5.5, 6.0, 4.0]
    assert rows["node"][[first, second]].tolist() == ["node-0", "node-1"]
    times = (
        rows["timestamp"].astype("datetime64[ms]").astype(np.int64) - Recording.open(tmp_path / "out").manifest.start
    )
    assert times[[of[-1, 7], of[-1, 9]]].tolist() == [6000, 10000]


def test_gaps_between_traced_steps_can_be_kept(tmp_path: Path) -> None:
    convert(written(tmp_path / "in", SMALL), tmp_path / "out", keep_gaps=True)
    manifest = Recording.open(tmp_path / "out").manifest
    assert manifest.end - manifest.start == 6000 + 5000 + 4000, "step 8 takes the median of 6 and 4 seconds"


def test_operations_that_cannot_be_are_skipped_and_counted(tmp_path: Path) -> None:
    bad: list[Operation] = [
        (7, 9, "forward-compute", 0.0, 1.0),
        (7, 0, "coffee", 0.0, 1.0),
        (7, 0, "gc", float("nan"), 1.0),
        (7, 0, "gc", 0.0, -1.0),
    ]
    report = convert(written(tmp_path / "in", SMALL + bad), tmp_path / "out")
    assert sorted(report.skipped.values()) == [1, 1, 2]
    assert np.nanmax(steps_of(tmp_path / "out")["compute_s"]) == 5.0


def test_what_is_held_at_once_is_bounded_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "in", SMALL) / "trace-T.parquet"
    (whole,) = read_trace(path, 4, Report(), silent)
    monkeypatch.setattr(operation_trace, "_CHUNK_ROWS", 3)
    parts = list(read_trace(path, 4, Report(), silent))
    assert len(parts) == 2
    for name in ("step", "rank", "compute", "waiting", "begin", "end"):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from([0, 2]),
            st.sampled_from(["forward-compute", "backward-recv"]),
            st.integers(0, 30),
            st.integers(0, 10),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_covered_time_is_that_of_a_ruler(rows: list[tuple[int, int, str, int, int]]) -> None:
    arrays = [np.array(column) for column in zip(*rows, strict=True)]
    kinds = np.array([operation_trace.kind_of(name) for name in arrays[2]], dtype=np.int8)
    begin = arrays[3].astype(np.float64)
    sums = operation_trace._sums(arrays[0], arrays[1], kinds, begin, begin + arrays[4])
    for index, (step, rank) in enumerate(zip(sums.step, sums.rank, strict=True)):
        ticks: dict[str, set[int]] = {"forward-compute": set(), "backward-recv": set()}
        for row_step, row_rank, name, start, length in rows:
            if (row_step, row_rank) == (step, rank):
                ticks[name] |= set(range(start, start + length))
        assert sums.compute[index] == pytest.approx(len(ticks["forward-compute"]), abs=1e-6)
        assert sums.waiting[index] == pytest.approx(len(ticks["backward-recv"] - ticks["forward-compute"]), abs=1e-6)


@pytest.mark.parametrize(
    ("replicas", "stages", "fault"),
    [
        ({"0": 1.01, "1": 1.95}, {"0": 1.98}, "straggler"),
        ({"0": 1.9, "1": 1.9}, {"0": 1.95}, "none"),
        ({"0": 1.5, "1": 1.5}, {"0": 1.0}, None),
        ({"0": "x"}, {"0": 1.95}, "none"),
        (None, None, None),
    ],
)
def test_a_label_only_where_the_analysis_names_one_cause(
    tmp_path: Path, replicas: Any, stages: Any, fault: str | None
) -> None:
    source = written(tmp_path / "in", SMALL)
    analysis = {"blocking_slowdown": 2.0, "blocking_decompose_by_dp_rank": replicas}
    (source / "result-T.json").write_text(json.dumps({**analysis, "blocking_decompose_by_stage": stages}))
    convert(source, tmp_path / "out", gpus_per_node=4)
    assert validate_recording(tmp_path / "out") == []
    labels = list(Recording.open(tmp_path / "out").labels())
    assert [label.fault for label in labels] == ([] if fault is None else [fault])
    if fault == "straggler":
        assert labels[0].entity == {"node": "node-0", "gpu": 2}
        assert labels[0].also == [{"node": "node-0", "gpu": 3}]


def test_a_folder_of_several_traces_asks_which(tmp_path: Path) -> None:
    written(tmp_path / "in", SMALL, "A")
    written(tmp_path / "in", SMALL, "B")
    with pytest.raises(UserError, match="one of A, B"):
        convert(tmp_path / "in", tmp_path / "out")
    convert(tmp_path / "in", tmp_path / "out", trial="B")


def test_a_layout_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "in", SMALL, meta=META.replace("world_size: 4", "world_size: 5"))
    with pytest.raises(UserError, match="is not 5"):
        convert(source, tmp_path / "out")


@pytest.fixture(scope="module", params=["AR", "ST"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("traces") / request.param.lower()
    convert(public(REAL), out, trial=request.param)
    return request.param, out


def test_real_traces_are_valid_and_as_long_as_their_analysis_says(real: tuple[str, Path]) -> None:
    name, directory = real
    assert validate_recording(directory) == []
    rows = steps_of(directory)
    whole = rows["rank"] == -1
    published = json.loads((public(REAL) / f"result-{name}.json").read_text())["step_t_base"]
    ours = dict(zip(rows["iteration"][whole].tolist(), rows["step_time_s"][whole].tolist(), strict=True))
    assert ours == pytest.approx({int(step): seconds for step, seconds in published.items()}, abs=1e-3)
    covered = rows["compute_s"][~whole] + rows["comm_wait_s"][~whole]
    assert np.all(covered <= rows["step_time_s"][~whole] * 1.001)


def test_the_slow_worker_and_the_uneven_stages_can_be_seen(real: tuple[str, Path]) -> None:
    name, directory = real
    rows = steps_of(directory)
    ranks = np.unique(rows["rank"][rows["rank"] >= 0])
    forward = {int(rank): float(np.median(rows["forward_compute_s"][rows["rank"] == rank])) for rank in ranks}
    (label,) = Recording.open(directory).labels()
    if name == "AR":
        peers = [seconds for rank, seconds in forward.items() if rank != 0]
        assert forward[0] > 2.2 * max(peers), "the artifact slows rank 0: 0.546 s a forward pass against 0.218 s"
        waiting = {int(rank): float(np.median(rows["comm_wait_s"][rows["rank"] == rank])) for rank in ranks}
        assert waiting[0] < 0.5 * min(seconds for rank, seconds in waiting.items() if rank != 0)
        assert (label.fault, label.entity) == ("straggler", {"node": "node-0", "gpu": 0})
    else:
        last, others = [forward[6], forward[7]], [forward[rank] for rank in range(6)]
        assert min(last) > 1.8 * max(others), "the last stage has the most to compute"
        assert label.distractor


def contents() -> dict[str, bytes]:
    """Return the three files of a trace by name."""
    with tempfile.TemporaryDirectory() as name:
        found = {path.name: path.read_bytes() for path in written(Path(name, "in"), SMALL).iterdir()}
    parts = {"blocking_decompose_by_dp_rank": {"1": 2.0}, "blocking_decompose_by_stage": {"0": 2.0}}
    return found | {"result-T.json": json.dumps({"blocking_slowdown": 2.0, **parts}).encode()}


CONTENTS = contents()


@fuzzed(CONTENTS["trace-T.parquet"])
def test_a_damaged_trace(content: bytes) -> None:
    survives(convert, CONTENTS | {"trace-T.parquet": content})


@fuzzed(CONTENTS["meta-T.yaml"])
def test_a_damaged_description(content: bytes) -> None:
    survives(convert, CONTENTS | {"meta-T.yaml": content})


@fuzzed(CONTENTS["result-T.json"])
def test_a_damaged_result(content: bytes) -> None:
    survives(convert, CONTENTS | {"result-T.json": content})
