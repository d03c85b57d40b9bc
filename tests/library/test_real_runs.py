"""All detectors on real runs of which nobody reported a fault, and what a real cluster's faults are by our names."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from detectors.contract import Finding
from services.recording.embedded import findings_of
from services.recording.faults import FAULTS
from services.recording.importers.training_log import convert
from services.recording.reader import Recording
from tests.data import mlperf_power, public

NANOGPT = "nanogpt-8xh100-steplogs"
SCALE_UP = "2024-10-20_ScaleUp1B/87bd51fd-6203-4c88-b3aa-8a849a6a83ca.txt"
UPTO = "step:14600/"
STEP = re.compile(r"^(step:(\d+)/\d+ train_loss:)\S+", re.MULTILINE)

NAMED = {
    "GPU DBE(Double Bit ECC) > Threshold": "ecc_uncorrectable",
    "GPU SBE(Single Bit ECC) > Threshold": "ecc_correctable_storm",
    "Link Down": "link_down",
    "NIC Lost": "link_down",
    "GPU PCI link width low": "pcie_degraded",
    "Power Supply Failure detected": "power_throttle",
    "Redundancy Lost": "power_throttle",
    "Speed Critical (Sensor)": "thermal_throttle",
    "GPU Temperature High": "thermal_throttle",
    "GPU Lost": "gpu_lost",
    "GPU device not found": "gpu_lost",
    "GPU P2P Bandwidth Low": "nvlink_fault",
    "Silent Data Corruption": "loss_anomaly",
    "Server down": "node_down",
    "Kernel Panic": "node_down",
}
"""What StepFun's monitoring called a fault, by the name of ours that it is or leads to."""


def all_find(path: Path) -> list[Finding]:
    return list(findings_of(Recording.open(path)))


def test_64_nodes_that_train_for_an_hour_are_quiet(tmp_path: Path) -> None:
    assert all_find(mlperf_power(tmp_path / "mlperf")) == []


def test_steps_that_take_twice_as_long_now_and_then_are_no_hang(tmp_path: Path) -> None:
    """No rank reports for itself: nobody can be named for the fifty steps of four seconds in most of this run."""
    whole = public(f"{NANOGPT}/{SCALE_UP}").read_text(encoding="utf-8")
    (tmp_path / "log.txt").write_text(whole[: whole.index(f"\n{UPTO}") + 1], encoding="utf-8")
    convert(tmp_path / "log.txt", tmp_path / "run", start="2024-10-20T00:00:00Z")
    batches = Recording.open(tmp_path / "run").batches("steps", columns=("step_time_s",))
    steps = np.concatenate([batch.column("step_time_s").to_numpy() for batch in batches])
    assert np.count_nonzero(steps > 2 * np.nanmedian(steps)) > 50
    assert all_find(tmp_path / "run") == []


@pytest.mark.parametrize("record", ["2024-10-29_Optimizers", "2024-11-14_QuantizedFP4"])
def test_real_losses_are_in_order_until_they_are_spoilt(record: str, tmp_path: Path) -> None:
    (log,) = public(f"{NANOGPT}/{record}").glob("*.txt")
    convert(log, tmp_path / "sound", start="2024-10-29T00:00:00Z", job_id="nano")
    assert all_find(tmp_path / "sound") == []
    text = log.read_text(encoding="utf-8")
    last = max(int(found[2]) for found in STEP.finditer(text))
    spoilt = STEP.sub(lambda found: f"{found[1]}nan" if int(found[2]) > last // 2 else found[0], text)
    (tmp_path / "spoilt.txt").write_text(spoilt, encoding="utf-8")
    convert(tmp_path / "spoilt.txt", tmp_path / "spoilt", start="2024-10-29T00:00:00Z", job_id="nano")
    found = [(f.fault, dict(f.entity)) for f in all_find(tmp_path / "spoilt") if f.state == "firing"]
    assert found == [("loss_anomaly", {"job_id": "nano"})]


def test_most_hardware_faults_of_a_real_cluster_have_one_of_our_names() -> None:
    """Of those that its monitoring could name at all; and they are as rare as the false alarms that we allow."""
    events = json.loads(public("infinitehbd-fault-trace/fault_trace.json").read_text(encoding="utf-8"))
    begun = [event["fault_type"] for event in events if event["event_type"] == "fault_start"]
    hardware = Counter(fault["Desc"] for fault in begun if fault["Level"] == "Hardware Failure")
    named = {name: count for name, count in hardware.items() if "unknow" not in name.lower()}
    assert set(NAMED.values()) <= set(FAULTS)
    assert sum(count for name, count in named.items() if name in NAMED) >= 0.75 * sum(named.values())
    assert 0.3 < 100 * len(begun) / (400 * 348) < 0.5  # faults in 100 node-days of 400 servers, 348 days
