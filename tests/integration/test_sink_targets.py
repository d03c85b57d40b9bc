"""A sink and targets that are not as it expects: one that knows it not and reads v1 only, one that says nothing."""

import itertools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaProducer

from services.kit import wire
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.stack.hindcast_services import python_service
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from tests import web
from tests.integration.feed import Cluster, Feed
from tests.integration.guarded import PASSWORD, USER, Guarded, guarded_prometheus

_NUMBERS = itertools.count(1)


def sink(stack: Stack, kafka: KafkaSettings, **env: str) -> tuple[ManagedProcess, str, str]:
    """Start a sink of a group of its own; return it, its target and the URL of its status."""
    target = f"odd-{next(_NUMBERS)}"
    port = stack.service_context().ports.take()
    own = {
        "HINDCAST_KAFKA_BOOTSTRAP": kafka.bootstrap,
        "HINDCAST_STATUS_PORT": str(port),
        "HINDCAST_SINK_TARGET": target,
        "HINDCAST_SINK_RETRY_MOST_S": "0.5",
    }
    spec = python_service(f"sink-{target}", "services.sink", port=port, env=own | env)
    # As long as containers are given by default before they are killed.
    return stack.add_process(replace(spec, stop_timeout_s=10.0)), target, f"http://127.0.0.1:{port}"


def feed(sender: KafkaProducer, target: str, cluster: Cluster) -> Feed:
    shift_ms = int(time.time() * 1000) - cluster.end_ms
    made = Feed(sender, wire.Origin("vela", f"fed-{target}", 0, shift_ms, target))
    made.announce(cluster)
    made.ticks(cluster, 0, cluster.ticks)
    made.watermark(cluster.end_ms, end=True)
    made.flush()
    return made


@pytest.fixture
def guarded(stack: Stack, tmp_path: Path) -> Iterator[Guarded]:
    """Start a Prometheus over TLS that asks for a certificate and a password, and takes remote-write v1 only."""
    only_v1 = "--web.remote-write-receiver.accepted-protobuf-messages=prometheus.WriteRequest"
    with guarded_prometheus(stack, tmp_path, only_v1) as started:
        yield started


def test_over_tls_a_wrong_password_is_named_and_mended_without_a_restart_and_v1_is_spoken_where_v2_is_not(
    stack: Stack, kafka: KafkaSettings, sender: KafkaProducer, guarded: Guarded, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("run-out\n")
    process, target, status = sink(
        stack,
        kafka,
        HINDCAST_SINK_URL=f"{guarded.url}/api/v1/write",
        HINDCAST_SINK_CA_FILE=str(guarded.ca),
        HINDCAST_SINK_CERTIFICATE_FILE=str(guarded.client.certificate),
        HINDCAST_SINK_KEY_FILE=str(guarded.client.key),
        HINDCAST_SINK_USERNAME=USER,
        HINDCAST_SINK_PASSWORD_FILE=str(password),
    )
    try:
        cluster = Cluster(nodes=2, gpus=2, ticks=20, seed=9)
        feed(sender, target, cluster)
        misdirected = f'hindcast_sink_misdirected_total{{status="401",target="{target}"}}'
        until(lambda: misdirected in web.get(f"{status}/metrics").text, what="a 401 to be counted")
        remedy = "HINDCAST_SINK_BEARER_FILE, or USERNAME and PASSWORD_FILE"  # logged after it was counted
        until(lambda: remedy in process.tail(), what="the remedy")
        password.write_text(f"{PASSWORD}\n")
        os.utime(password, ns=(0, 1))
        query = f'count(count_over_time(DCGM_FI_DEV_POWER_USAGE{{replay="fed-{target}"}}[1h]))'

        def landed() -> bool:
            asked = client.get("/api/v1/query", params={"query": query})
            result = asked.json()["data"]["result"]
            return bool(result) and result[0]["value"][1] == "4"

        with guarded.asker() as client:
            until(landed, what="the samples of four GPUs, by v1")
        assert "the target takes remote-write v1 only" in process.tail(100)
        assert "run-out" not in process.log.read_text()
    finally:
        stack.remove(f"sink-{target}")


def test_with_a_backlog_and_a_target_that_says_nothing_it_ends_by_itself(
    stack: Stack, kafka: KafkaSettings, sender: KafkaProducer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/api/v1/write"
        process, target, status = sink(stack, kafka, HINDCAST_SINK_URL=address)
        feed(sender, target, Cluster(nodes=2, gpus=2, ticks=200, seed=10))

        def under_way() -> bool:
            found = f'hindcast_sink_samples_sent_total{{target="{target}"}} '
            lines = web.get(f"{status}/metrics").text.splitlines()
            return any(line.startswith(found) and float(line.split()[1]) > 0 for line in lines)

        until(under_way, what="samples to be on their way")
        stack.remove(f"sink-{target}")
        assert f"stopped target={target}" in process.tail()
