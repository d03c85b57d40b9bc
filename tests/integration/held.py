"""What a Prometheus or a Thanos holds of a feed, beside what was fed."""

from typing import Any

import numpy as np
import pytest

from tests import web
from tests.integration.feed import FIELDS, INTERVAL_MS, XID, Cluster, Feed


def query(base: str, text: str, at_ms: int) -> list[dict[str, Any]]:
    """Return the result of an instant query."""
    answer = web.post(f"{base}/api/v1/query", data={"query": text, "time": f"{at_ms / 1000:.3f}"}, timeout=60)
    assert answer.status_code == 200, answer.text
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def by_series(result: list[dict[str, Any]]) -> dict[tuple[str, str, str], float]:
    """Return values by (metric or "", instance, gpu)."""
    found: dict[tuple[str, str, str], float] = {}
    for entry in result:
        labels: dict[str, str] = entry["metric"]
        found[labels.get("__name__", ""), labels["instance"], labels.get("gpu", "")] = float(entry["value"][1])
    return found


def check_landed(base: str, cluster: Cluster, feed: Feed) -> None:
    """Assert that every reading is held once, with its value and time, and nothing else."""
    replay, shift = feed.origin.replay, feed.origin.shift_ms
    at = cluster.end_ms + shift
    reach = f"[{cluster.ticks * INTERVAL_MS}ms]"
    for index, name in enumerate(FIELDS):
        selector = f'{name}{{replay="{replay}"}}{reach}'
        counts = by_series(query(base, f"sum by (instance, gpu) (count_over_time({selector}))", at))
        sums = by_series(query(base, f"sum by (instance, gpu) (sum_over_time({selector}))", at))
        want_counts, want_sums = {}, {}
        for node in range(cluster.nodes):
            there = cluster.there[:, node]
            for gpu in range(cluster.gpus):
                key = ("", f"{cluster.name(node)}:9400", str(gpu))
                if there.any():
                    want_counts[key] = float(there.sum())
                    want_sums[key] = float(cluster.values[there, node, gpu, index].sum())
        assert counts == want_counts, name
        assert sums == pytest.approx(want_sums, rel=1e-12), name
    check_node(base, cluster, feed)


def check_node(base: str, cluster: Cluster, feed: Feed) -> None:
    """Assert every raw sample of the first node, XIDs aside (their labels change): time and value, bit for bit."""
    node = 0
    replay, shift = feed.origin.replay, feed.origin.shift_ms
    instance = f"{cluster.name(node)}:9400"
    raw = query(
        base,
        f'{{instance="{instance}",replay="{replay}",gpu!=""}}[{cluster.ticks * INTERVAL_MS}ms]',
        cluster.end_ms + shift,
    )
    ticks = np.flatnonzero(cluster.there[:, node])
    seen = 0
    for entry in raw:
        labels, points = entry["metric"], entry["values"]
        if labels["__name__"] == FIELDS[XID]:
            continue
        seen += 1
        assert labels["UUID"] == f"GPU-{node:04d}-{labels['gpu']}"
        assert (labels["job"], labels["cluster"], labels["Hostname"]) == ("dcgm-exporter", "vela", cluster.name(node))
        assert labels["device"] == f"nvidia{labels['gpu']}"
        values = cluster.values[ticks, node, int(labels["gpu"]), FIELDS.index(labels["__name__"])]
        times = [cluster.time_ms(int(t), node) + shift for t in ticks]
        assert [round(point[0] * 1000) for point in points] == times
        assert [float(point[1]) for point in points] == values.tolist()
    assert seen == cluster.gpus * (len(FIELDS) - 1)


def check_up(base: str, cluster: Cluster, feed: Feed) -> None:
    """Assert `up`: once a tick and node, 0 exactly where the scrape is missing; and that nothing outlives the end."""
    replay, shift = feed.origin.replay, feed.origin.shift_ms
    at, reach = cluster.end_ms + shift, f"[{cluster.ticks * INTERVAL_MS}ms]"
    counts = by_series(query(base, f'count_over_time(up{{replay="{replay}"}}{reach})', at))
    sums = by_series(query(base, f'sum_over_time(up{{replay="{replay}"}}{reach})', at))
    instances = [("", f"{cluster.name(node)}:9400", "") for node in range(cluster.nodes)]
    assert counts == dict.fromkeys(instances, cluster.ticks)
    assert sums == {key: float(cluster.there[:, node].sum()) for node, key in enumerate(instances)}
    assert query(base, f'count({{replay="{replay}"}})', at + 1000) == []
