"""The soak's schedules: the same for the same seed, and shrunk to the blows that matter."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.blows import drawn, shrunk

VICTIMS = ("kafka", "detect", "sink", "notify")


@given(st.text(max_size=5), st.integers(1, 8))
def test_a_schedule_is_its_seeds_and_strikes_nobody_who_is_down(seed: str, count: int) -> None:
    blows = drawn(seed, VICTIMS, count=count, span_s=60)
    assert blows == drawn(seed, VICTIMS, count=count, span_s=60)
    assert len(blows) == count
    for victim in VICTIMS:
        for one, following in pairwise(blow for blow in blows if blow.victim == victim):
            assert following.at_s > one.at_s + one.lasts_s


@given(st.sets(st.integers(0, 7), min_size=1, max_size=3))
def test_what_is_shrunk_still_fails_and_has_nothing_left_to_leave_out(guilty: set[int]) -> None:
    blows = drawn("shrink", VICTIMS, count=8, span_s=60)
    needed = {blows[number] for number in guilty}
    assert set(shrunk(blows, lambda some: needed <= set(some))) == needed
