"""GPUs, nodes and collectors that fall silent: what stops, what goes on, and what begins anew."""

import numpy as np
import pytest

from services.recording.validate import validate_recording
from services.synth.conftest import GPUS, Telemetry, made_of

DEV = "DCGM_FI_DEV_"
HAPPENINGS = [
    {"kind": "telemetry_gap", "node": "t02", "at": "+00:02:00", "until": "+00:03:00"},
    {"kind": "telemetry_gap", "node": "t04", "at": "+00:02:00", "until": "+00:03:20", "form": "frozen"},
    {"kind": "gpu_lost", "node": "t01", "gpu": 1, "at": "+00:04:00", "until": "+00:10:00", "job_fails_after_s": 40},
    {"kind": "node_reboot", "node": "t02", "at": "+00:05:00", "until": "+00:07:00"},
    {"kind": "old_xid", "node": "t02", "gpu": 0, "xid": 43},
    {"kind": "dimm_failure", "node": "t03", "at": "+00:01:00", "until": "+00:05:20"},
    {"kind": "node_down", "node": "t03", "at": "+00:05:20", "until": "+00:08:20", "because": "memory"},
]  # fmt: skip


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    return made_of(tmp_path_factory.mktemp("lost"), HAPPENINGS)


def silences(telemetry: Telemetry, node: str, gpu: int) -> list[tuple[float, float]]:
    times = np.concatenate([[0.0], telemetry.seconds("dcgm")[telemetry.rows_of(node, gpu)], [600.0]])
    return [(float(times[place]), float(times[place + 1])) for place in np.flatnonzero(np.diff(times) > 25)]


def lines(telemetry: Telemetry, source: str, node: str | None = None) -> list[tuple[float, str]]:
    start = telemetry.recording.manifest.start
    return [
        ((event.timestamp - start) / 1000, event.message)
        for event in telemetry.recording.events()
        if event.source == source and (node is None or event.node == node)
    ]


def test_it_is_valid(lost: Telemetry) -> None:
    assert validate_recording(lost.recording.path) == []


def test_a_lost_gpu_stops_alone(lost: Telemetry) -> None:
    ((begin, end),) = silences(lost, "t01", 1)
    assert 230 < begin <= 240
    assert end == 600
    assert silences(lost, "t01", 0) == []
    assert [text for _, text in lines(lost, "kernel", "t01") if ": 79," in text]


def test_its_job_halts_and_fails(lost: Telemetry) -> None:
    (job,) = lost.recording.jobs()
    assert job.state == "FAILED"
    assert job.end is not None
    assert (job.end - lost.recording.manifest.start) / 1000 == pytest.approx(280, abs=0.1)
    assert lost.seconds("steps").max() < 241
    free = lost.dcgm(DEV + "FB_USED", 290, 299)
    assert free.max() < 100


def test_a_silent_collector_hides_a_node_that_works_on(lost: Telemetry) -> None:
    for gpu in range(GPUS):
        (gap, planned) = silences(lost, "t02", gpu)
        assert 110 < gap[0] < 121
        assert 179 < gap[1] < 190
        assert 310 < planned[0] <= 320
        assert 420 <= planned[1] < 430
    stepping = (lost.seconds("steps") > 125) & (lost.seconds("steps") < 175)
    assert "t02" in set(np.array(lost.table("steps")["node"].to_pylist())[stepping])


def test_a_frozen_exporter_repeats_itself(lost: Telemetry) -> None:
    frozen = lost.dcgm(DEV + "TOTAL_ENERGY_CONSUMPTION", 126, 199, "t04")
    assert len(frozen) > 10 * GPUS
    assert len(set(frozen)) == GPUS
    assert silences(lost, "t04", 0) == []
    assert len(set(lost.dcgm(DEV + "TOTAL_ENERGY_CONSUMPTION", 206, 230, "t04"))) > GPUS


def test_a_dead_node_is_silent_in_band_and_its_controller_lives(lost: Telemetry) -> None:
    for gpu in range(GPUS):
        ((begin, end),) = silences(lost, "t03", gpu)
        assert 310 < begin <= 320
        assert 500 <= end < 510
    table, seconds = lost.table("bmc"), lost.seconds("bmc")
    nodes, sensors = (np.array(table[name].to_pylist()) for name in ("node", "sensor"))
    dead = (nodes == "t03") & (seconds > 330) & (seconds < 490)
    assert dead.any()
    assert lost.column("bmc", "reading")[dead & (sensors == "node_power")].max() < 150
    kernel = lines(lost, "kernel", "t03")
    assert "Kernel panic" in [text for at, text in kernel if at < 320][-1]
    assert not [text for at, text in kernel if 320 < at < 500]
    assert "setting DOWN" in lines(lost, "scheduler", "t03")[1][1]


def test_the_memory_module_is_logged_before(lost: Telemetry) -> None:
    errors = [(at, text) for at, text in lines(lost, "sel", "t03") if "Memory" in text]
    waits = np.diff([at for at, text in errors if "Correctable ECC |" in text])
    assert (waits[1:] < waits[:-1]).all()
    assert "Uncorrectable ECC" in errors[-1][1]
    sensors, seconds = np.array(lost.table("bmc")["sensor"].to_pylist()), lost.seconds("bmc")
    mine = (np.array(lost.table("bmc")["node"].to_pylist()) == "t03") & (sensors == "dimm_status")
    states = lost.column("bmc", "state")
    assert states[mine & (seconds < 100)].max() == 0
    assert states[mine & (seconds > 330)].min() == 2
    assert states[(sensors == "dimm_status") & ~mine & (seconds > 330)].max() == 0


def test_what_is_volatile_begins_anew_after_a_boot(lost: Telemetry) -> None:
    for node, boot in (("t02", 420.0), ("t03", 500.0)):
        energy = lost.dcgm(DEV + "TOTAL_ENERGY_CONSUMPTION", boot, 600, node)
        assert 0 <= energy.min() < 2e6
        assert (lost.dcgm(DEV + "POWER_VIOLATION", boot, 600, node) < 1e9).all()
    assert lost.dcgm(DEV + "TOTAL_ENERGY_CONSUMPTION", 510, 600, "t04").min() > 1e9
    assert 43 in lost.dcgm(DEV + "XID_ERRORS", 0, 290, "t02")
    assert not lost.dcgm(DEV + "XID_ERRORS", 425, 600, "t02").any()


def test_a_reboot_on_purpose_says_so(lost: Telemetry) -> None:
    words = [text for _, text in lines(lost, "scheduler", "t02")]
    assert "DRAIN" in words[0]
    assert "IDLE" in words[-1]
    assert [text for _, text in lines(lost, "kernel", "t02") if "Restarting system" in text]
