"""Which nodes are linked: what the formula says of each pair in float64, however it is found."""

from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detectors.contract import FloatArray
from detectors.fleet.in_step import FEWEST, linked

LOOKS_A_DAY = 288.0


def _by_pairs(series: FloatArray) -> list[int]:
    """Return the lots, each by its least member, looking at one pair after the other."""
    count = series.shape[1]
    series = series[np.isfinite(series).any(axis=1)]
    known = np.isfinite(series)
    bar = -NormalDist().inv_cdf(1e-3 / (LOOKS_A_DAY * count * (count - 1) / 2) / 2)
    centred = np.zeros(series.shape)
    for one in range(count):
        around = [series[max(at - 4, 0) : at + 5, one] for at in np.flatnonzero(known[:, one])]
        own = series[known[:, one], one] - [np.nanmean(beside) for beside in around]
        off = own - np.median(own)
        most = 4 * 1.4826 * np.median(np.abs(off))
        centred[known[:, one], one] = np.clip(off, -most, most)
    lots = list(range(count))
    for one, two in combinations(range(count), 2):
        both = known[:, one] & known[:, two]
        a, b = centred[both, one], centred[both, two]
        scale = np.sqrt((a**2).sum() * (b**2).sum())
        r = min(abs((a * b).sum()) / scale, 0.999999) if scale > 1e-6 else 0.0
        if both.sum() >= FEWEST and np.arctanh(r) * np.sqrt((both.sum() - 3) / 1.22) >= bar:
            first, second = sorted((lots[one], lots[two]))
            lots = [first if lot == second else lot for lot in lots]
    return lots


@example(27, 30, 3.0, 0)  # pairs that are decided in float64 join lots that have members already
@given(
    st.integers(0, 2**32),
    st.sampled_from((FEWEST, 30, 80)),
    st.sampled_from((0.5, 3.0, 4.0)),
    st.sampled_from((0, 0.3)),
)
def test_nodes_are_linked_as_the_formula_has_it_pair_by_pair(
    seed: int, windows: int, noise: float, missing: float
) -> None:
    chance = np.random.default_rng(seed)
    job = np.sort(chance.integers(0, 6, 40))
    series = 600 + 5 * chance.normal(size=(windows, 6))[:, job] * chance.choice((-1, 1), 40)
    series = (series + noise * chance.normal(size=series.shape)).astype(np.float32).astype(np.float64)
    series[:-1][chance.random((windows - 1, 40)) < missing] = np.nan
    series[: FEWEST // 2, : 40 // 4] = np.nan  # nodes that came later
    assert linked(series, LOOKS_A_DAY).tolist() == _by_pairs(series)


@pytest.mark.parametrize("known", [FEWEST - 1, FEWEST])
def test_fewer_windows_than_are_needed_link_nobody(known: int) -> None:
    series = np.full((80, 4), np.nan)
    series[-known:] = np.random.default_rng(1).normal(size=(known, 1))
    assert linked(series, LOOKS_A_DAY).tolist() == ([0, 0, 0, 0] if known == FEWEST else [0, 1, 2, 3])


def test_jobs_that_change_their_level_within_minutes_of_each_other_are_not_linked_for_that() -> None:
    chance, job = np.random.default_rng(3), np.repeat([0, 1, 2], 4)
    levels = np.where(np.arange(80)[:, None] >= np.array([38, 41, 45]), 600.0, 520.0)
    together = levels + 15 * chance.normal(size=(80, 3))
    series = together[:, job] + 5 * chance.normal(size=(80, 12))
    assert linked(series, LOOKS_A_DAY).tolist() == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8]


@pytest.mark.parametrize("interval", [1, 2])
def test_nodes_that_are_read_in_every_other_window_are_linked_as_well(interval: int) -> None:
    chance, job = np.random.default_rng(4), np.repeat([0, 1], 4)
    series = (600 + 15 * chance.normal(size=(80, 2)))[:, job] + 5 * chance.normal(size=(80, 8))
    series[np.arange(80) % interval > 0] = np.nan
    assert linked(series, LOOKS_A_DAY).tolist() == [0, 0, 0, 0, 4, 4, 4, 4]
