"""Rules that are asked about one place and its jobs are fed little else, and say of these what they say of all."""

from pathlib import Path

import pytest

from services.recording.reader import Recording
from services.rules.evaluation import Came, Change, Evaluated, Settings, evaluate, evaluator_program
from services.rules.feed import Places
from services.rules.files import rule_files
from services.rules.verdict import entity_of, node_names
from tests.small import Brake, small_recording

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
# What other nodes do matters to each of these alerts in a way of its own, or not at all.
MIXED = """
groups:
  - name: mixed
    interval: 15s
    rules:
      - record: gpu:watts:avg1m
        expr: |
          max by (cluster, node, gpu) (label_join(
            avg_over_time(DCGM_FI_DEV_POWER_USAGE[1m]), "node", "", "Hostname", "hostname"))
      - record: node:watts:sum
        expr: sum without (gpu) (gpu:watts:avg1m)
      - alert: BelowTheMedian
        expr: gpu:watts:avg1m < on (cluster) group_left () 0.8 * quantile by (cluster) (0.5, gpu:watts:avg1m)
      - alert: Lowest
        expr: bottomk by (cluster) (1, node:watts:sum)
      - alert: NotAlone
        expr: |
          node:watts:sum and on (cluster)
          count by (cluster) (node:watts:sum < 0.8 * scalar(max(node:watts:sum))) > 1
      - alert: AloneAmongThree
        expr: |
          node:watts:sum < 0.8 * scalar(max(node:watts:sum)) unless on (cluster)
          count by (cluster) (node:watts:sum < 0.8 * scalar(max(node:watts:sum))) > 1
      - alert: LowOrHiddenByLow
        expr: node:watts:sum < 2400 or on (cluster) node:watts:sum > 2400
      - alert: ClockFell
        expr: DCGM_FI_DEV_SM_CLOCK < 0.8 * max_over_time(DCGM_FI_DEV_SM_CLOCK[4m] offset 30s)
      - alert: OfOneInstance
        expr: |
          DCGM_FI_DEV_POWER_USAGE{gpu="0"} < 300
          and on (instance) DCGM_FI_DEV_POWER_USAGE{gpu="1"} < 300
      - alert: GivenAName
        expr: label_replace(min by (cluster) (node:watts:sum), "node", "v002", "", "") < 2400
      - alert: JobDraws
        expr: |
          avg by (cluster, job_id) (
            group by (cluster, job_id, node) (last_over_time(hindcast_job_iteration{node!=""}[1m]))
            * on (cluster, node) group_left () node:watts:sum) < 4000
      - alert: RanksAreFew
        expr: count by (cluster, job_id) (hindcast_job_iteration{rank!="-1"}) < 1000
      - alert: SomebodyIsUp
        expr: sum by (job) (up) > 0
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Four nodes for twelve minutes, of which three are braked, one after the other."""
    brakes = [Brake("v002", 240, 420), Brake("v003", 300, 360), Brake("v001", 480, 600)]
    path = small_recording(tmp_path_factory.mktemp("asked"), "thrice", nodes=4, minutes=12, brakes=brakes)
    return Recording.open(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Hindcast's own rules, and those above."""
    mixed = tmp_path_factory.mktemp("rules") / "mixed.yaml"
    mixed.write_text(MIXED, encoding="utf-8")
    return [*rule_files(ROOT / "alert-rules"), mixed]


def asked(recording: Recording, files: list[Path], near: list[str], places: Places) -> Evaluated:
    start = recording.manifest.start
    about = (start + 240_000, start + 500_000)
    return evaluate(evaluator_program(), recording, files, Settings(about=about, near=near, places=places))


def of(found: Evaluated, recording: Recording, places: Places) -> tuple[list[Change], list[Came]]:
    """Return the alerts and comparisons about some places."""
    nodes = node_names([node.model_dump() for node in recording.topology.nodes])

    def concerned(one: Change | Came) -> bool:
        entity = entity_of(one.labels, nodes)
        return any(entity.get(key) in names for key, names in places.items())

    came = sorted(filter(concerned, found.came), key=lambda one: (one.rule, one.condition, sorted(one.labels.items())))
    return [one for one in found.changes if concerned(one)], came


def test_alerts_and_comparisons_about_a_node_and_its_job_are_the_same(recording: Recording, files: list[Path]) -> None:
    (job,) = {job.job_id for job in recording.jobs()}
    near = [rule.partition("alert: ")[2] for rule in MIXED.splitlines() if "alert: " in rule]
    whole = asked(recording, files, near, {})
    for places in ({"node": ["v002"], "job_id": [job]}, {"node": ["v003"]}, {"job_id": [job]}):
        found = asked(recording, files, near, places)
        alerts, came = of(found, recording, places)
        assert (alerts, came) == of(whole, recording, places)
        assert not found.errors
        assert alerts
        assert came
    assert {one.labels["alertname"] for one in of(whole, recording, {"node": ["v002"], "job_id": [job]})[0]} >= {
        "NodePowerBrake", "BelowTheMedian", "Lowest", "NotAlone", "AloneAmongThree", "LowOrHiddenByLow",
        "ClockFell", "OfOneInstance", "GivenAName", "JobDraws", "RanksAreFew",
    }  # fmt: skip


def test_of_what_other_nodes_have_only_what_a_node_is_compared_with_is_fed(recording: Recording) -> None:
    shipped = rule_files(ROOT / "alert-rules")
    whole, found = (asked(recording, shipped, [], places) for places in ({}, {"node": ["v002"]}))
    assert 0 < found.samples < 0.6 * whole.samples
    assert found.series < 0.5 * whole.series


def test_a_place_that_is_no_node_is_asked_about_alike(recording: Recording) -> None:
    shipped = rule_files(ROOT / "alert-rules")
    mount = {"mount": [recording.topology.mounts[0].mount]}
    assert of(asked(recording, shipped, [], mount), recording, mount) == of(
        asked(recording, shipped, [], {}), recording, mount
    )


def test_an_alert_that_waits_across_two_stretches_of_evaluation_fires_in_time(tmp_path: Path) -> None:
    """Rules are evaluated over half an hour at once."""
    path = small_recording(tmp_path, "late", nodes=2, minutes=34, brakes=[Brake("v002", 1790, 1900)])
    recording = Recording.open(path)
    found = evaluate(evaluator_program(), recording, rule_files(ROOT / "alert-rules"))
    brake = [one for one in found.changes if one.labels["alertname"] == "NodePowerBrake"]
    assert [one.state for one in brake] == ["pending", "firing", "resolved"]
    assert brake[1].at - brake[0].at == 10_000
    assert 0 < brake[0].at - recording.manifest.start - 1_790_000 <= 20_000
