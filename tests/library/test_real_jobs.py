"""job_health on real training logs: right about what is put into their losses (`test_real_runs`: silent as they are).

No public log in hand has a loss that jumps and stays. So the jump is put into a real log's series (semi-real): the
scatter, the spikes and the steps are the run's own, the factor is ours.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from detectors.contract import Finding
from detectors.job_health.detector import JobHealth
from detectors.registry import choose
from services.recording.embedded import findings_of
from services.recording.importers.training_log import convert
from services.recording.reader import Recording
from tests.data import public

RUNS = ("2024-10-20_ScaleUp1B", "2024-10-29_Optimizers", "2024-11-14_QuantizedFP4")
STEP = re.compile(r"^(step:(\d+)/\d+ train_loss:)(\S+)(.*)$\n", re.MULTILINE)
START = "2024-10-29T00:00:00Z"
Factor = Callable[[int], float]


def logs_of(folder: str) -> list[Path]:
    return sorted(log for log in public(folder).rglob("*") if log.suffix in {".txt", ".out"})


def found_in(log: Path, out: Path) -> list[Finding]:
    convert(log, out, start=START, job_id="real")
    return list(findings_of(Recording.open(out), [one for one in choose() if one[0] is JobHealth]))


def changed(run: str, out: Path, factor: Factor, upto: int) -> Path:
    """Write the run's log up to a step, each loss times `factor` of its step."""
    log = logs_of(f"nanogpt-8xh100-steplogs/{run}")[0]

    def line(found: re.Match[str]) -> str:
        step = int(found[2])
        return "" if step > upto else f"{found[1]}{float(found[3]) * factor(step):.4f}{found[4]}\n"

    out.write_text(STEP.sub(line, log.read_text(encoding="utf-8")), encoding="utf-8")
    return out


def test_megatron_runs_that_find_their_loss_scale_and_take_minutes_a_step_are_quiet(tmp_path: Path) -> None:
    for number, log in enumerate(logs_of("fixtures-megatron/bigscience")):
        assert found_in(log, tmp_path / str(number)) == []


@pytest.mark.parametrize(("run", "at"), [(RUNS[0], 1500), (RUNS[1], 3000), (RUNS[2], 2500)])
def test_a_loss_that_jumps_sevenfold_within_one_step_and_stays_is_named(run: str, at: int, tmp_path: Path) -> None:
    log = changed(run, tmp_path / "log.txt", lambda step: 7.0 if step > at else 1.0, at + 1500)
    (fired,) = (finding for finding in found_in(log, tmp_path / "run") if finding.state == "firing")
    assert (fired.fault, dict(fired.entity)) == ("loss_anomaly", {"job_id": "real"})
    assert float(fired.evidence["loss"]) / float(fired.evidence["loss_before"]) == pytest.approx(7, rel=0.1)
    assert (fired.detected_at - fired.started_at) / 1000 <= 150


@pytest.mark.parametrize(("run", "at"), [(RUNS[0], 1500), (RUNS[1], 3000), (RUNS[2], 2500)])
@pytest.mark.parametrize("factor", [
    lambda step: 7.0 if step <= 5 else 1.0,
    lambda step: 1.1,
], ids=["it recovers in five steps", "it shifts by a tenth"])  # fmt: skip
def test_a_loss_that_recovers_or_shifts_a_little_is_not(run: str, at: int, factor: Factor, tmp_path: Path) -> None:
    log = changed(run, tmp_path / "log.txt", lambda step: factor(step - at) if step > at else 1.0, at + 1500)
    assert found_in(log, tmp_path / "run") == []
