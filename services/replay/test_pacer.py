"""The schedule: a straight line, bent only by orders, and never towards what was sent."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.pacer import ALL_DUE, MAX, Pacer

T0 = 1_711_958_400_000
speeds = st.floats(1, 1000)
walls = st.floats(0, 10_000_000)
elapsed = st.floats(0, 100_000)


@given(speeds, walls, elapsed, elapsed)
def test_event_time_goes_forward_at_the_speed(speed: float, wall: float, first: float, more: float) -> None:
    pacer = Pacer(speed, T0, wall)
    early, late = pacer.event_at(wall + first), pacer.event_at(wall + first + more)
    assert early <= late
    assert late - early == pytest.approx(more * 1000 * speed, abs=2 + 1e-9 * (wall + first + more) * 1000 * speed)


@given(speeds, walls, st.integers(0, 10 * 86_400_000))
def test_what_is_due_at_a_moment_is_sent_at_that_moment(speed: float, wall: float, after: int) -> None:
    pacer = Pacer(speed, T0, wall)
    assert pacer.event_at(pacer.wall_at(T0 + after)) == T0 + after


@given(speeds, speeds, walls, elapsed)
def test_a_new_speed_goes_on_from_the_schedule_and_not_from_what_was_sent(
    speed: float, other: float, wall: float, after: float
) -> None:
    pacer = Pacer(speed, T0, wall)
    now = wall + after
    changed = pacer.with_speed(other, position_ms=T0 - 1, wall_s=now)
    assert changed.event_at(now) == pytest.approx(pacer.event_at(now), abs=1)
    assert changed.speed == other


@given(speeds, walls, elapsed, elapsed, elapsed)
def test_a_pause_takes_nothing_and_adds_nothing(
    speed: float, wall: float, before: float, paused: float, after: float
) -> None:
    pacer = Pacer(speed, T0, wall)
    still = pacer.stopped(position_ms=T0, wall_s=wall + before)
    assert still.event_at(wall + before + paused) == still.event_at(wall + before)
    assert still.wall_at(T0 + 10**9) == math.inf
    again = still.resumed(wall_s=wall + before + paused)
    assert again.event_at(wall + before + paused + after) == pytest.approx(
        pacer.event_at(wall + before + after), abs=2 + 1e-9 * (wall + before + paused + after) * 1000 * speed
    )


def test_a_speed_given_while_paused_holds_from_the_resume_on() -> None:
    still = Pacer(1, T0, 0.0).stopped(position_ms=T0, wall_s=10.0).with_speed(100, position_ms=T0, wall_s=20.0)
    assert still.event_at(1000.0) == T0 + 10_000
    assert still.resumed(wall_s=1000.0).event_at(1001.0) == T0 + 110_000


def test_at_max_everything_is_due_and_an_order_begins_where_the_data_are() -> None:
    pacer = Pacer(MAX, T0, 5.0)
    assert pacer.event_at(5.0) == ALL_DUE
    assert pacer.wall_at(T0 + 1) == -math.inf
    assert pacer.with_speed(10, position_ms=T0 + 7000, wall_s=9.0).event_at(10.0) == T0 + 17_000
    assert pacer.stopped(position_ms=T0 + 7000, wall_s=9.0).event_at(99.0) == T0 + 7000


@given(speeds, st.floats(0, 1000))
def test_lag_is_how_long_the_oldest_row_has_been_due(speed: float, behind: float) -> None:
    pacer = Pacer(speed, T0, 100.0)
    due = pacer.wall_at(T0 + 5000)
    assert pacer.lag_s(T0 + 5000, due + behind) == pytest.approx(behind, abs=1e-6)
    assert pacer.lag_s(T0 + 5000, due - 1) == 0
    assert pacer.lag_s(None, due + behind) == 0
