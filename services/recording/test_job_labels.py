"""Jobs that nothing lists, by the labels of GPUs' readings."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.recording.conftest import rewrite, without_file
from services.recording.degrade import degrade_recording
from services.recording.job_labels import jobs_by_labels
from services.recording.model import Topology
from services.recording.reader import Recording
from services.recording.tidy import open_tidy

Row = tuple[int, str, int | None, dict[str, str]]
START, MINUTE = 1_711_958_400_000, 60_000
TOPOLOGY = Topology.model_validate(
    {"nodes": [{"name": name, "gpus": [{"gpu": 0}, {"gpu": 1}]} for name in ("v1", "v2")]}
)


def gpus(path: Path, rows: list[Row], labels: list[str]) -> Path:
    """Return the file of a stream with a row at each (minute, node, GPU), with those labels."""
    columns = {
        "timestamp": pa.array([START + minute * MINUTE for minute, *_ in rows], pa.timestamp("ms", tz="UTC")),
        "node": pa.array([node for _, node, _, _ in rows]).dictionary_encode(),
        "gpu": pa.array([gpu for _, _, gpu, _ in rows], pa.uint8()),
    } | {name: pa.array([found.get(name) for *_, found in rows], pa.string()) for name in labels}
    pq.write_table(pa.table(columns), path / "dcgm.parquet", row_group_size=5)
    return path / "dcgm.parquet"


def test_pods_of_one_training_job_are_one_job_with_its_nodes_from_first_to_last_reading(tmp_path: Path) -> None:
    rows: list[Row] = []
    for minute in range(60):
        for node, pod in (("v1", "llm-worker-0"), ("v2", "llm-worker-1")):
            named = {"pod": pod, "namespace": "nlp", "container": "main"} if 10 <= minute < 40 else {}
            rows += [(minute, node, gpu, named) for gpu in (0, 1)]
    stream = gpus(tmp_path, rows, ["pod", "namespace", "container"])
    (job,) = jobs_by_labels(stream, TOPOLOGY, START, START + 60 * MINUTE)
    assert (job.job_id, job.nodes, job.gpus_per_node) == ("nlp/llm", ["v1", "v2"], 2)
    assert (job.start, job.end, job.state) == (START + 10 * MINUTE, START + 39 * MINUTE, "UNKNOWN")


def test_a_batch_jobs_number_counts_before_its_pod_and_parts_of_nodes_are_its_gpus(tmp_path: Path) -> None:
    rows: list[Row] = [(0, "v1", None, {"hpc_job": "9"})]
    rows += [(minute, "v1", gpu, {"hpc_job": str(7 + gpu), "pod": "p"}) for minute in range(30) for gpu in (0, 1)]
    found = jobs_by_labels(gpus(tmp_path, rows, ["hpc_job", "pod"]), TOPOLOGY, START, START + 30 * MINUTE)
    assert [(job.job_id, job.gpus, job.end) for job in found] == [("7", {"v1": [0]}, None), ("8", {"v1": [1]}, None)]


@pytest.mark.parametrize("labels", [[], ["namespace"], ["pod"]])
def test_readings_that_name_no_job_make_none(tmp_path: Path, labels: list[str]) -> None:
    exporter = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-7kq2p"}
    rows: list[Row] = [(minute, "v1", 0, exporter) for minute in range(5)]
    assert jobs_by_labels(gpus(tmp_path, rows, labels), TOPOLOGY, START, START + 30 * MINUTE) == []


def test_a_recording_without_a_list_has_the_jobs_of_its_labels_and_of_its_ranks_if_they_name_nodes(small: Path) -> None:
    def labelled(table: pa.Table) -> pa.Table:
        return table.append_column("hpc_job", pa.array(["7"] * len(table)))

    def without_nodes(table: pa.Table) -> pa.Table:
        place = table.schema.names.index("node")
        return table.set_column(place, "node", pa.nulls(len(table), pa.string()).dictionary_encode())

    listed = {job.job_id for job in Recording.open(small).jobs()}
    rewrite(small, "dcgm", labelled)
    assert {job.job_id for job in open_tidy(small).jobs()} == listed
    without_file(small, "jobs.jsonl")
    assert list(open_tidy(small).jobs()) == []
    rewrite(small, "steps", without_nodes)
    assert {job.job_id for job in open_tidy(small).jobs()} == {"7"}


def test_a_recording_degraded_by_its_jobs_has_no_labels_of_them(small: Path, tmp_path: Path) -> None:
    rewrite(small, "dcgm", lambda table: table.append_column("hpc_job", pa.array(["7"] * len(table))))
    poorer = degrade_recording(Recording.open(small), tmp_path / "poorer", ["jobs", "steps"])
    assert "hpc_job" not in pq.read_schema(poorer / "dcgm.parquet").names
    assert list(Recording.open(poorer).jobs()) == []
