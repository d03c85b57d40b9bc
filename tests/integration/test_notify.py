"""Findings, put on the topic by hand, through the real Alertmanager to a webhook: heard of once, resolved once."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaProducer

from detectors.contract import Finding, State, finding_id
from services.cli.pipeline import NOTIFY_GROUP, Pipeline
from services.kit import topics
from services.kit.kafka import KafkaSettings, producer
from services.kit.replays import ReplayState, announce, announce_topology
from services.kit.wait import until
from services.kit.wire import NDJSON, Origin
from services.stack.configs import WEBHOOK_URL_FILE
from services.stack.hindcast_services import python_service
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from tests import web

_WAIT_S = 300.0
_SHIFT_MS = 1_000


class Desk:
    """Writes findings of one replay, and sees which webhooks come of them."""

    def __init__(self, stack: Stack, notify: ManagedProcess, receiver: str, replay: str) -> None:
        self.stack = stack
        self.notify = notify
        self.receiver = receiver
        self.kafka = KafkaSettings(bootstrap=stack.addresses.kafka)
        self.producer: KafkaProducer = producer(self.kafka)
        self.origin = Origin("drill", replay, 0, _SHIFT_MS)
        self.onset_ms = time.time_ns() // 1_000_000 - 600_000

    def find(self, node: str, state: State = "firing") -> None:
        """Write that a fault of `node` began, or is over."""
        finding = Finding(
            id=finding_id("power_throttle", {"node": node}, self.onset_ms),
            detector="power_throttle",
            fault="power_throttle",
            entity={"node": node},
            state=state,
            started_at=self.onset_ms,
            detected_at=self.onset_ms + (15_000 if state == "firing" else 120_000),
            severity="page",
            score=0.97,
            summary=f"{node}: hardware power brake on 8 GPUs",
            recommended_action="drain the node and have its power card looked at",
            evidence={"power_w": 151.0, "peers_power_w": 398.0},
        )
        self.put(finding.to_json().encode(), f"{self.origin.unit}/{finding.id}/{state}")

    def put(self, value: bytes, key: str) -> Any:
        """Write a record of this replay and return where it lies."""
        headers = self.origin.headers(NDJSON)
        sent = self.producer.send(topics.FINDINGS, key=key.encode(), value=value, headers=headers, partition=2)
        return sent.get(timeout=_WAIT_S)

    def replay(self, state: str) -> None:
        """Announce the replay in a state."""
        announced = ReplayState.model_validate(
            {
                "cluster": self.origin.cluster, "replay": self.origin.replay, "generation": self.origin.generation,
                "shift_ms": _SHIFT_MS, "target": "prometheus", "recording": "by hand", "from_ms": self.onset_ms,
                "to_ms": self.onset_ms + 300_000, "warm_from_ms": self.onset_ms, "speed": 60, "state": state,
                "streams": ["dcgm"],
            }
        )  # fmt: skip
        announce(self.producer, announced).get(timeout=_WAIT_S)

    def webhooks(self) -> list[tuple[str, str]]:
        """Return (state, node) of every alert in every webhook of this replay, in order of arrival."""
        return [(alert["status"], alert["labels"]["node"]) for alert in self.alerts()]

    def alerts(self) -> list[dict[str, Any]]:
        """Return every alert in every webhook of this replay."""
        answer = web.get(f"{self.receiver}/received", params={"replay": self.origin.replay})
        return [alert for entry in answer.raise_for_status().json() for alert in entry["body"]["alerts"]]

    def wait_for(self, state: str, node: str) -> dict[str, Any]:
        """Return the first webhook's alert that says `state` of `node`."""

        def came() -> dict[str, Any] | None:
            found = [a for a in self.alerts() if (a["status"], a["labels"]["node"]) == (state, node)]
            return found[0] if found else None

        return until(came, what=f"a webhook that says {state} of {node}")

    def wait_done(self) -> None:
        """Wait until notify has committed all there is: no webhook is to come any more."""
        Pipeline(self.kafka, {}).wait_caught_up(NOTIFY_GROUP)

    def dead_letters(self) -> list[dict[str, bytes]]:
        """Return the headers and value of every dead letter that notify wrote for this replay."""
        letters = [
            {**dict(record.headers), "value": record.value}
            for record in Pipeline(self.kafka, {}).records(topics.DEAD_LETTER)
        ]
        return [letter for letter in letters if letter.get("replay") == self.origin.replay.encode()]


@pytest.fixture(scope="module")
def receiver(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo's webhook receiver, known to Alertmanager for as long as this module runs."""
    url_file = stack.state_dir / "config" / WEBHOOK_URL_FILE
    before = url_file.read_text(encoding="utf-8") if url_file.exists() else ""
    context = stack.service_context()
    port = context.ports.take()
    env = {
        "HINDCAST_RECEIVER_PORT": str(port),
        "HINDCAST_RECEIVER_STATE_DIR": str(tmp_path_factory.mktemp("receiver")),
    }
    stack.add_process(python_service("receiver-alone", "services.notify.receiver", port=port, env=env, after=()))
    context.set_webhook(f"http://127.0.0.1:{port}/webhook")
    yield f"http://127.0.0.1:{port}"
    stack.remove("receiver-alone")
    url_file.write_text(before, encoding="utf-8")


@pytest.fixture(scope="module")
def notify(stack: Stack, kafka: KafkaSettings) -> Iterator[ManagedProcess]:
    """Run notify, and have Alertmanager wait a second where it would wait five, and notify accordingly less."""
    port = stack.service_context().ports.take()
    env = {
        "HINDCAST_KAFKA_BOOTSTRAP": kafka.bootstrap,
        "HINDCAST_NOTIFY_RESOLVE_HOLD_S": "2",
        "HINDCAST_NOTIFY_ALERTMANAGER_URL": stack.addresses.alertmanager,
        "HINDCAST_STATUS_PORT": str(port),
    }
    committed = yaml.safe_load((stack.state_dir / "config" / "alertmanager.yml").read_text(encoding="utf-8"))
    (of_replays,) = [route for route in committed["route"]["routes"] if route["receiver"] == "replays"]
    of_replays["group_interval"] = "1s"
    with configured(stack, yaml.safe_dump(committed)):
        yield stack.add_process(python_service("notify-alone", "services.notify", port=port, env=env))
        stack.remove("notify-alone")


@contextmanager
def configured(stack: Stack, text: str) -> Iterator[None]:
    """Have Alertmanager use another configuration."""
    config, reload = stack.state_dir / "config" / "alertmanager.yml", f"{stack.addresses.alertmanager}/-/reload"
    before = config.read_text(encoding="utf-8")
    config.write_text(text, encoding="utf-8")
    try:
        answer = web.post(reload)
        assert (answer.status_code, answer.text) == (200, "")
        yield
    finally:
        config.write_text(before, encoding="utf-8")
        web.post(reload).raise_for_status()


@pytest.fixture
def desk(stack: Stack, notify: ManagedProcess, receiver: str, request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(stack, notify, receiver, request.node.name.removeprefix("test_"))
    yield desk
    desk.producer.close()


def test_a_finding_is_heard_of_once_and_its_end_once(desk: Desk) -> None:
    desk.find("node-17")
    alert = desk.wait_for("firing", "node-17")
    assert alert["labels"] == {
        "alertname": "PowerThrottle", "fault": "power_throttle", "severity": "page", "cluster": "drill",
        "node": "node-17", "replay": desk.origin.replay, "source": "detector", "detector": "power_throttle",
    }  # fmt: skip
    assert alert["annotations"]["evidence"] == "peers_power_w: 398\npower_w: 151"
    desk.find("node-17", "resolved")
    desk.wait_for("resolved", "node-17")
    desk.wait_done()
    assert desk.webhooks() == [("firing", "node-17"), ("resolved", "node-17")]


def test_a_fault_that_lasts_no_second_is_heard_of_before_its_end(desk: Desk) -> None:
    desk.find("node-1")
    desk.find("node-1", "resolved")
    desk.wait_for("resolved", "node-1")
    desk.wait_done()
    assert desk.webhooks() == [("firing", "node-1"), ("resolved", "node-1")]


def test_killed_while_firing_and_again_before_the_resolve_nothing_is_sent_twice(desk: Desk) -> None:
    desk.find("node-2")
    desk.wait_for("firing", "node-2")
    desk.notify.kill()
    desk.notify.start()
    desk.find("node-2", "resolved")
    desk.find("node-3")
    desk.wait_for("firing", "node-3")
    desk.notify.kill()
    desk.find("node-3", "resolved")
    desk.notify.start()
    for node in ("node-2", "node-3"):
        desk.wait_for("resolved", node)
    desk.notify.kill()
    desk.notify.start()
    desk.wait_done()
    assert sorted(desk.webhooks()) == sorted((s, n) for s in ("firing", "resolved") for n in ("node-2", "node-3"))
    alerts = {(alert["labels"]["node"], alert["fingerprint"]) for alert in desk.alerts()}
    assert len(alerts) == 2  # each is one alert throughout


def test_nothing_is_lost_while_alertmanager_is_away(desk: Desk) -> None:
    alertmanager = desk.stack.process("alertmanager")
    desk.find("node-4")
    desk.wait_for("firing", "node-4")
    alertmanager.stop()
    desk.find("node-4", "resolved")
    desk.find("node-5")
    desk.find("node-5", "resolved")
    alertmanager.start()
    for node in ("node-4", "node-5"):
        desk.wait_for("resolved", node)
    desk.wait_done()
    for node in ("node-4", "node-5"):
        assert [hook for hook in desk.webhooks() if hook[1] == node] == [("firing", node), ("resolved", node)]


def test_a_broker_that_was_away_is_waited_for(desk: Desk) -> None:
    desk.find("node-10")
    desk.wait_for("firing", "node-10")
    desk.producer.close()  # notify is to live through it; kafka-python leaks a socket each time it fails to connect
    desk.stack.process("kafka").restart()
    desk.producer = producer(desk.kafka)
    desk.find("node-10", "resolved")
    desk.wait_for("resolved", "node-10")
    desk.wait_done()
    assert desk.webhooks() == [("firing", "node-10"), ("resolved", "node-10")]


def test_the_end_of_a_replay_resolves_what_is_open_and_says_why(desk: Desk) -> None:
    topology = {"nodes": [{"name": "node-5", "rack": "r1"}, {"name": "node-6", "rack": "r2"}]}
    announce_topology(desk.producer, desk.origin.unit, topology).get(timeout=_WAIT_S)
    desk.replay("running")
    desk.find("node-6")
    assert desk.wait_for("firing", "node-6")["labels"]["rack"] == "r2"
    desk.replay("ended")
    alert = desk.wait_for("resolved", "node-6")
    assert alert["annotations"]["resolve_reason"] == "replay ended"


def test_a_new_generation_resolves_the_alert_of_the_old_one_before_its_own(desk: Desk) -> None:
    desk.replay("running")
    desk.find("node-7")
    desk.wait_for("firing", "node-7")
    desk.origin = replace(desk.origin, generation=1)
    desk.replay("running")
    desk.find("node-7")
    until(lambda: len(desk.webhooks()) == 3, what="the second generation's alert")
    assert [state for state, _ in desk.webhooks()] == ["firing", "resolved", "firing"]
    assert [alert["annotations"]["generation"] for alert in desk.alerts()] == ["0", "0", "1"]
    desk.replay("stopped")
    desk.wait_done()


def test_a_poison_record_is_a_dead_letter_and_the_rest_flows(desk: Desk) -> None:
    poison = {
        b"\x00\xff": b"not a finding: value: Invalid JSON",
        json.dumps({"id": "x", "fault": "gremlins"}).encode(): b"not a finding: detector: Field required",
    }
    for number, value in enumerate(poison):
        desk.put(value, f"{desk.origin.unit}/poison/{number}")
    desk.find("node-8")
    desk.wait_for("firing", "node-8")
    desk.find("node-8", "resolved")
    desk.wait_done()
    letters = {letter["value"]: letter for letter in desk.dead_letters()}
    assert letters.keys() == poison.keys()
    for value, reason in poison.items():
        assert letters[value]["dead-letter-reason"].startswith(reason)
        assert letters[value]["dead-letter-topic"] == b"findings"


def test_metrics_show_what_is_firing_and_what_was_sent(desk: Desk, stack: Stack) -> None:
    desk.find("node-9")
    desk.wait_for("firing", "node-9")
    url = stack.addresses.services["notify-alone"]
    text = web.get(f"{url}/metrics").text
    assert 'hindcast_notify_alerts_sent_total{state="firing"}' in text
    assert "hindcast_notify_alertmanager_up 1.0" in text
    desk.find("node-9", "resolved")
    desk.wait_done()


def test_the_committed_configuration_is_one_that_alertmanager_takes(stack: Stack) -> None:
    text = (Path(__file__).parents[2] / "alert-rules" / "alertmanager.yaml").read_text(encoding="utf-8")
    with configured(stack, text):
        status = web.get(f"{stack.addresses.alertmanager}/api/v2/status").json()
        assert "receiver: replays" in status["config"]["original"]
