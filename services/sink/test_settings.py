"""Which records a sink takes, and under which name it remembers how far it has come."""

import pytest

from services.kit.errors import UserError
from services.kit.settings import load
from services.sink.settings import SinkSettings


def test_the_second_of_a_pair_takes_the_same_records_and_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(SinkSettings)
    monkeypatch.setenv("HINDCAST_SINK_REPLICA", "1")
    second = load(SinkSettings)
    assert (first.target, first.server, first.group) == ("prometheus", "prometheus", "hindcast-sink-prometheus")
    assert second.target == first.target
    assert (second.server, second.group) == ("prometheus-1", "hindcast-sink-prometheus-1")


def test_a_replica_that_no_group_can_be_named_by_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_SINK_REPLICA", "the second")
    with pytest.raises(UserError, match="REPLICA"):
        load(SinkSettings)


def test_a_tenant_without_the_header_that_carries_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_SINK_TENANT", "gpu-team")
    with pytest.raises(UserError, match="TENANT needs TENANT_HEADER"):
        load(SinkSettings)
    monkeypatch.setenv("HINDCAST_SINK_TENANT_HEADER", "X-Scope-OrgID")
    assert load(SinkSettings).tenant == "gpu-team"
