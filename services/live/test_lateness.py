import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.live.lateness import FIRST_MS, LEAST_MS, MOST_MS, Lateness

_EVERY_MS = 15_000


def watched(late_ms: int, polls: int, least_ms: int | None = None) -> Lateness:
    """Poll a server that has a sample each second, every one readable `late_ms` after its time."""
    lateness, start = Lateness(least_ms), 1_700_000_000_000
    for number in range(polls):
        now = start + number * _EVERY_MS
        after = now - 60_000 - late_ms
        times = np.arange(after // 1000 + 1, (now - late_ms) // 1000 + 1, dtype=np.int64) * 1000
        lateness.polled(after, now, times)
    return lateness


def test_until_enough_was_seen_the_delay_is_what_servers_need() -> None:
    assert Lateness().delay_ms == watched(0, 5).delay_ms == FIRST_MS


def test_a_prompt_server_is_relied_on_soon() -> None:
    assert watched(0, 30).delay_ms == LEAST_MS


@given(st.integers(2_000, 300_000))
def test_no_sample_comes_later_than_the_delay(late_ms: int) -> None:
    assert min(late_ms, MOST_MS) <= watched(late_ms, 30).delay_ms <= max(LEAST_MS, 2 * late_ms)


def test_what_is_asked_for_is_the_least_and_grows_where_samples_come_later() -> None:
    assert watched(0, 30, least_ms=20_000).delay_ms == 20_000
    assert watched(40_000, 30, least_ms=20_000).delay_ms >= 40_000
