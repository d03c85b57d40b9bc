from typing import Any

import pytest

from services.kit.findings import finding_record_of
from services.kit.replays import ReplayState
from services.notify.alert_lifecycle import Policy
from services.notify.alert_store import AlertStore, Post
from services.notify.conftest import Make
from services.notify.ledger import Ledger, Offsets

POLICY = Policy(resend_s=30, hold_s=6, keep_s=300)
WALL = 1_800_000_000_000
ONSET = 1_700_000_000_000


class Bench:
    """An alert store, its ledger, and a clock moved by hand; commits follow each delivery unless asked not to."""

    def __init__(self, make: Make, committed: dict[int, Offsets] | None = None) -> None:
        self.make = make
        self.ledger = Ledger(committed or {})
        self.alerts = AlertStore(POLICY, self.ledger)
        self.now = 1000.0
        self.offset = 0

    def take(self, *args: Any, **kwargs: Any) -> None:
        self.alerts.take(finding_record_of(self.make(self.offset, *args, **kwargs)), now=self.now, wall_ms=WALL)
        self.offset += 1

    def due(self) -> list[Post]:
        return self.alerts.due(now=self.now, wall_ms=WALL + int(self.now * 1000))

    def deliver(self, *, commit: bool = True) -> list[str]:
        posts = self.due()
        self.alerts.sending(posts)
        self.alerts.accepted(posts, now=self.now)
        if commit:
            self.commit()
        return [post.state for post in posts]

    def say_for(self, seconds: int) -> dict[int, str]:
        """Deliver once a second and return what was sent, by second."""
        sent = {}
        for second in range(seconds):
            for state in self.deliver():
                sent[second] = state
            self.now += 1
        return sent

    def hear(self, **kwargs: Any) -> None:
        """Take a firing, and go on until receivers have heard of it."""
        self.take(**kwargs)
        self.say_for(10)

    def commit(self) -> None:
        self.ledger.committed(self.ledger.to_commit())

    def replay(self, state: str, generation: int = 0) -> None:
        replay = ReplayState.model_validate(
            {
                "cluster": "vela", "replay": "drill", "generation": generation, "shift_ms": 0, "target": "prometheus",
                "recording": "r", "from_ms": ONSET, "to_ms": ONSET + 60_000, "warm_from_ms": ONSET, "speed": 60,
                "state": state, "streams": ["dcgm"],
            }
        )  # fmt: skip
        self.alerts.follow({replay.unit: replay}, wall_ms=WALL)


@pytest.fixture
def bench(make: Make) -> Bench:
    return Bench(make)


def test_what_is_in_shadow_is_never_alerted(make: Make) -> None:
    bench = Bench(make)
    bench.take(headers=[("shadow", b"1")])
    bench.take("resolved", headers=[("shadow", b"1")])
    assert bench.say_for(20) == {}
    assert bench.ledger.to_commit() == {}


def test_what_fired_before_its_detector_was_put_into_shadow_is_resolved(make: Make) -> None:
    bench = Bench(make)
    bench.hear()
    bench.take("resolved", headers=[("shadow", b"1")])
    assert "resolved" in bench.say_for(20).values()


def test_a_firing_goes_out_at_once_again_after_the_hold_and_then_every_resend_interval(bench: Bench) -> None:
    bench.take()
    assert bench.say_for(100) == {0: "firing", 6: "firing", 36: "firing", 66: "firing", 96: "firing"}


def test_a_firing_ends_by_itself_four_resend_intervals_ahead(bench: Bench) -> None:
    bench.take()
    (post,) = bench.due()
    assert post.body["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert post.body["endsAt"] == "2027-01-15T08:18:40.000Z"  # WALL + 1000 s + 120 s


def test_a_resolve_is_held_back_then_sent_again_for_five_minutes_then_forgotten(bench: Bench) -> None:
    bench.take()
    bench.deliver()
    bench.now += 1
    bench.take("resolved")
    sent = bench.say_for(500)
    assert list(sent.items())[:4] == [(5, "firing"), (6, "resolved"), (12, "resolved"), (42, "resolved")]
    assert set(list(sent.values())[1:]) == {"resolved"}
    assert 280 <= max(sent) <= 306
    assert bench.alerts.counts() == {"firing": 0, "held": 0, "resolved": 0}


def test_the_resolve_of_a_live_alert_is_held_until_tickets_have_gone_out(bench: Bench) -> None:
    bench.take(replay="live")
    bench.deliver()
    bench.now += 1
    bench.take("resolved", replay="live")
    sent = bench.say_for(100)
    # At 70 s, of which one had passed.
    assert min(second for second, state in sent.items() if state == "resolved") == POLICY.live_hold_s
    assert sent[69] == "firing"  # again, after the hold: receivers have it


def test_a_resolve_carries_the_time_at_which_the_fault_was_over(bench: Bench) -> None:
    bench.hear()
    bench.take("resolved", at_ms=ONSET + 40_000)
    (post,) = bench.due()
    assert (post.state, post.body["endsAt"]) == ("resolved", "2023-11-14T22:14:00.000Z")


def test_a_fault_over_before_it_was_sent_is_sent_all_the_same(bench: Bench) -> None:
    bench.take()
    bench.take("resolved")
    assert bench.say_for(14) == {0: "firing", 6: "firing", 7: "resolved", 13: "resolved"}


def test_a_resolve_waits_until_its_firing_is_committed(bench: Bench) -> None:
    bench.take()
    bench.take("resolved")
    bench.deliver(commit=False)
    bench.now += 6
    assert bench.deliver(commit=False) == ["firing"]
    bench.now += 60
    assert bench.deliver(commit=False) == []
    bench.commit()
    assert bench.deliver() == ["resolved"]


def test_a_record_is_done_when_alertmanager_has_had_time_to_notify(bench: Bench) -> None:
    bench.take()
    bench.take("resolved")
    committed = []
    for _ in range(15):
        bench.deliver()
        committed.append(bench.ledger.committed_offsets(0))
        bench.now += 1
    assert committed == [Offsets(0, 0)] * 6 + [Offsets(1, 2)] * 7 + [Offsets(2, 2)] * 2


def test_what_overlaps_is_one_alert_until_the_last_is_over(bench: Bench) -> None:
    bench.hear(onset_ms=ONSET)
    bench.take(onset_ms=ONSET + 10_000)
    (post,) = bench.due()
    assert post.body["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert bench.deliver() == ["firing"]
    bench.now += 20
    bench.take("resolved", onset_ms=ONSET)
    assert bench.deliver() == []
    bench.take("resolved", onset_ms=ONSET + 10_000)
    assert bench.deliver() == ["resolved"]


def test_what_is_apart_in_event_time_is_two_alerts_one_after_the_other_however_fast_it_comes(bench: Bench) -> None:
    for onset in (ONSET, ONSET + 3_600_000):
        bench.take(onset_ms=onset)
        bench.take("resolved", onset_ms=onset)
    assert list(bench.say_for(40).values()) == ["firing", "firing", "resolved", "resolved"] * 2


def test_a_repeated_record_changes_nothing(bench: Bench) -> None:
    bench.hear()
    bench.take("resolved")
    bench.say_for(20)
    bench.take()
    bench.take("resolved")
    assert bench.deliver() == []
    assert bench.ledger.to_commit() == {}
    assert bench.alerts.counts() == {"firing": 0, "held": 0, "resolved": 1}


@pytest.mark.parametrize("state", ["ended", "stopped", "failed", "removed"])
def test_the_end_of_a_stream_resolves_with_a_reason(bench: Bench, state: str) -> None:
    bench.replay("running")
    bench.hear()
    bench.replay(state)
    (post,) = bench.due()
    assert post.state == "resolved"
    annotations = post.body["annotations"]
    assert isinstance(annotations, dict)
    assert annotations["resolve_reason"] == "replay ended"
    if state == "ended":
        assert post.body["endsAt"] == "2023-11-14T22:14:20.000Z"


def test_a_new_generation_resolves_the_old_ones_alert_before_it_fires_its_own(bench: Bench) -> None:
    bench.replay("running", generation=0)
    bench.hear()
    bench.replay("running", generation=1)
    bench.take(generation=1)
    sent = []
    for _ in range(10):
        sent += [(post.state, post.lifecycle.latest.origin.generation) for post in bench.due()]
        bench.deliver()
        bench.now += 1
    assert sent == [("resolved", 0), ("resolved", 0), ("firing", 1)]


def test_a_finding_after_the_end_of_its_stream_fires_and_is_resolved_for_what_it_says(bench: Bench) -> None:
    bench.replay("ended")  # a replay at `max` has sent everything before the detectors are through
    bench.take()
    assert bench.deliver() == ["firing"]
    bench.take("resolved", at_ms=ONSET + 30_000)
    bench.now += 6
    assert bench.deliver() == ["firing"]
    (post,) = bench.due()
    assert post.body["endsAt"] == "2023-11-14T22:13:50.000Z"
    assert "resolve_reason" not in str(post.body)


def test_an_alertmanager_that_was_restarted_is_sent_all_again_and_given_time_again(bench: Bench) -> None:
    bench.alerts.alertmanager_started("first")
    bench.take()
    bench.take("resolved")
    bench.deliver()
    bench.now += 5
    bench.alerts.alertmanager_started("second")
    assert bench.deliver() == ["firing"]
    bench.now += 5
    bench.alerts.alertmanager_started("first")  # two behind one address
    assert bench.say_for(3) == {1: "firing", 2: "resolved"}


def test_what_is_refused_is_given_up_and_does_not_hold_up_the_rest(bench: Bench) -> None:
    bench.take(node="bad")
    bench.take(node="good")
    bad, good = bench.due()
    assert [one.finding.entity for one in bench.alerts.refused(bad)] == [{"node": "bad"}]
    bench.alerts.accepted([good], now=bench.now)
    bench.take("resolved", node="bad")
    bench.now += 6
    assert [post.lifecycle for post in bench.due()] == [good.lifecycle]
    bench.deliver()
    assert bench.ledger.committed_offsets(0) == Offsets(3, 3)


def test_the_end_never_lies_ahead_of_the_clock(bench: Bench) -> None:
    bench.hear(onset_ms=WALL, shift_ms=10**9)
    bench.take("resolved", onset_ms=WALL, shift_ms=10**9)
    (post,) = bench.due()
    assert post.body["endsAt"] == post.body["startsAt"] == "2027-01-15T08:16:50.000Z"


def test_after_a_restart_only_what_was_not_delivered_is(make: Make) -> None:
    bench = Bench(make, {0: Offsets(1, 2)})
    bench.take(node="a")
    bench.take(node="b")  # behind `done`, but its firing is known to be delivered
    bench.take("resolved", node="b")
    assert [(post.state, post.body["labels"]["node"]) for post in bench.due()] == [("firing", "a"), ("resolved", "b")]
