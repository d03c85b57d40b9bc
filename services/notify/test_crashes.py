"""Crashes at any moment, outages of Alertmanager at any moment: every receiver hears of each alert once, in order.

Alertmanager is a model here, of what it does between a POST and a webhook; the real one is in
tests/integration/test_notify.py.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.findings import FindingRecord, finding_record_of
from services.notify.alert_lifecycle import Policy
from services.notify.alert_store import AlertStore
from services.notify.alertmanager import Answer
from services.notify.conftest import MadeRecord, made
from services.notify.delivery import Delivery
from services.notify.ledger import Ledger, Offsets

WALL = 1_800_000_000.0
ONSET = 1_700_000_000_000
GROUP_INTERVAL = 5
STEPS = 400
POLICY = Policy(resend_s=30, hold_s=6, keep_s=60)


class Crash(Exception):  # noqa: N818 - it stands for SIGKILL, not for an error
    pass


@dataclass
class ModelAlertmanager:
    """Groups of one alert, flushed at once and then every group_interval; its notification log outlives a restart."""

    clock: "World"
    start: int = 0
    up: bool = True
    alerts: dict[str, float] = field(default_factory=dict)
    next_flush: dict[str, int] = field(default_factory=dict)
    log: dict[str, str] = field(default_factory=dict)
    webhooks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def started(self) -> str | None:
        return str(self.start) if self.up else None

    def post(self, alerts: Sequence[Any]) -> Answer:
        self.clock.crash_if("before post")
        if not self.up:
            return Answer("away", "refused")
        for alert in alerts:
            node = alert["labels"]["node"]
            self.alerts[node] = datetime.fromisoformat(alert["endsAt"]).timestamp()
            self.next_flush.setdefault(node, self.clock.step + 1)
        self.clock.crash_if("after post")
        return Answer("accepted")

    def restart(self) -> None:
        self.start += 1
        self.alerts.clear()
        self.next_flush.clear()

    def flush(self) -> None:
        for node, at in list(self.next_flush.items()):
            if at > self.clock.step:
                continue
            state = "firing" if self.alerts[node] > self.clock.wall else "resolved"
            if state != self.log.get(node, "resolved"):
                self.webhooks[node].append(state)
                self.log[node] = state
            self.next_flush[node] = self.clock.step + GROUP_INTERVAL
            if state == "resolved":
                del self.alerts[node], self.next_flush[node]


class World:
    """The findings topic, notify, and Alertmanager, a second a step."""

    def __init__(self, topic: list[tuple[int, MadeRecord]], crashes: dict[int, str], outages: set[int]) -> None:
        self.topic, self.crashes, self.outages = topic, dict(crashes), outages
        self.step = 0
        self.server = ModelAlertmanager(self)
        self.offsets: dict[int, Offsets] = {}
        self.refused: list[FindingRecord] = []
        self.begin()

    @property
    def wall(self) -> float:
        return WALL + self.step

    def crash_if(self, moment: str) -> None:
        if self.crashes.get(self.step) == moment:
            del self.crashes[self.step]
            raise Crash

    def begin(self) -> None:
        self.ledger = Ledger(self.offsets)
        self.alerts = AlertStore(POLICY, self.ledger)
        self.delivery = Delivery(
            self.alerts,
            self.server,
            refused=lambda one, _reason: self.refused.append(one),
            monotonic=lambda: float(self.step),
            wall_ms=lambda: int(self.wall * 1000),
            longest_pause_s=2,
        )
        self.read = 0
        self.read_on()

    def read_on(self) -> None:
        while self.read < len(self.topic) and self.topic[self.read][0] <= self.step:
            record = self.topic[self.read][1]
            self.alerts.take(finding_record_of(record), now=float(self.step), wall_ms=int(self.wall * 1000))
            self.read += 1

    def run(self) -> None:
        for self.step in range(1, STEPS):
            was_up, self.server.up = self.server.up, self.step not in self.outages
            if self.server.up and not was_up:
                self.server.restart()
            try:
                self.read_on()
                self.delivery.deliver()
                self.crash_if("before commit")
                offsets = self.ledger.to_commit()
                self.offsets.update(offsets)
                self.ledger.committed(offsets)
            except Crash:
                self.begin()
            if self.server.up:
                self.server.flush()


def topic_of(faults: Sequence[tuple[str, int, int]]) -> list[tuple[int, MadeRecord]]:
    """Return records by the second of their append, from faults (node, second of onset, seconds it lasts)."""
    plan = sorted(
        (second, order, node, onset)
        for node, onset, lasts in faults
        for second, order in ((onset, "firing"), (onset + lasts, "resolved"))
    )
    return [
        (second, made(offset, state, node=node, onset_ms=ONSET + onset * 1000, at_ms=ONSET + second * 1000))  # type: ignore[arg-type] # a State
        for offset, (second, state, node, onset) in enumerate(plan)
    ]


NODES = ["a", "b", "c"]
one_fault_a_node = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=3).map(
    lambda spans: [(NODES[index], onset, lasts) for index, (onset, lasts) in enumerate(spans)]
)
many_faults = st.lists(
    st.tuples(st.sampled_from(NODES), st.integers(1, 60), st.integers(0, 30)), min_size=1, max_size=6,
    unique_by=lambda fault: fault[:2],
)  # fmt: skip
moments = st.sampled_from(["before post", "after post", "before commit"])
crashes = st.dictionaries(st.integers(1, 100), moments, max_size=6)
outages = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 20)), max_size=3).map(
    lambda spans: {second for start, lasts in spans for second in range(start, start + lasts)}
)


@settings(max_examples=150, deadline=None)
@given(one_fault_a_node, crashes, outages)
def test_whatever_fails_and_when_each_fault_is_heard_of_once_and_resolved_once(
    faults: list[tuple[str, int, int]], crashes: dict[int, str], outages: set[int]
) -> None:
    world = World(topic_of(faults), crashes, outages)
    world.run()
    assert world.server.webhooks == {node: ["firing", "resolved"] for node, _, _ in faults}
    assert world.offsets == {0: Offsets(2 * len(faults), 2 * len(faults))}


@settings(max_examples=150, deadline=None)
@given(many_faults, crashes, outages)
def test_whatever_happens_a_receiver_hears_firing_and_resolved_in_turn_and_resolved_last(
    faults: list[tuple[str, int, int]], crashes: dict[int, str], outages: set[int]
) -> None:
    world = World(topic_of(faults), crashes, outages)
    world.run()
    for heard in world.server.webhooks.values():
        assert heard == ["firing", "resolved"] * (len(heard) // 2)
    assert world.offsets == {0: Offsets(2 * len(faults), 2 * len(faults))}
    assert not world.refused
