"""Eight nodes, an hour, five faults: what the heap of the heap's test is a record of. Made by the real generator."""

from pathlib import Path
from typing import Any

from services.synth.make import Variant, make_recording
from tests.small import braked_vela, written

FAULTS = {
    "power_throttle": {"node": "v002"},
    "thermal_throttle": {"node": "v004"},
    "link_down": {"node": "v005", "nic": "mlx5_1"},
    "ecc_uncorrectable": {"node": "v006", "gpu": 3},
    "node_down": {"node": "v008"},
}


def _truth(fault: str, within_s: float, number: int) -> dict[str, Any]:
    return {"id": f"f{number}", "fault": fault, "within_s": within_s, "cause": "planted", "note": fault}


HAPPENINGS: list[dict[str, Any]] = [
    {
        "kind": "power_brake", "node": "v002", "at": "+00:12:00", "until": "+00:17:00", "gpu_cap_w": 150, "psu": 1,
        "truth": _truth("power_throttle", 60, 1),
    },
    {
        "kind": "fan_failure", "node": "v004", "fans": [2, 3], "at": "+00:22:00", "until": "+00:30:00",
        "truth": _truth("thermal_throttle", 400, 2),
    },
    {
        "kind": "link_down", "node": "v005", "nic": 1, "at": "+00:34:00", "until": "+00:40:00",
        "truth": _truth("link_down", 120, 3),
    },
    {
        "kind": "double_bit_error", "node": "v006", "gpu": 3, "at": "+00:44:00", "until": "+01:00:00",
        "truth": _truth("ecc_uncorrectable", 120, 4),
    },
    {
        "kind": "node_down", "node": "v008", "at": "+00:50:00", "until": "+01:00:00", "because": "gpu_board",
        "noticed_s": 60.0, "truth": _truth("node_down", 120, 5),
    },
]  # fmt: skip


def incident(folder: Path) -> Path:
    """Make the recording below `folder`, and return it."""
    scenario, profile = braked_vela()
    job = scenario["jobs"][0]
    scenario |= {
        "name": "heap",
        "duration": 3600.0,
        "distractors": [],
        "jobs": [
            job | {"submit": 30.0, "start": 60.0, "training": job["training"] | {"launch_s": 5, "load_s": 5}},
        ],
        "happenings": HAPPENINGS,
    }
    path = written(folder / "scenario", scenario, profile | {"nodes": 8})
    return make_recording(path, folder / "incident", Variant(seed=11))
