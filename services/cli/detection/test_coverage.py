import json
from functools import partial
from pathlib import Path

import pytest

from detectors.contract import Rung
from detectors.registry import discover
from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.recording.degrade import degrade_recording
from services.recording.reader import Recording
from services.synth.library import LIBRARY

invoke = partial(hindcast, "coverage")
BRAKE = LIBRARY / "small" / "vela-power-brake"
REASONS, CLOCK = "dcgm.DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "dcgm.DCGM_FI_DEV_SM_CLOCK"


@pytest.fixture(autouse=True)
def ladders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ladders of this test's own: those of the detectors may change."""
    known = {
        "power_throttle": (
            Rung(sees="the brake as the GPU says", needs=(REASONS,), within_s=15),
            Rung(sees="clocks below the peers'", needs=(CLOCK, "jobs"), within_s=60),
        ),
        "storage_slow": (Rung(sees="slow clients", needs=("storage.read_latency_ms",), within_s=210),),
    }
    for kind in discover().values():
        own = {fault: rungs for fault, rungs in known.items() if fault in kind.spec.faults}
        monkeypatch.setattr(kind, "spec", kind.spec.model_copy(update={"ladders": own}))


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("poor") / "poor"
    return degrade_recording(Recording.open(BRAKE), out, ("default-fields", "storage"))


def test_a_poor_cluster_hears_what_it_is_blind_to_and_what_to_add(poor: Path, tmp_path: Path) -> None:
    out = tmp_path / "coverage.json"
    result = invoke(str(poor), "--json", str(out))
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "power_throttle late 60 s clocks below the peers'" in words
    assert "storage_slow BLIND needs file system counters" in words
    assert "power_throttle within 15 s: the brake as the GPU says" in words
    assert "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, Why clocks" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    written = json.loads(out.read_text())
    assert {one["fault"]: one["verdict"] for one in written["faults"]}["storage_slow"] == "blind"
    assert written["csv"] == ["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, Why clocks are held down (bit mask)."]


def test_what_is_there_beside_it_counts(poor: Path) -> None:
    words = " ".join(invoke(str(poor), "--with", f"storage,{REASONS}").output.split())
    assert "storage_slow yes 210 s" in words
    assert "power_throttle yes 15 s" in words


def test_what_is_wrong_is_refused() -> None:
    for arguments, message in (((), "name a recording or a server"), ((str(BRAKE), "--with", "tape"), "'tape'")):
        error = invoke(*arguments).exception
        assert isinstance(error, UserError)
        assert message in error.message
        assert error.exit_code == 2
