"""alert-rules/alertmanager.yaml in the real Alertmanager: who is silenced by what, what receivers get, and how often.

An Alertmanager of its own, with the examples in use and with short group times; alerts are posted by hand.
"""

import os
import re
import shlex
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.kit.wait import until
from services.stack import build
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests import web
from tests.alerting.test_amtool import with_examples
from tests.integration.receivers import PAGERDUTY, SLACK, Receiver, Trouble, serve

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        os.environ.get("HINDCAST_STACK", "native") != "native", reason="runs the Alertmanager of the native stack"
    ),
]
ROOT = Path(__file__).parents[2]
Alert = dict[str, str]


@pytest.fixture(scope="module")
def slack() -> Iterator[Receiver]:
    with serve(SLACK) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def pagerduty() -> Iterator[Receiver]:
    with serve(PAGERDUTY) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, webhook: Receiver, slack: Receiver, pagerduty: Receiver
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("alertmanager")
    config: dict[str, Any] = yaml.safe_load(with_examples())
    _hurry(config["route"])
    examples = {receiver["name"]: receiver for receiver in config["receivers"]}
    examples["page-hardware"]["pagerduty_configs"][0]["url"] = pagerduty.url
    examples["page-network"]["webhook_configs"][0]["timeout"] = "1s"
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = load_settings(alertmanager_config=folder / "alertmanager.yaml")
    with Stack.start(folder / "state", settings, only=("alertmanager",)) as stack:
        secrets = {
            "pagerduty-routing-key": uuid.uuid4().hex,
            "slack-webhook-url": slack.url,
            "network-webhook-url": webhook.url,
        }
        for name, secret in secrets.items():
            (stack.state_dir / "config" / name).write_text(secret, encoding="utf-8")
        yield stack


def _hurry(route: dict[str, Any]) -> None:
    """Make a route and those below it wait for a second where they wait for minutes."""
    if "group_wait" in route:
        route |= {"group_wait": "0s", "group_interval": "1s"}
    for below in route.get("routes", ()):
        _hurry(below)


class Desk:
    """Posts alerts to an Alertmanager, as notify and Prometheus do, and sees what it makes of them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.url = f"{stack.addresses.alertmanager}/api/v2"

    def post(self, *alerts: Alert, over: bool = False) -> None:
        ends = {"endsAt": "2020-01-02T00:00:00Z"} if over else {}
        body = [
            {
                "labels": labels,
                "annotations": {
                    "summary": f"{labels['fault']} on {labels.get('node', 'it')}",
                    "dashboard_url": "http://grafana.example/d/hindcast-incident",
                    "runbook_url": "https://runbooks.example/x",
                },
                "startsAt": "2020-01-01T00:00:00Z",
                **ends,
            }
            for labels in alerts
        ]
        web.post(f"{self.url}/alerts", json=body).raise_for_status()

    def known(self, **labels: str) -> list[dict[str, Any]]:
        """Return the alerts with these labels, as the server reports them."""
        matchers = [f'{name}="{value}"' for name, value in labels.items()]
        found: list[dict[str, Any]] = web.get(f"{self.url}/alerts", params={"filter": matchers}).json()
        return found


@pytest.fixture
def desk(stack: Stack) -> Desk:
    return Desk(stack)


def alert(
    fault: str, *, source: str = "detector", severity: str = "page", replay: str = "live", **entity: str
) -> Alert:
    """Return an alert's labels as of the schema; a rule's alert is named otherwise than a detector's."""
    name = "".join(word.capitalize() for word in (source, *fault.split("_")))
    return {"alertname": name, "fault": fault, "severity": severity, "source": source, "replay": replay, **entity}


def both(fault: str, detector: dict[str, str], rule: dict[str, str]) -> tuple[Alert, Alert]:
    """Return what a detector and what a rule say of a fault, each on the entity it names."""
    return alert(fault, **detector), alert(fault, source="rule", **rule)


NODE = {"node": "n1"}
GPU = {"node": "n1", "gpu": "3"}
OTHER_GPU = {"node": "n1", "gpu": "4"}
JOB, OTHER_JOB = {"job_id": "8"}, {"job_id": "9"}
SWITCH, PORT = {"switch": "s1"}, {"switch": "s1", "port": "Ethernet8"}
DOWN = alert("node_down", **NODE)
LOST = alert("gpu_lost", **GPU)
BRAKE = "power_throttle"
# What is firing, what else is, and whether the first silences the second.
SILENCES: dict[str, tuple[Alert, Alert, bool]] = {
    "a dead node its GPU": (DOWN, LOST, True),
    "a dead node, by a rule, its GPU": (DOWN | {"source": "rule"}, LOST | {"source": "rule"}, True),
    "a dead node its link": (DOWN, alert("link_down", node="n1", nic="mlx5_0"), True),
    "a dead node its exporter": (DOWN, alert("telemetry_gap", severity="ticket", **NODE), True),
    "a dead node no other node's GPU": (DOWN, LOST | {"node": "n2"}, False),
    "a dead node not its power supply": (DOWN, alert("psu_failed", source="rule", **NODE), False),
    "an idle node that is silent no GPU": (DOWN | {"severity": "info"}, LOST, False),
    "a dead node of a replay no live GPU": (DOWN | {"replay": "r"}, LOST, False),
    "a detector the rule": (*both(BRAKE, NODE, NODE), True),
    "a detector on a GPU the rule on it": (*both(BRAKE, GPU, GPU), True),
    "a detector on the node the rule on a GPU": (*both(BRAKE, NODE, GPU), True),
    "a detector on a GPU the rule on the node": (*both(BRAKE, GPU, NODE), True),
    "a detector on a switch the rule on a port": (*both("link_down", SWITCH, PORT), True),
    "a detector on a job the rule": (*both("job_hang", JOB, JOB), True),
    "a detector not the rule on another GPU": (*both(BRAKE, GPU, OTHER_GPU), False),
    "a detector not the rule on another job": (*both("job_hang", JOB, OTHER_JOB), False),
    "a detector not the rule of another fault": (DOWN, alert("thermal_throttle", source="rule", **NODE), False),
    "a rule no detector": (alert(BRAKE, source="rule", **NODE), alert(BRAKE, **NODE), False),
}


def test_what_is_silenced_and_what_is_not(desk: Desk) -> None:
    desk.post(*(labels | {"cluster": name} for name, (*pair, _) in SILENCES.items() for labels in pair))

    def silenced() -> set[str]:
        found = set()
        for name, (firing, other, _) in SILENCES.items():
            known = {frozenset(one["labels"].items()): one for one in desk.known(cluster=name)}
            by, of = (known[frozenset((labels | {"cluster": name}).items())] for labels in (firing, other))
            assert of["status"]["inhibitedBy"] in ([], [by["fingerprint"]])
            if of["status"]["inhibitedBy"]:
                found.add(name)
        return found

    wanted = {name for name, (_, _, expected) in SILENCES.items() if expected}
    until(lambda: silenced() >= wanted, what="what is to be silenced", interval_s=0.5)
    assert silenced() == wanted


def test_the_rule_is_heard_of_when_the_detector_falls_silent(desk: Desk, webhook: Receiver) -> None:
    detector = alert("link_flap", cluster="handover", node="n1", nic="mlx5_1")
    rule = detector | {"source": "rule", "alertname": "NicLinkFlapping"}
    desk.post(detector)
    until(lambda: _heard(webhook, "handover"), what="the detector's alert")
    desk.post(rule)
    until(lambda: desk.known(cluster="handover", source="rule"), what="the rule's alert to be known")
    desk.post(detector, over=True)
    until(lambda: len(_heard(webhook, "handover")) == 3, what="its end, and the rule's alert")
    desk.post(rule, over=True)
    until(lambda: len(_heard(webhook, "handover")) == 4, what="the end of the rule's alert")
    heard = [(status, labels["source"]) for status, labels in _heard(webhook, "handover")]
    assert heard[0] == ("firing", "detector")
    assert sorted(heard[1:3]) == [("firing", "rule"), ("resolved", "detector")]
    assert heard[3] == ("resolved", "rule")


def test_a_drained_node_is_silenced_as_the_handbook_says(desk: Desk) -> None:
    text = (ROOT / "alert-rules" / "README.md").read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith("amtool silence ")]
    assert len(commands) == 2
    drained = dict(re.findall(r"(cluster|node|replay)=(\S+)", commands[0]))
    other = drained | {"node": "another"}
    desk.post(alert("gpu_lost", gpu="1", **drained), alert("gpu_lost", gpu="1", **other))
    tool = build.ensure(load_settings().cache_dir, ("alertmanager",))["alertmanager"] / "amtool"

    def run(command: str) -> str:
        words = shlex.split(command.replace("http://127.0.0.1:9093", desk.stack.addresses.alertmanager))
        done = subprocess.run([tool, *words[1:]], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    silence = run(commands[0])
    (held,) = until(lambda: desk.known(**drained), what="the alert")
    assert held["status"]["silencedBy"] == [silence]
    (held,) = desk.known(**other)
    assert held["status"]["silencedBy"] == []
    assert run(commands[1]) == silence
    run(f"amtool silence expire --alertmanager.url=http://127.0.0.1:9093 {silence}")
    (held,) = desk.known(**drained)
    assert held["status"]["silencedBy"] == []


def test_slack_and_pagerduty_get_what_they_take(desk: Desk, slack: Receiver, pagerduty: Receiver) -> None:
    page = [alert("gpu_lost", cluster="shapes", rack="r7", node=node, gpu="0") for node in ("n1", "n2")]
    ticket = alert("pcie_degraded", severity="ticket", cluster="shapes", rack="r7", node="n1", gpu="0")
    desk.post(*page, ticket)

    def incident(action: str) -> list[dict[str, Any]]:
        events = [event for event in pagerduty.taken if event["payload"]["source"] == "shapes"]
        return [event for event in events if event["event_action"] == action]

    def message(word: str) -> list[dict[str, Any]]:
        return [one for one in slack.taken if word in one["attachments"][0]["title"] and "shapes" in str(one)]

    def both_nodes() -> dict[str, Any] | None:
        events = incident("trigger")  # the first may be of one alone: a group is sent once its first alert is in it
        return next((event for event in events if "(and 1 more)" in event["payload"]["summary"]), None)

    trigger = until(both_nodes, what="PagerDuty's incident")
    assert trigger["payload"]["severity"] == "critical"
    assert trigger["payload"]["class"] == "gpu_lost"
    assert trigger["payload"]["component"] == "r7"
    assert trigger["payload"]["summary"] == "gpu_lost on n1 (and 1 more)"
    (sent,) = until(lambda: message("[1] "), what="Slack's message")
    (attachment,) = sent["attachments"]
    assert attachment["title"] == "[1] pcie_degraded shapes r7"
    assert attachment["text"] == "• pcie_degraded on n1 <https://runbooks.example/x|runbook>\n"
    assert attachment["color"] == "danger"
    desk.post(*page, ticket, over=True)
    (resolve,) = until(lambda: incident("resolve"), what="PagerDuty's resolve")
    assert resolve["dedup_key"] == trigger["dedup_key"]
    (over,) = until(lambda: message("over: "), what="Slack's second message")
    assert over["attachments"][0]["color"] == "good"
    assert (slack.refused, pagerduty.refused) == ([], [])
    assert {event["dedup_key"] for event in incident("trigger")} == {trigger["dedup_key"]}


def _heard(receiver: Receiver, cluster: str) -> list[tuple[str, Alert]]:
    """Return (status, labels) of every alert of a cluster that a webhook took, in order."""
    alerts = [alert for body in receiver.taken for alert in body["alerts"]]
    return [(a["status"], a["labels"]) for a in alerts if a["labels"].get("cluster") == cluster]


def _turns_pass(desk: Desk, webhook: Receiver, cluster: str) -> None:
    """Return when another group of this receiver has had two turns: by then a repeat would have come."""
    marker = alert("link_errors", cluster=f"{cluster}-turns", node="marker")
    desk.post(marker)
    until(lambda: _heard(webhook, marker["cluster"]), what="the marker")
    desk.post(marker, over=True)
    until(lambda: len(_heard(webhook, marker["cluster"])) > 1, what="the marker's end")


@pytest.mark.parametrize("trouble", ["answers 500", "answers 400", "hangs", "hangs up"])
def test_a_receiver_in_trouble_is_notified_once_when_it_is_well(
    desk: Desk, webhook: Receiver, trouble: Trouble
) -> None:
    cluster = trouble.replace(" ", "-")
    troubled = alert("link_down", cluster=cluster, node="n1", nic="mlx5_0")
    webhook.attempts, webhook.trouble = 0, trouble
    desk.post(troubled)
    until(lambda: webhook.attempts >= 2, what="a second attempt")
    assert _heard(webhook, cluster) == []
    webhook.mend()
    until(lambda: _heard(webhook, cluster), what="the alert")
    desk.post(troubled)  # sent again, as by its senders
    _turns_pass(desk, webhook, cluster)
    assert _heard(webhook, cluster) == [("firing", troubled)]
    desk.post(troubled, over=True)
    until(lambda: len(_heard(webhook, cluster)) > 1, what="its end")
    assert _heard(webhook, cluster) == [("firing", troubled), ("resolved", troubled)]


def test_a_receiver_that_is_not_there_is_notified_once_when_it_is(desk: Desk, webhook: Receiver) -> None:
    """Nothing listens at its address; then the file with it is corrected, without a reload."""
    file = desk.stack.state_dir / "config" / "network-webhook-url"
    file.write_text("http://127.0.0.1:1/hook", encoding="utf-8")
    absent = alert("link_down", cluster="absent", node="n1", nic="mlx5_0")
    failed = _failures(desk)
    desk.post(absent)
    until(lambda: _failures(desk) >= failed + 2, what="a second attempt")
    file.write_text(webhook.url, encoding="utf-8")
    until(lambda: _heard(webhook, "absent"), what="the alert")
    _turns_pass(desk, webhook, "absent")
    assert _heard(webhook, "absent") == [("firing", absent)]


def _failures(desk: Desk) -> float:
    text = web.get(f"{desk.stack.addresses.alertmanager}/metrics").text
    found = re.search(r'(?m)^alertmanager_notification_requests_failed_total\{integration="webhook".*\} (\S+)', text)
    return float(found[1]) if found else 0.0


def test_identity_and_memory_outlive_a_restart_of_alertmanager(desk: Desk, webhook: Receiver) -> None:
    lasting = alert("link_down", cluster="restart", node="n1", nic="mlx5_0")

    def bodies() -> list[dict[str, Any]]:
        return [body for body in webhook.taken if body["groupLabels"].get("cluster") == "restart"]

    desk.post(lasting)
    until(bodies, what="the alert")
    (before,) = desk.known(cluster="restart")
    desk.stack.process("alertmanager").restart()
    desk.post(lasting)
    (after,) = until(lambda: desk.known(cluster="restart"), what="the alert to be known again")
    assert after["fingerprint"] == before["fingerprint"]
    _turns_pass(desk, webhook, "restart")
    desk.post(lasting, over=True)
    until(lambda: len(bodies()) > 1, what="its end")
    assert [body["status"] for body in bodies()] == ["firing", "resolved"]
    assert len({body["groupKey"] for body in bodies()}) == 1
    assert {a["fingerprint"] for body in bodies() for a in body["alerts"]} == {before["fingerprint"]}
