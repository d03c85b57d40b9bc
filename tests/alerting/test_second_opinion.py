"""The comparison of detectors and rules: on small recordings, a braked node and a healthy cluster."""

from pathlib import Path

import pytest

from benchmarks.second_opinion import Heard, hear, show
from services.recording.reader import Recording
from services.rules.evaluation import evaluator_program
from services.synth.small import FOLDER

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def evaluator() -> Path:
    """The built evaluator."""
    return evaluator_program()


def test_both_name_the_braked_node_in_time(evaluator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard = hear(Recording.open(FOLDER / "vela-power-brake"), evaluator)
    hits = {(one.voice, one.name): one for one in heard.opinions if one.verdict == "hit"}
    assert set(hits) == {("detector", "power_throttle"), ("rule", "NodePowerBrake")}
    assert all(one.entity == {"node": "v002"} for one in hits.values())
    assert all(0 < one.delay_s <= 30 for one in hits.values() if one.delay_s is not None)
    assert heard.alarms == []
    assert heard.missed == {"detector": [], "rule": []}
    show(heard)
    printed = capsys.readouterr().out
    assert "NodePowerBrake: power_throttle of node=v002: hit after" in printed
    assert "power_throttle: power_throttle of node=v002: hit after" in printed


def test_nobody_says_anything_of_a_healthy_cluster(evaluator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard: Heard = hear(Recording.open(FOLDER / "vela-healthy"), evaluator)
    assert list(heard.opinions) == []
    show(heard)
    assert "no findings, no alerts" in capsys.readouterr().out
