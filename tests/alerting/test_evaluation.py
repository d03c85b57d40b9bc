"""`hindcast rules`: Prometheus' rule engine over recordings, in event time."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.kit.errors import UserError
from services.recording.reader import Recording
from services.rules.evaluation import Came, Change, Evaluated, Settings, evaluate, evaluator_program, reads_of
from services.rules.files import rule_files
from services.rules.verdict import entity_of, findings_of
from services.score.matching import judge
from tests.small import Brake, small_recording

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
NODES = frozenset({"v001", "v002", "v003", "v004"})


@pytest.fixture(scope="module")
def evaluator() -> Path:
    """The built evaluator."""
    return evaluator_program()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Four nodes for eight minutes, one of them braked for two."""
    brakes = [Brake("v002", 240, 360)]
    path = small_recording(tmp_path_factory.mktemp("rules"), "braked", nodes=4, minutes=8, brakes=brakes)
    return Recording.open(path)


@pytest.fixture(scope="module")
def evaluated(evaluator: Path, recording: Recording) -> Evaluated:
    """What hindcast's own rules do over it."""
    return evaluate(evaluator, recording, rule_files(ROOT / "alert-rules"))


Over = Callable[..., Evaluated]


@pytest.fixture
def over(evaluator: Path, recording: Recording, tmp_path: Path) -> Over:
    """Evaluate the rules of a text over the recording; named arguments are settings."""

    def of(rules: str, **settings: Any) -> Evaluated:
        (tmp_path / "mine.yaml").write_text(rules, encoding="utf-8")
        return evaluate(evaluator, recording, [tmp_path / "mine.yaml"], Settings(**settings))

    return of


def only(evaluated: Evaluated, state: str) -> list[Change]:
    return [change for change in evaluated.changes if change.state == state]


def test_the_brake_is_reported_in_time_and_resolved_and_nothing_else(
    recording: Recording, evaluated: Evaluated
) -> None:
    label = next(label for label in recording.labels() if label.fault == "power_throttle")
    findings, _ = findings_of(evaluated.changes, NODES)
    outcomes = judge(findings, list(recording.labels()))
    assert [(outcome.kind, outcome.fault) for outcome in outcomes] == [("hit", "power_throttle")]
    (fired,) = [change for change in only(evaluated, "firing") if change.labels["alertname"] == "NodePowerBrake"]
    assert dict(fired.labels) == {
        "alertname": "NodePowerBrake", "cluster": recording.manifest.cluster.name, "fault": "power_throttle",
        "node": "v002", "replay": "live", "severity": "page", "source": "rule",
    }  # fmt: skip
    assert "v002" in fired.annotations["summary"]
    assert "{{" not in "".join(fired.annotations.values())
    # `for` is ten seconds, and it shows: pending first.
    (pending,) = [c for c in only(evaluated, "pending") if c.labels == fired.labels]
    assert pending.at == pending.active_at == fired.active_at == fired.at - 10_000
    (resolved,) = [c for c in only(evaluated, "resolved") if c.labels == fired.labels]
    # keep_firing_for is a minute, counted from the last evaluation at which it was braked.
    assert 60_000 <= resolved.at - label.end <= 90_000
    assert not evaluated.errors
    assert evaluated.refused == 0


def test_it_is_the_same_on_every_run(
    evaluator: Path, recording: Recording, evaluated: Evaluated, tmp_path: Path
) -> None:
    """Also from rule files that lie elsewhere: a live Prometheus shifts groups by a hash of their path."""
    copies = []
    for file in rule_files(ROOT / "alert-rules"):
        copies.append(tmp_path / file.name)
        copies[-1].write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    again = evaluate(evaluator, recording, copies)
    assert [change.to_json() for change in again.changes] == [change.to_json() for change in evaluated.changes]


OWN = """
groups:
  - name: mine
    interval: 30s
    rules:
      - record: instance:power:sum
        expr: sum by (instance) (DCGM_FI_DEV_POWER_USAGE)
      - alert: NodeDrawsNothing
        expr: instance:power:sum < 10
      - alert: Down
        expr: up == 0
      - alert: Always
        expr: vector(1)
        for: 1m
        annotations: {now: '{{ query "time()" | first | value }}'}
"""


def test_rules_that_people_bring(over: Over, evaluator: Path, tmp_path: Path) -> None:
    dump = tmp_path / "recorded.txt"
    found = over(OWN, replay="r1", openmetrics=dump)
    reads = reads_of(evaluator, [tmp_path / "mine.yaml"])
    assert set(reads.names) == {"DCGM_FI_DEV_POWER_USAGE", "instance:power:sum", "up"}
    assert not reads.all
    # A scrape now and then is missed, which `up` says; nothing else fires.
    assert {change.labels["alertname"] for change in found.changes} == {"Always", "Down"}
    assert all(change.labels["replay"] == "r1" for change in found.changes if change.labels["alertname"] == "Down")
    pending, firing = (change for change in found.changes if change.labels["alertname"] == "Always")
    assert (pending.state, firing.state) == ("pending", "firing")
    assert pending.at % 30_000 == 0
    assert firing.at - pending.at == 60_000
    text = dump.read_text(encoding="utf-8")
    assert text.endswith("# EOF\n")
    lines = [line for line in text.splitlines() if line.startswith('instance:power:sum{instance="v001:9400"}')]
    # One a multiple of 30 s, but before the first reading.
    assert len(lines) in (15, 16, 17)
    assert 'ALERTS{alertname="Always",alertstate="firing"} 1 ' in text


LOOKS_BACK = """
groups:
  - name: written
    interval: 15s
    rules:
      - record: node:watts:avg
        expr: avg by (instance) (DCGM_FI_DEV_POWER_USAGE)
  - name: read
    interval: 15s
    rules:
      - alert: NodeDrawsLess
        expr: avg_over_time(node:watts:avg[30s]) < 0.8 * max_over_time(node:watts:avg[1m] offset 30s)
        for: 15s
        keep_firing_for: 15s
      - alert: NodeDrawsLessForLong
        expr: node:watts:avg < 300
        for: 90s
"""
OF_ITSELF = """
  - name: itself
    interval: 15s
    rules:
      - record: rounds:total
        expr: rounds:total + 1 or vector(1)
      - alert: TwentyRounds
        expr: rounds:total > 20
"""


IN_ORDER = """
groups:
  - name: another
    interval: 15s
    rules:
      - alert: InAnotherGroup
        expr: rounds:total == 3
  - name: counts
    interval: 15s
    rules:
      - alert: BeforeIt
        expr: rounds:total == 3
      - record: rounds:total
        expr: rounds:total + 1 or vector(1)
      - alert: AfterIt
        expr: rounds:total == 3
"""


def test_a_rule_that_stands_before_what_it_reads_sees_that_of_the_moment_before(over: Over) -> None:
    fired = {change.labels["alertname"]: change.at for change in only(over(IN_ORDER), "firing")}
    assert fired["BeforeIt"] == fired["AfterIt"] + 15_000
    assert fired["InAnotherGroup"] == fired["AfterIt"]


EQUAL = """
groups:
  - name: equal
    interval: 15s
    rules:
      - record: cluster:watts:stdvar
        expr: stdvar(DCGM_FI_DEV_POWER_USAGE / 3)
      - record: gpu:equal:topk
        expr: topk(1, abs(DCGM_FI_DEV_POWER_USAGE * 0))
"""


def test_what_rules_record_is_the_same_each_time_to_the_last_digit(over: Over, tmp_path: Path) -> None:
    dumps = [tmp_path / f"{number}.txt" for number in range(4)]
    for dump in dumps:
        over(EQUAL, openmetrics=dump)
    texts = {dump.read_bytes() for dump in dumps}
    assert len(texts) == 1
    assert b"gpu:equal:topk{" in texts.pop()


def within(found: Evaluated, begin: int, end: int) -> list[str]:
    """Return what fired between two moments, and what waited in between and never fired."""
    fired = [change for change in only(found, "firing") if begin <= change.at <= end]
    cleared = [change for change in only(found, "cleared") if begin <= change.at and change.active_at <= end]
    return [change.to_json() for change in (*fired, *cleared)]


@pytest.mark.parametrize(("begin_s", "end_s"), [(200, 290), (270, 390), (350, 480)])
@pytest.mark.parametrize("rules", [LOOKS_BACK, LOOKS_BACK + OF_ITSELF])
def test_what_cannot_matter_for_what_is_asked_is_not_evaluated(
    over: Over, recording: Recording, rules: str, begin_s: int, end_s: int
) -> None:
    """Alerts fire and clear at the same moments; of rules that look back at themselves nothing early is left out."""
    begin, end = (recording.manifest.start + 1000 * second for second in (begin_s, end_s))
    whole, part = (over(rules, lookback="1m", about=about) for about in (None, (begin, end)))
    assert within(part, begin, end) == within(whole, begin, end) != []
    assert part.rounds < whole.rounds or (rules != LOOKS_BACK and end_s + 120 > 480)


def test_samples_that_cannot_matter_for_what_is_asked_are_not_fed(evaluator: Path, tmp_path: Path) -> None:
    brakes = [Brake("v002", 6600, 6720)]
    recording = Recording.open(small_recording(tmp_path, "late", nodes=2, minutes=120, brakes=brakes))
    begin, end = recording.manifest.start + 6_590_000, recording.manifest.start + 6_730_000
    files = rule_files(ROOT / "alert-rules")
    whole, part = (evaluate(evaluator, recording, files, Settings(about=about)) for about in (None, (begin, end)))
    assert within(part, begin, end) == within(whole, begin, end) != []
    assert part.samples < 0.6 * whole.samples


NEAR = """
groups:
  - name: near
    interval: 30s
    rules:
      - record: gpu:watts
        expr: max by (instance, gpu) (DCGM_FI_DEV_POWER_USAGE)
      - record: node:watts:max
        expr: max by (instance) (gpu:watts)
      - alert: AboveItsNode
        expr: gpu:watts > on (instance) group_left () 1.5 * node:watts:max - 0.5 * node:watts:max
      - alert: Parts
        expr: max by (instance) (gpu:watts < 10) and max by (instance) (gpu:watts) > 0 unless node:watts:max > 1
      - alert: Inner
        expr: count by (instance) (gpu:watts >= 1000000) >= 4
      - alert: Other
        expr: gpu:watts > 1
"""


def test_it_is_reported_how_near_the_comparisons_of_a_rule_came(
    over: Over, recording: Recording, tmp_path: Path
) -> None:
    dump = tmp_path / "recorded.txt"
    start, end = recording.manifest.start + 200_000, recording.manifest.start + 300_000
    came = over(NEAR, openmetrics=dump, about=(start, end), near=["AboveItsNode", "Parts", "Inner"]).came
    recorded: dict[tuple[str, str, str], dict[int, float]] = {}
    for line in dump.read_text(encoding="utf-8").splitlines():
        if line.startswith(("gpu:watts{", "node:watts:max{")):
            series, value, at = line.rsplit(" ", 2)
            labels = dict(re.findall(r'(\w+)="([^"]*)"', series))
            if start <= 1000 * float(at) <= end:
                key = series.partition("{")[0], labels["instance"], labels.get("gpu", "")
                recorded.setdefault(key, {})[round(1000 * float(at))] = float(value)
    gpus = {key[1:]: values for key, values in recorded.items() if key[0] == "gpu:watts"}
    assert len(gpus) == 32

    def nearest(condition: str) -> list[Came]:
        return [one for one in came if one.condition == condition]

    above = nearest("gpu:watts > on (instance) group_left () 1.5 * node:watts:max - 0.5 * node:watts:max")
    assert {(one.labels["instance"], one.labels["gpu"]) for one in above} == set(gpus)
    for one in above:
        whole = recorded["node:watts:max", one.labels["instance"], ""]
        shares = {at: watts / whole[at] for at, watts in gpus[one.labels["instance"], one.labels["gpu"]].items()}
        assert one.value / one.threshold == pytest.approx(max(shares.values()))
        assert shares[one.at] == pytest.approx(max(shares.values()))
        assert not one.met  # none draws more than the most
    low = nearest("gpu:watts < 10")
    assert {one.value for one in low} == {min(values.values()) for values in gpus.values()}
    assert not any(one.met for one in low)
    assert all(one.met for one in nearest("max by (instance) (gpu:watts) > 0"))
    inner = {(one.condition, one.within) for one in came if one.rule == "Inner"}
    assert inner == {("gpu:watts >= 1000000", "count by (instance) (gpu:watts >= 1000000) >= 4")}
    # What is excepted is no condition, and of a rule that nobody asks about nothing is reported.
    assert nearest("node:watts:max > 1") == []
    assert {one.rule for one in came} == {"AboveItsNode", "Parts", "Inner"}


def test_what_stops_is_seen_at_once_by_its_staleness_marker(over: Over) -> None:
    """The sink's own markers: without them a lost series would count for five minutes more."""
    found = over(
        "groups: [{name: g, rules: [{alert: Seen, expr: 'count(DCGM_FI_DEV_GPU_TEMP) > 0'},"
        " {alert: Codes, expr: 'count by (err_code) (DCGM_FI_DEV_XID_ERRORS) > 0'}]}]"
    )
    assert {change.labels["alertname"] for change in only(found, "firing")} == {"Seen", "Codes"}
    assert all("err_code" in c.labels for c in found.changes if c.labels["alertname"] == "Codes")


def test_a_file_that_is_wrong_is_reported_in_prometheus_words(recording: Recording, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("groups: [{name: g, rules: [{alert: A, expr: 'sum(('}]}]", encoding="utf-8")
    with pytest.raises(UserError, match=r"wrong\.yaml.*parse error") as caught:
        CliRunner().invoke(app, ["rules", str(recording.path), "--rules", str(wrong)], catch_exceptions=False)
    assert caught.value.exit_code == 2


def test_a_rule_that_fails_at_run_time_is_reported_and_the_rest_goes_on(over: Over) -> None:
    found = over(
        "groups: [{name: g, rules: [{alert: Many, expr: 'DCGM_FI_DEV_GPU_TEMP * on (cluster) DCGM_FI_DEV_POWER_USAGE'},"
        " {alert: Always, expr: 'vector(1)'}]}]"
    )
    assert "many-to-many" in found.errors["Many"]
    assert [change.labels["alertname"] for change in only(found, "firing")] == ["Always"]


def test_the_command_prints_a_table_and_writes_lines(recording: Recording, tmp_path: Path) -> None:
    lines = tmp_path / "alerts.jsonl"
    rules = ROOT / "alert-rules" / "detectors" / "power_throttle.yaml"
    done = CliRunner().invoke(
        app,
        ["rules", str(recording.path), "--rules", str(rules), "--json", str(lines)],
        catch_exceptions=False,
        env={"COLUMNS": "160"},
    )
    assert done.exit_code == 0
    assert "NodePowerBrake" in done.stdout
    assert "hit 1, miss 0, late 0" in done.stdout
    states = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert [s["state"] for s in states if s["alertname"] == "NodePowerBrake"] == ["pending", "firing", "resolved"]


def test_an_alert_is_about_what_its_labels_name() -> None:
    assert entity_of({"node": "v001", "gpu": "3", "job_id": "8"}, NODES) == {"node": "v001", "gpu": 3}
    assert entity_of({"Hostname": "v001"}, NODES) == {"node": "v001"}
    assert entity_of({"instance": "v002:9100"}, NODES) == {"node": "v002"}
    assert entity_of({"switch": "s1", "port": "Ethernet8"}, NODES) == {"switch": "s1", "port": "Ethernet8"}
    assert entity_of({"instance": "elsewhere:9100"}, NODES) == {}


def test_a_feed_that_breaks_off_is_no_result(evaluator: Path, tmp_path: Path) -> None:
    """Whoever feeds it may be killed: what was not fed must not look like silence."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("groups: [{name: g, rules: [{alert: Gone, expr: 'absent(up)'}]}]", encoding="utf-8")
    done = subprocess.run(
        [evaluator, "evaluate", "-start=0", "-end=600000", mine],
        input=b"W\x08\x00\x00\x00" + bytes(8), capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"broke off" in done.stderr
    assert b'"kind":"end"' not in done.stdout
