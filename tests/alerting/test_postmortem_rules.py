"""Which rules a postmortem says have fired on an incident, and how near the silent ones came, by Prometheus' engine."""

from pathlib import Path

import pytest

from detectors.registry import choose
from services.api.tasks.alert_rules import alerts_of
from services.postmortem.case import investigate
from services.recording.reader import Recording
from services.rules.evaluation import evaluator_program
from tests.small import Brake, small_recording

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("ends_s", "fired", "held"), [(318, ["NodePowerBrake"], []), (312, [], ["NodePowerBrake"])])
def test_a_rule_fires_or_its_condition_was_true_too_briefly(
    tmp_path: Path, ends_s: int, fired: list[str], held: list[str]
) -> None:
    evaluator_program()
    brake = small_recording(tmp_path, "brief", nodes=4, minutes=8, brakes=[Brake("v002", 300, ends_s)])
    alerts = alerts_of(investigate(Recording.open(brake), choose()))
    assert [(one.detector, one.entity) for one in alerts.fired] == [(name, {"node": "v002"}) for name in fired]
    assert list(alerts.held) == held
    assert all(0 < length <= 12_000 for length in alerts.held.values())
    # Of each GPU of the node, which was braked for some of the rate's two minutes.
    rates = {part: one for part, one in alerts.came if "power_violation" in one.condition}
    assert set(rates) == {f"v002 GPU {gpu}" for gpu in range(8)}
    for one in rates.values():
        assert one.rule == "GpuPowerViolation"
        assert one.threshold == pytest.approx(0.5)
        assert one.value > 0.05
        assert one.met == (one.value > 0.5)
