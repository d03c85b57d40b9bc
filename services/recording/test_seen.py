from pathlib import Path

import pyarrow as pa
import pytest

from detectors.contract import Rung
from detectors.coverage import Seen
from detectors.power_throttle.detector import PowerThrottle
from detectors.registry import choose, discover, needs
from services.recording.conftest import rewrite
from services.recording.degrade import degrade_recording
from services.recording.reader import Recording
from services.recording.seen import coverage_json, coverage_of, seen_in


def degraded(made: Path, tmp_path: Path, *without: str) -> Seen:
    return seen_in(Recording.open(degrade_recording(Recording.open(made), tmp_path / "-".join(without), without)))


def test_each_field_counts_by_the_entities_that_report_it(made: Path) -> None:
    seen = seen_in(Recording.open(made))
    shares = seen.shares
    assert shares["dcgm.DCGM_FI_DEV_GPU_TEMP"] == 0.5  # of four GPUs in the topology two report
    assert shares["dcgm"] == 0.5
    assert shares["nic.port_xmit_data"] == 1.0
    assert shares["bmc.reading"] == 1.0
    assert "bmc.state" not in shares
    assert shares["steps.step_time_s"] == shares["steps.loss"] == shares["steps.ranks"] == 1.0
    assert {name for name in shares if name.startswith("logs.")} == {"logs.job", "logs.sel"}
    assert shares["jobs"] == 1.0
    assert {need: shares.get(need) for need in needs() if need.startswith("topology")} == {
        "topology.links": 1.0, "topology.nics": 1.0, "topology.pcie": 1.0,
    }  # fmt: skip
    assert seen.intervals_s["dcgm"] == 5
    assert not seen.inferred_jobs


def test_a_field_of_which_some_report_nothing_counts_by_those_that_do(small: Path) -> None:
    def half(table: pa.Table) -> pa.Table:
        of_first = pa.array([node == "n1" for node in table.column("node").to_pylist()])
        return table.append_column("half", pa.array([1.0 if one.as_py() else None for one in of_first])).append_column(
            "none", pa.nulls(table.num_rows, pa.float32())
        )

    rewrite(small, "storage", half)
    shares = seen_in(Recording.open(small)).shares
    assert shares["storage.half"] == 0.5
    assert "storage.none" not in shares


@pytest.mark.parametrize(
    ("without", "gone"),
    [
        (("dcgm", "steps"), {"dcgm", "steps", "steps.ranks"}),
        (("rank-steps",), {"steps.ranks"}),
        (("sel",), {"logs.sel"}),
        (("jobs", "rank-steps"), {"jobs", "steps.ranks"}),
    ],
)
def test_what_was_taken_away_is_not_seen(made: Path, tmp_path: Path, without: tuple[str, ...], gone: set[str]) -> None:
    before, after = seen_in(Recording.open(made)).shares, degraded(made, tmp_path, *without).shares
    assert {need for need in before if not after.get(need) and before[need] and "." not in need} <= gone
    assert {need for need in gone if after.get(need)} == set()


def test_jobs_that_nobody_names_are_inferred_where_gpus_say_enough(made: Path, small: Path, tmp_path: Path) -> None:
    assert degraded(made, tmp_path, "jobs").shares["jobs"] == 1.0  # its ranks name it
    rewrite(small, "dcgm", lambda table: table.append_column("DCGM_FI_DEV_GPU_UTIL", pa.array([50.0] * len(table))))
    seen = degraded(small, tmp_path / "worked-out", "jobs", "rank-steps")
    assert (seen.shares["jobs"], seen.inferred_jobs) == (1.0, True)


def test_the_matrix_has_every_fault_and_those_that_are_switched_off(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discover()  # which checks that a detector reads what its own ladder needs
    rung = Rung(sees="clocks fall", needs=("dcgm.DCGM_FI_DEV_GPU_TEMP",), within_s=15)
    monkeypatch.setattr(
        PowerThrottle, "spec", PowerThrottle.spec.model_copy(update={"ladders": {"power_throttle": (rung,)}})
    )
    seen = seen_in(Recording.open(made))
    shown = coverage_json(coverage_of(choose({"storage": {"enabled": False}}), seen), seen)
    by_fault = {one["fault"]: one for one in shown["faults"]}
    assert len(by_fault) == 19
    assert by_fault["storage_slow"]["verdict"] == "off"
    assert by_fault["power_throttle"]["verdict"] == "partly"
    assert by_fault["power_throttle"]["blind_share"] == 0.5
    assert any("power_throttle" in line for line in shown["closing"])
