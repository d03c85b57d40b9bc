"""alert-rules/alertmanager.yaml and notify's defaults fit together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.notify.payload import LIVE
from services.notify.settings import NotifySettings

CONFIG: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "alert-rules" / "alertmanager.yaml").read_text(encoding="utf-8")
)
ROUTES: list[dict[str, Any]] = CONFIG["route"]["routes"]
SECONDS = {"s": 1, "m": 60, "h": 3600}
# What no detector finds: Prometheus says it, and goes on saying it.
OF_RULES_ONLY = {"watchdog"}


def flat(route: dict[str, Any], inherited: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a route and those below it, each with the times it inherits."""
    times = inherited | {name: route[name] for name in ("group_wait", "group_interval") if name in route}
    yield route | times
    for below in route.get("routes", ()):
        yield from flat(below, times)


ALL = [route for top in ROUTES for route in flat(top, {}) if route["receiver"] not in OF_RULES_ONLY]


def seconds(duration: str) -> float:
    return float(duration[:-1]) * SECONDS[duration[-1]]


@pytest.mark.parametrize("route", ALL, ids=[route["receiver"] for route in ALL])
def test_a_resolve_is_held_for_longer_than_a_group_may_wait(route: dict[str, Any]) -> None:
    longest = seconds(route["group_wait"]) + seconds(route["group_interval"])
    replay = "a-replay" if route["receiver"] == "replays" else LIVE
    assert NotifySettings().policy().hold_of((("replay", replay),)) >= longest


def test_replays_have_a_receiver_of_their_own_before_all_others() -> None:
    assert ROUTES[0]["matchers"] == ['replay!="live"', 'replay!=""']
    others = {route["receiver"] for top in ROUTES[1:] for route in flat(top, {})} | {CONFIG["route"]["receiver"]}
    assert ROUTES[0]["receiver"] not in others


def test_every_receiver_that_is_sent_anything_is_sent_resolves() -> None:
    for receiver in CONFIG["receivers"]:
        for webhook in receiver.get("webhook_configs", ()):
            assert webhook["send_resolved"] is True
