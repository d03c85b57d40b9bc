"""What ails single GPUs, each beside GPUs that are well: its signature is on the culprit and on nobody else."""

from pathlib import Path

import numpy as np
import pytest

from services.recording.validate import validate_recording
from services.synth.conftest import GPUS, NODES, Telemetry, made_of, write_files
from services.synth.make import make_recording

DEV, PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
AT, UNTIL = 150.0, 420.0
_ACTING = {"at": "+00:02:30", "until": "+00:07:00"}
HAPPENINGS = [
    {"kind": "pcie_degraded", "node": "t01", "gpu": 0, **_ACTING, "gb_s": 1.2, "gen": 1, "replays_per_min": 60},
    {"kind": "pcie_contention", "node": "t01", "gpus": [1], "at": "+00:08:00", "until": "+00:09:30", "gb_s": 1.5},
    {"kind": "nvlink_errors", "node": "t02", "gpu": 1, **_ACTING, "crc_per_s": 150, "replays_per_s": 1.0,
     "recoveries_per_min": 30, "bandwidth_left": 0.5, "xid": True},
    {"kind": "sbe_storm", "node": "t03", "gpu": 0, **_ACTING, "per_s": 5, "ramp_s": 100, "xid_after_s": 60},
    {"kind": "row_remap", "node": "t03", "gpu": 1, **_ACTING, "rows": 2},
    {"kind": "row_remap", "node": "t04", "gpu": 0, **_ACTING, "failed": True, "told": False},  # a key of before
    {"kind": "double_bit_error", "node": "t04", "gpu": 1, **_ACTING, "job_fails_after_s": None},
    {"kind": "gpu_power_cap", "node": "t02", "gpu": 0, **_ACTING, "cap_w": 250, "by": "limit"},
]  # fmt: skip


@pytest.fixture(scope="module")
def wounded(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    return made_of(tmp_path_factory.mktemp("wounded"), HAPPENINGS)


def grown(telemetry: Telemetry, field: str, begin: float, end: float) -> dict[tuple[str, int], float]:
    """Return by how much a counter grew in a stretch, for every GPU."""
    names = [f"t{number:02d}" for number in range(1, NODES + 1)]
    return {
        (node, gpu): float(np.ptp(telemetry.of(field, node, gpu, begin, end))) for node in names for gpu in range(GPUS)
    }


def only(found: dict[tuple[str, int], float], culprit: tuple[str, int], at_least: float, others: float = 1.0) -> None:
    assert found[culprit] >= at_least
    assert max(value for place, value in found.items() if place != culprit) <= others


def test_it_is_valid(wounded: Telemetry) -> None:
    assert validate_recording(wounded.recording.path) == []


def test_a_degraded_link_shows_its_generation_and_carries_little_and_sends_again(wounded: Telemetry) -> None:
    gen = wounded.of(DEV + "PCIE_LINK_GEN", "t01", 0)
    assert set(wounded.of(DEV + "PCIE_LINK_GEN", "t01", 0, AT + 10, UNTIL - 10)) == {1}
    assert set(gen) == {1, 4}
    assert set(wounded.of(DEV + "PCIE_LINK_GEN", "t01", 1)) == {4}
    for direction in ("TX", "RX"):
        field = f"{PROF}PCIE_{direction}_BYTES"
        culprit = wounded.of(field, "t01", 0, AT + 10, UNTIL - 10)
        assert culprit.max() <= 1.2e9
        assert wounded.of(field, "t03", 0, AT + 10, UNTIL - 10).max() > 1.6 * culprit.max()
    only(grown(wounded, DEV + "PCIE_REPLAY_COUNTER", AT, UNTIL), ("t01", 0), 150)


def test_contention_slows_a_link_and_nothing_else_about_it(wounded: Telemetry) -> None:
    during = wounded.of(PROF + "PCIE_TX_BYTES", "t01", 1, 485, 565)
    assert during.max() <= 1.5e9
    assert wounded.of(PROF + "PCIE_TX_BYTES", "t01", 1, 300, 470).max() > 1.6e9
    assert np.ptp(wounded.of(DEV + "PCIE_REPLAY_COUNTER", "t01", 1)) <= 1


def test_a_bad_nvlink_counts_errors_and_loses_bandwidth(wounded: Telemetry) -> None:
    culprit = ("t02", 1)
    only(grown(wounded, DEV + "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", AT, UNTIL), culprit, 30_000)
    only(grown(wounded, DEV + "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", AT, UNTIL), culprit, 500)
    only(grown(wounded, DEV + "NVLINK_REPLAY_ERROR_COUNT_TOTAL", AT, UNTIL), culprit, 180)
    only(grown(wounded, DEV + "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", AT, UNTIL), culprit, 80)
    mine, peers = (
        wounded.of(PROF + "NVLINK_TX_BYTES", *place, AT + 30, AT + 120).mean() for place in (culprit, ("t03", 0))
    )
    assert mine < 0.75 * peers
    lines = [event for event in wounded.recording.events() if "Xid" in event.message and ": 74," in event.message]
    assert [(event.node, "0000:0f:00" in event.message) for event in lines] == [("t02", True)]
    assert wounded.of(DEV + "XID_ERRORS", "t02", 1)[-1] == 74
    assert any(
        "NVLink fatal" in event.message for event in wounded.recording.events() if event.source == "fabricmanager"
    )


def test_corrected_errors_climb_over_the_ramp(wounded: Telemetry) -> None:
    field = DEV + "ECC_SBE_VOL_TOTAL"
    only(grown(wounded, field, AT, UNTIL), ("t03", 0), 900)
    early = np.ptp(wounded.of(field, "t03", 0, AT, AT + 50))
    late = np.ptp(wounded.of(field, "t03", 0, AT + 120, AT + 170))
    assert early < 0.5 * late
    assert wounded.of(DEV + "XID_ERRORS", "t03", 0)[-1] == 92


def test_a_pending_remap_shows_until_its_reset_and_its_rows_stay(wounded: Telemetry) -> None:
    pending = wounded.of(DEV + "ROW_REMAP_PENDING", "t03", 1)
    assert (pending.max(), pending[-1]) == (1, 0)
    assert not wounded.of(DEV + "ROW_REMAP_PENDING", "t03", 0).any()
    rows = wounded.of(DEV + "CORRECTABLE_REMAPPED_ROWS", "t03", 1)
    assert rows[-1] - rows[0] == 2
    assert wounded.of(DEV + "XID_ERRORS", "t03", 1)[-1] == 63


def test_a_failed_remap_shows(wounded: Telemetry) -> None:
    assert wounded.of(DEV + "ROW_REMAP_FAILURE", "t04", 0, AT + 10, UNTIL - 10).min() == 1
    assert not wounded.of(DEV + "ROW_REMAP_FAILURE", "t04", 1).any()


def test_a_double_bit_error_is_counted_once(wounded: Telemetry) -> None:
    field = DEV + "ECC_DBE_VOL_TOTAL"
    only(grown(wounded, field, 0, 600), ("t04", 1), 1, others=0)
    assert grown(wounded, field, 0, 600)["t04", 1] == 1
    rows = wounded.of(DEV + "UNCORRECTABLE_REMAPPED_ROWS", "t04", 1)
    assert rows[-1] - rows[0] == 1
    codes = [event.message.split("): ")[1].split(",")[0] for event in wounded.recording.events()
             if "Xid" in event.message and event.node == "t04"]  # fmt: skip
    assert codes == ["48", "63", "45"]


def test_a_lowered_limit_shows_and_holds_clock_and_power(wounded: Telemetry) -> None:
    limits = wounded.of(DEV + "ENFORCED_POWER_LIMIT", "t02", 0, AT + 10, UNTIL - 10)
    assert set(limits) == {250}
    assert set(wounded.of(DEV + "ENFORCED_POWER_LIMIT", "t02", 1)) == {400}
    power = wounded.of(DEV + "POWER_USAGE", "t02", 0, AT + 30, UNTIL - 30)
    assert power.max() < 256
    clock = wounded.of(DEV + "SM_CLOCK", "t02", 0, AT + 30, UNTIL - 30)
    reasons = wounded.of(DEV + "CLOCK_THROTTLE_REASONS", "t02", 0, AT + 30, UNTIL - 30).astype(int)
    computing = power > 240
    assert computing.mean() > 0.2
    assert np.median(clock[computing]) < 1100
    assert (reasons[computing] == 0x4).mean() > 0.9
    assert not (reasons & ~0x4).any()


def test_the_same_seed_gives_the_same_wounds(tmp_path: Path, wounded: Telemetry) -> None:
    path = write_files(tmp_path, {"happenings": HAPPENINGS})
    again = make_recording(path, tmp_path / "again" / "tiny-brake")
    for file in sorted(again.iterdir()):
        assert file.read_bytes() == (wounded.recording.path / file.name).read_bytes(), file.name
