"""The pair of Prometheus: alike in all but what distinguishes them, and absent unless it is asked for."""

import re
from pathlib import Path

import pytest
import yaml

from services.stack.hindcast_services import ServiceContext, services
from services.stack.ports import PortBook
from services.stack.settings import load_settings
from services.stack.topology import PAIR, SERVERS, Topology, binaries_of, describe, servers


@pytest.fixture
def pair(tmp_path: Path, book: PortBook) -> Topology:
    return describe(load_settings(prometheus_pair=True), tmp_path, {}, book)


def _argv(topology: Topology, name: str) -> list[str]:
    return next(list(spec.argv) for spec in topology.processes if spec.name == name)


def test_there_is_one_prometheus_unless_a_pair_is_asked_for(tmp_path: Path, book: PortBook) -> None:
    alone = describe(load_settings(), tmp_path, {}, book)
    assert servers(load_settings()) == SERVERS
    assert {spec.name for spec in alone.processes}.isdisjoint(PAIR)
    assert not alone.addresses.prometheus_1_write
    own = services(ServiceContext(alone.addresses, tmp_path, book, lambda _url: None))
    assert [spec.name for spec in own if spec.name.startswith("sink-prometheus")] == ["sink-prometheus"]


def test_each_is_described_after_what_it_needs(pair: Topology) -> None:
    there = servers(load_settings(prometheus_pair=True))
    names = [spec.name for spec in pair.processes]
    assert names == list(there)
    assert set(there) == {*SERVERS, *PAIR}
    for position, spec in enumerate(pair.processes):
        assert spec.after == there[spec.name]
        assert set(spec.after) <= set(names[:position])
    ports = [port for spec in pair.processes for port in spec.ports]
    assert len(ports) == len(set(ports))
    assert binaries_of(tuple(PAIR)) == ("prometheus", "thanos")


@pytest.mark.parametrize("name", ["prometheus", "sidecar"])
def test_the_second_differs_in_places_only(pair: Topology, name: str) -> None:
    """Ports, folder and configuration file; and none of them is the first's."""
    first, second = _argv(pair, name), _argv(pair, f"{name}-1")
    assert len(first) == len(second)
    changed = {one.partition("=")[0]: (one, other) for one, other in zip(first, second, strict=True) if one != other}
    places = re.compile(r"--(config.file|.*tsdb.path|web.listen-address|(http|grpc)-address|prometheus.url)")
    assert changed
    assert all(places.fullmatch(flag) for flag in changed)
    # The object store is the same: one bucket.
    assert all("objstore" not in flag for flag in changed)


def test_their_configurations_differ_in_the_replica_label_only(pair: Topology) -> None:
    first, second = (
        yaml.safe_load(next(text for path, text in pair.files.items() if path.name == name))
        for name in ("prometheus.yml", "prometheus-1.yml")
    )
    assert first["global"]["external_labels"].pop("replica") == "0"
    assert second["global"]["external_labels"].pop("replica") == "1"
    assert first == second
    # An alert must not say which of them sent it: two that are the same but for that are one.
    assert re.fullmatch(first["alerting"]["alert_relabel_configs"][0]["regex"], "replica")


def test_query_and_compact_take_them_for_one(pair: Topology) -> None:
    query, compact = _argv(pair, "query"), _argv(pair, "compact")
    sidecars = [f.partition("=")[2] for name in ("sidecar", "sidecar-1") for f in _argv(pair, name) if "grpc-ad" in f]
    assert len(set(sidecars)) == 2
    assert {f"--endpoint={address}" for address in sidecars} <= set(query)
    assert {"--query.replica-label=replica", "--deduplication.func=chain"} <= set(query)
    assert {"--deduplication.replica-label=replica", "--compact.enable-vertical-compaction"} <= set(compact)


def test_each_has_a_sink_of_its_own_for_the_same_records(pair: Topology, tmp_path: Path, book: PortBook) -> None:
    own = {spec.name: spec for spec in services(ServiceContext(pair.addresses, tmp_path, book, lambda _url: None))}
    first, second = own["sink-prometheus"], own["sink-prometheus-1"]
    assert (first.after, second.after) == (("topics", "prometheus"), ("topics", "prometheus-1"))
    assert first.env["HINDCAST_SINK_TARGET"] == second.env["HINDCAST_SINK_TARGET"]
    assert first.env["HINDCAST_SINK_URL"] != second.env["HINDCAST_SINK_URL"] == pair.addresses.prometheus_1_write
    assert second.env["HINDCAST_SINK_REPLICA"] == "1"
