import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.kit.errors import UserError
from services.stack.ports import PortBook
from services.stack.settings import StackSettings, load_settings
from services.stack.topology import SERVERS, Topology, binaries_of, describe


@pytest.fixture
def topology(tmp_path: Path, book: PortBook) -> Topology:
    return describe(load_settings(), tmp_path, {}, book)


def _flags(topology: Topology, name: str) -> list[str]:
    return [flag for spec in topology.processes if spec.name == name for flag in spec.argv]


def _document(topology: Topology, name: str) -> Any:
    return yaml.safe_load(next(text for path, text in topology.files.items() if path.name == name))


def test_each_server_is_described_once_and_after_what_it_needs(topology: Topology) -> None:
    names = [spec.name for spec in topology.processes]
    assert names == list(SERVERS)
    for position, spec in enumerate(topology.processes):
        assert spec.after == SERVERS[spec.name]
        assert set(spec.after) <= set(names[:position])


def test_every_address_is_on_loopback(topology: Topology) -> None:
    everything = [flag for spec in topology.processes for flag in spec.argv] + list(topology.files.values())
    found = [host for text in everything for host in re.findall(r"([\w.]*):\d{4,5}\b", text)]
    assert len(found) > 15
    assert set(found) == {"127.0.0.1"}


def test_no_two_servers_share_a_port(topology: Topology) -> None:
    ports = [port for spec in topology.processes for port in spec.ports]
    assert len(ports) == len(set(ports)) == 18


def test_every_port_a_server_is_given_is_one_that_is_kept_for_it(topology: Topology) -> None:
    for spec in topology.processes:
        listened = [f for f in spec.argv if "address=" in f and f.rpartition(":")[2].isdigit()]
        assert {int(flag.rpartition(":")[2]) for flag in listened} <= set(spec.ports)


def test_every_file_a_server_is_given_is_written(topology: Topology, tmp_path: Path) -> None:
    named = {
        Path(match)
        for spec in topology.processes
        for flag in (*spec.argv, *spec.prepare)
        for match in re.findall(rf"{re.escape(str(tmp_path))}/config/[\w.-]+", flag)
    }
    assert named == set(topology.files)


def test_chosen_ports_are_used(tmp_path: Path, book: PortBook) -> None:
    with PortBook() as free:
        port = free.take()
    topology = describe(StackSettings(prometheus_port=port), tmp_path, {}, book)
    assert topology.addresses.prometheus == f"http://127.0.0.1:{port}"
    assert f"--web.listen-address=127.0.0.1:{port}" in _flags(topology, "prometheus")
    assert f"--prometheus.url=http://127.0.0.1:{port}" in _flags(topology, "sidecar")
    with PortBook() as other, pytest.raises(UserError, match=f"HINDCAST_STACK_PROMETHEUS_PORT={port}"):
        describe(StackSettings(prometheus_port=port), tmp_path, {}, other)


def test_prometheus_scrapes_nothing_and_takes_what_is_out_of_order(topology: Topology) -> None:
    document = _document(topology, "prometheus.yml")
    assert "scrape_configs" not in document
    assert document["storage"]["tsdb"]["out_of_order_time_window"] == "12h"
    # The sidecar refuses to run without external labels; Query de-duplicates by this one; alerts must not carry it.
    assert document["global"]["external_labels"]["replica"]
    assert re.fullmatch(document["alerting"]["alert_relabel_configs"][0]["regex"], "replica")
    (target,) = document["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert topology.addresses.alertmanager == f"http://{target}"


@pytest.mark.parametrize(("retention", "reach"), [("30d", "2332800"), ("6h", "19440")])
def test_a_new_prometheus_reaches_nearly_as_far_back_as_it_keeps(
    tmp_path: Path, book: PortBook, retention: str, reach: str
) -> None:
    topology = describe(StackSettings(prometheus_retention=retention), tmp_path, {}, book)
    (spec,) = (spec for spec in topology.processes if spec.name == "prometheus")
    assert spec.prepare[-2:] == (str(tmp_path / "data/prometheus"), reach)
    assert Path(spec.prepare[1]) in topology.files


def test_blocks_beside_a_sidecar_are_not_compacted(topology: Topology) -> None:
    flags = dict(flag.split("=", 1) for flag in _flags(topology, "prometheus") if "=" in flag)
    assert flags["--storage.tsdb.min-block-duration"] == flags["--storage.tsdb.max-block-duration"] == "2h"


def test_alerts_of_replays_never_take_the_route_of_live_ones(topology: Topology) -> None:
    document = _document(topology, "alertmanager.yml")
    (route,) = (route for route in document["route"]["routes"] if route["receiver"] == "replays")
    assert 'replay!="live"' in route["matchers"]
    receivers = {receiver["name"]: receiver for receiver in document["receivers"]}
    assert "webhook_configs" not in receivers[document["route"]["receiver"]]
    (webhook,) = receivers[route["receiver"]]["webhook_configs"]
    assert webhook["send_resolved"] is True


def test_the_webhook_is_written_where_alertmanager_reads_it(tmp_path: Path, book: PortBook) -> None:
    settings = load_settings(webhook_url="http://127.0.0.1:9/alerts")
    topology = describe(settings, tmp_path, {}, book)
    document = _document(topology, "alertmanager.yml")
    names = {w["url_file"] for receiver in document["receivers"] for w in receiver.get("webhook_configs", ())}
    (path,) = (path for path in topology.files if path.name in names)
    assert topology.files[path] == "http://127.0.0.1:9/alerts"
    assert path.parent == next(path for path in topology.files if path.name == "alertmanager.yml").parent


def test_a_given_alertmanager_configuration_is_used_as_it_is(tmp_path: Path, book: PortBook) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("route: {receiver: me}\nreceivers: [{name: me}]\n", encoding="utf-8")
    topology = describe(StackSettings(alertmanager_config=mine), tmp_path, {}, book)
    assert _document(topology, "alertmanager.yml")["route"] == {"receiver": "me"}


def test_an_alertmanager_configuration_that_is_not_there_is_named(tmp_path: Path, book: PortBook) -> None:
    with pytest.raises(UserError, match=r"HINDCAST_STACK_ALERTMANAGER_CONFIG.*nowhere.yaml") as caught:
        describe(StackSettings(alertmanager_config=tmp_path / "nowhere.yaml"), tmp_path, {}, book)
    assert caught.value.exit_code == 2


def test_query_asks_both_sidecars_receive_and_store(topology: Topology) -> None:
    asked = {flag.split("=")[1] for flag in _flags(topology, "query") if flag.startswith("--endpoint=")}
    offered = {
        flag.split("=")[1]
        for name in ("sidecar", "receive", "store", "sidecar-monitor")
        for flag in _flags(topology, name)
        if flag.startswith("--grpc-address=")
    }
    assert asked == offered
    assert len(asked) == 4


def test_another_prometheus_watches_every_server_but_kafka_and_the_services_of_a_file(topology: Topology) -> None:
    document = _document(topology, "monitor.yml")
    services, servers = document["scrape_configs"]
    watched = {group["labels"]["service"]: group["targets"][0] for group in servers["static_configs"]}
    assert set(watched) == set(SERVERS) - {"kafka"}
    for name, address in watched.items():
        assert any(address in flag for flag in _flags(topology, name)), name
    (file,) = services["file_sd_configs"][0]["files"]
    assert Path(file).parent == next(path.parent for path in topology.files if path.name == "monitor.yml")
    (rules,) = document["rule_files"]
    assert "Watchdog" in Path(rules).read_text(encoding="utf-8")
    (target,) = document["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert topology.addresses.alertmanager == f"http://{target}"
    # Its own, and none that alerts carry.
    labels = document["global"]["external_labels"]
    assert labels != _document(topology, "prometheus.yml")["global"]["external_labels"]
    assert re.fullmatch(document["alerting"]["alert_relabel_configs"][0]["regex"], "prometheus")
    assert not any("objstore" in flag for flag in _flags(topology, "sidecar-monitor"))


def test_what_a_tenant_holds_does_not_age(topology: Topology) -> None:
    assert "--tsdb.retention=0d" in _flags(topology, "receive")
    (rule,) = _document(topology, "compact-selector.yml")
    labels = _document(topology, "prometheus.yml")["global"]["external_labels"]
    assert rule["action"] == "keep"
    assert labels[rule["source_labels"][0]] == rule["regex"]


def test_kafka_makes_no_topic_by_itself(topology: Topology) -> None:
    text = next(text for path, text in topology.files.items() if path.name == "server.properties")
    properties = dict(line.split("=", 1) for line in text.splitlines())
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["offsets.topic.replication.factor"] == "1"


def test_only_the_servers_in_use_are_built() -> None:
    assert binaries_of(("kafka",)) == ("kafka",)
    assert binaries_of(("prometheus", "sidecar", "query")) == ("prometheus", "thanos")


def test_where_the_services_ask_for_tokens_the_monitor_shows_one(tmp_path: Path, book: PortBook) -> None:
    for token, shown in ((None, None), (tmp_path / "token", {"credentials_file": str(tmp_path / "token")})):
        topology = describe(load_settings(monitor_token_file=token), tmp_path, {}, book)
        ours, servers = _document(topology, "monitor.yml")["scrape_configs"]
        assert (ours.get("authorization"), servers.get("authorization")) == (shown, None)
