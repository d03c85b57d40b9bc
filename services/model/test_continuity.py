"""k of n windows: against the definition, one GPU at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.model.continuity import NEEDED, WINDOW, Continuity
from services.model.peers import Compared

MINUTE = 60_000
Seen = list[tuple[int, int, float]]
"""For one GPU: (minute, job, score)."""


def window(minute: int, gpus: list[int], jobs: list[int]) -> Compared:
    nothing = np.zeros((len(gpus), 0))
    start = minute * MINUTE
    return Compared(start, start + MINUTE, np.array(gpus), np.array(jobs), nothing, nothing, nothing)


def expected(seen: Seen) -> float:
    """Return what NEEDED of the last WINDOW minutes of the present job reached."""
    minute, job, _ = seen[-1]
    run = []
    for when, which, score in reversed(seen):
        if which != job:
            break
        if when > minute - WINDOW:
            run.append(score)
    return sorted(run, reverse=True)[NEEDED - 1] if len(run) >= NEEDED else -np.inf


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 1), st.floats(0, 10)), max_size=4), max_size=12
    )
)
def test_a_score_is_held_for_k_of_the_last_n_windows(minutes: list[dict[int, tuple[int, float]]]) -> None:
    continuity, history = Continuity(), {gpu: Seen() for gpu in range(4)}
    for minute, reported in enumerate(minutes):
        if not reported:
            continue
        gpus, scores = list(reported), np.array([score for _, score in reported.values()])
        held = continuity.hold(window(minute, gpus, [job for job, _ in reported.values()]), scores)
        for gpu, value in zip(gpus, held.tolist(), strict=True):
            history[gpu].append((minute, *reported[gpu]))
            assert value == expected(history[gpu])
