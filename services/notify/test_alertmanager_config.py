"""alert-rules/alertmanager.yaml and notify's defaults fit together."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from services.notify.settings import NotifySettings

CONFIG: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "alert-rules" / "alertmanager.yaml").read_text(encoding="utf-8")
)
ROUTES: list[dict[str, Any]] = CONFIG["route"]["routes"]


@pytest.mark.parametrize("route", ROUTES, ids=[route["receiver"] for route in ROUTES])
def test_a_resolve_is_held_for_longer_than_a_group_may_wait(route: dict[str, Any]) -> None:
    longest = sum(float(route[name].removesuffix("s")) for name in ("group_wait", "group_interval"))
    assert NotifySettings().resolve_hold_s >= longest


def test_replays_have_a_receiver_of_their_own_before_all_others() -> None:
    assert ROUTES[0]["matchers"] == ['replay!="live"', 'replay!=""']
    assert ROUTES[0]["receiver"] not in {route["receiver"] for route in ROUTES[1:]} | {CONFIG["route"]["receiver"]}


def test_every_receiver_that_is_told_anything_is_told_resolves() -> None:
    for receiver in CONFIG["receivers"]:
        for webhook in receiver.get("webhook_configs", ()):
            assert webhook["send_resolved"] is True
