"""straggler on real jobs: ByteDance's traces of a slowed worker and of an uneven stage, and a 64-node MLPerf run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from detectors.contract import Finding
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from services.recording.embedded import findings_of
from services.recording.importers.straggler_analysis import convert
from services.recording.reader import Recording
from tests.data import mlperf_power, public

Import = Callable[[str], Path]


@pytest.fixture
def traced(tmp_path: Path) -> Import:
    source = public("bytedance-straggler-traces")

    def imported(trial: str) -> Path:
        out = tmp_path / trial.lower()
        convert(source, out, trial=trial)
        return out

    return imported


def found_in(path: Path) -> list[Finding]:
    return list(findings_of(Recording.open(path), [(Straggler, configure(Straggler.config_type, Straggler.spec, {}))]))


def test_the_slowed_worker_and_nobody_else_is_named_in_time(traced: Import) -> None:
    path = traced("AR")
    (label,) = Recording.open(path).labels()
    (fired,) = found_in(path)
    assert (fired.state, fired.fault, dict(fired.entity)) == ("firing", "straggler", dict(label.entity))
    assert label.onset <= fired.detected_at <= label.onset + label.within_s * 1000
    # The artifact's own figures: rank 0 needs 0.546 s a forward pass, the median rank 0.218 s.
    assert float(fired.evidence["compute_s"]) > 2 * float(fired.evidence["compute_s_peers"])
    assert float(fired.evidence["comm_wait_s"]) < 0.1 * float(fired.evidence["comm_wait_s_peers"])


def test_an_uneven_last_stage_is_nobodys_fault(traced: Import) -> None:
    assert found_in(traced("ST")) == []


def test_a_healthy_run_of_64_nodes_is_quiet(tmp_path: Path) -> None:
    assert found_in(mlperf_power(tmp_path / "mlperf")) == []
