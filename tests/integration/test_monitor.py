"""The Prometheus that watches hindcast: it sees every server and service, and what it says reaches Alertmanager."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.kit import topics
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.stack.process import ManagedProcess, State
from services.stack.runner import Stack
from tests import web
from tests.integration.conftest import detecting
from tests.integration.monitored import hurried

PIPELINE = Path(__file__).parents[2] / "alert-rules" / "pipeline.yaml"
DETECT = "detect-watched"


@pytest.fixture(scope="module")
def watched(stack: Stack) -> Iterator[Stack]:
    """The stack, whose monitor looks every second and evaluates its very rules, but that none of them waits."""
    rules = stack.state_dir / "config" / "hurried-pipeline.yaml"
    text = re.sub(r"(?m)^ +(for|keep_firing_for): .*\n", "", PIPELINE.read_text(encoding="utf-8"))
    rules.write_text(text.replace("interval: 15s", "interval: 1s"), encoding="utf-8")
    with hurried(stack, rules):
        yield stack


@pytest.fixture(scope="module")
def detect(watched: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedProcess]:
    topics.create(KafkaSettings(bootstrap=watched.addresses.kafka))
    with detecting(watched, DETECT, tmp_path_factory.mktemp("detect"), HINDCAST_DETECT_INSTANCE="detect") as process:
        yield process


def ask(url: str, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = web.get(f"{url}/api/v1/query", params={"query": query}, timeout=300).json()["data"][
        "result"
    ]
    return found


def firing(stack: Stack, **labels: str) -> list[dict[str, Any]]:
    """Return the alerts with these labels that Alertmanager holds for firing."""
    matchers = [f'{name}="{value}"' for name, value in labels.items()]
    url = f"{stack.addresses.alertmanager}/api/v2/alerts"
    found: list[dict[str, Any]] = web.get(url, params={"filter": matchers}, timeout=300).json()
    return found


def test_every_server_and_service_is_seen_by_itself_and_by_query(watched: Stack, detect: ManagedProcess) -> None:
    # Other tests leave processes behind that they have stopped.
    running = [process for process in watched.processes if process.state is State.HEALTHY and process.spec.health]
    expected = {process.name for process in running} - {"kafka"}
    for url in (watched.addresses.monitor, watched.addresses.thanos_query):

        def seen(url: str = url) -> bool:
            return {one["metric"]["service"] for one in ask(url, 'up{job=~"hindcast.*"} == 1')} >= expected

        until(seen, what=f"{sorted(expected)} to be seen by {url}", interval_s=0.5)
    assert detect.name in expected
    assert ask(watched.addresses.monitor, f'process_start_time_seconds{{service="{DETECT}"}}')


def test_the_prometheus_that_takes_telemetry_has_nothing_of_it(watched: Stack) -> None:
    for url in (watched.addresses.prometheus, watched.addresses.prometheus_1):
        # What only a scrape leaves behind; findings of replays, which sink writes, are of the job hindcast too.
        assert ask(url, "count(scrape_samples_scraped)") == []
        assert ask(url, 'ALERTS{alertname="Watchdog"}') == []


def test_the_watchdog_reaches_alertmanager(watched: Stack) -> None:
    def alerts() -> list[dict[str, Any]]:
        return firing(watched, alertname="Watchdog")

    (alert,) = until(alerts, what="the Watchdog")
    assert [receiver["name"] for receiver in alert["receivers"]] == ["watchdog"]
    assert alert["status"]["state"] == "active"
    # One alert, whichever Prometheus says it: its labels name none.
    assert "prometheus" not in alert["labels"]


def test_a_detect_service_that_is_stopped_is_alerted_and_so_is_its_return(
    watched: Stack, detect: ManagedProcess
) -> None:
    def alerts() -> list[dict[str, Any]]:
        return firing(watched, alertname="DetectionPathDown", service=DETECT)

    up = f'up{{service="{DETECT}"}} == 1'
    until(lambda: ask(watched.addresses.monitor, up), what="detect to be seen")
    until(lambda: not alerts(), what="no alert")
    detect.stop()
    (alert,) = until(alerts, what="the alert")
    assert alert["labels"]["severity"] == "page"
    assert [receiver["name"] for receiver in alert["receivers"]] == ["page-platform"]
    detect.start()
    until(lambda: not alerts(), what="the end of the alert")
