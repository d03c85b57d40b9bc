"""The sink and a hashring of four Thanos Receive (ketama, three copies): one is killed, and Query has every sample."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from services.cli.pipeline import Pipeline, sink_group
from services.kit import wire
from services.kit.kafka import KafkaSettings, producer
from services.kit.wait import until
from services.stack.health import HttpHealth, QueryHealth
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from services.stack.spec import ProcessSpec
from tests import web
from tests.integration.conftest import StartService
from tests.integration.feed import FIELDS, Cluster, Feed
from tests.integration.held import check_landed, query

RECEIVES = 4
COPIES = 3  # a write is answered when two of them are made: of two copies, one would do, and could be the one that dies


@dataclass(frozen=True)
class Hashring:
    """The servers of a hashring, the URL of each one's own HTTP, where the first is written to, and Query's URL."""

    receives: list[ManagedProcess]
    urls: list[str]
    write: str
    query: str


@pytest.fixture
def hashring(stack: Stack, tmp_path: Path) -> Iterator[Hashring]:
    """Receives, each of which takes requests for all, and a Query before them."""
    thanos = next(process.spec for process in stack.processes if process.name == "receive").argv[0]
    if not Path(thanos).is_file():
        pytest.skip("the servers run in containers: there is no Thanos to start")
    ports = stack.service_context().ports
    listen = [[ports.take() for _ in range(4)] for _ in range(RECEIVES)]
    grpc = [f"127.0.0.1:{own[0]}" for own in listen]
    rings = tmp_path / "hashrings.json"
    rings.write_text(json.dumps([{"endpoints": grpc}]))
    receives, urls, writes = [], [], []
    for number, (address, own) in enumerate(zip(grpc, listen, strict=True)):
        _, http, write, capnproto = own
        flags = (
            f"--grpc-address={address}",
            f"--http-address=127.0.0.1:{http}",
            f"--remote-write.address=127.0.0.1:{write}",
            f"--receive.capnproto-address=127.0.0.1:{capnproto}",
            f"--tsdb.path={tmp_path / f'receive-{number}'}",
            f'--label=receive_replica="{number}"',
            f"--receive.local-endpoint={address}",
            f"--receive.hashrings-file={rings}",
            "--receive.hashrings-algorithm=ketama",
            f"--receive.replication-factor={COPIES}",
        )
        urls.append(f"http://127.0.0.1:{http}")
        writes.append(f"http://127.0.0.1:{write}/api/v1/receive")
        health = HttpHealth(f"{urls[-1]}/-/ready")
        spec = ProcessSpec(f"ring-{number}", (thanos, "receive", *flags), health, ports=tuple(own))
        receives.append(stack.add_process(spec))
    own = [ports.take() for _ in range(2)]
    asks = (
        f"--http-address=127.0.0.1:{own[0]}",
        f"--grpc-address=127.0.0.1:{own[1]}",
        *(f"--endpoint={address}" for address in grpc),
        "--query.replica-label=receive_replica",
        "--deduplication.func=chain",
    )
    url = f"http://127.0.0.1:{own[0]}"
    asked = QueryHealth(url, stores=RECEIVES)
    stack.add_process(ProcessSpec("ring-query", (thanos, "query", *asks), asked, ports=tuple(own)))
    yield Hashring(receives, urls, writes[0], url)
    for name in ("ring-query", *(process.name for process in receives)):
        stack.remove(name)


def test_one_is_killed_and_nothing_is_lost(
    kafka: KafkaSettings, hashring: Hashring, start_service: StartService
) -> None:
    target = f"ring-{uuid4().hex[:8]}"
    env = {
        "HINDCAST_SINK_TARGET": target,
        "HINDCAST_SINK_URL": hashring.write,
        "HINDCAST_SINK_PROTOCOL": "v1",
        "HINDCAST_SINK_TENANT_HEADER": "THANOS-TENANT",
    }
    start_service("sink-ring", "sink", **env)
    pipeline, group = Pipeline(kafka, {}), sink_group(target)
    cluster = Cluster(nodes=6, gpus=4, ticks=60, seed=13)
    client = producer(kafka)
    shift_ms = time.time_ns() // 1_000_000 - cluster.end_ms
    feed = Feed(client, wire.Origin("vela", target, 0, shift_ms, target))
    feed.announce(cluster)
    feed.ticks(cluster, 0, 30)
    feed.flush()
    series = cluster.nodes * (cluster.gpus * len(FIELDS) + 1)  # and whether the node was reached

    def replicated() -> bool:
        held = [_series(url, target) for url in hashring.urls]
        return sum(held) == COPIES * series and all(0 < some < series for some in held)

    until(replicated, what="all copies of each series, spread over all of them")
    hashring.receives[1].kill()
    feed.ticks(cluster, 30, cluster.ticks)
    feed.watermark(cluster.end_ms, end=True)
    feed.flush()
    client.close()
    pipeline.wait_caught_up(group)
    last = f'{{replay="{target}"}}'
    until(lambda: query(hashring.query, last, cluster.end_ms + shift_ms - 1), what="Query to have them")
    check_landed(hashring.query, cluster, feed)


def _series(url: str, tenant: str) -> int:
    """Return how many series of a tenant a Receive holds."""
    found = re.search(
        rf'^prometheus_tsdb_head_series{{tenant="{tenant}"}} (\S+)$', web.get(f"{url}/metrics").text, re.MULTILINE
    )
    return int(float(found[1])) if found else 0
