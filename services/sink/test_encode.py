from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.varint import varint
from services.sink.encode import EARLIEST_MS, LATEST_MS, STALE, Samples, by_page, request, six_bytes
from services.sink.pages import PAGE_SERIES, Catalogue, Protocol

Read = Callable[[bytes, str], list[Any]]
NOW = 1_763_650_000_000


def labels_of(number: int) -> dict[str, str]:
    # Lengths differ, and beyond 127 symbols references take two bytes.
    return {"__name__": f"metric_{number % 7}", "UUID": "G" * (number % 5) + str(number), "cluster": "vela"}


def catalogue(protocol: Protocol, series: int) -> Catalogue:
    made = Catalogue(protocol)
    for number in range(series):
        made.add(labels_of(number))
    return made


def expected(samples: Samples) -> dict[Any, list[tuple[int, bytes]]]:
    return {
        tuple(sorted(labels_of(int(number)).items())): [
            (int(t), np.float64(v).tobytes()) for t, v in zip(times, values, strict=True)
        ]
        for number, times, values in zip(samples.series, samples.times, samples.values, strict=True)
    }


@settings(deadline=None)
@given(
    protocol=st.sampled_from(["v1", "v2"]),
    series=st.lists(st.integers(0, 299), min_size=1, max_size=300, unique=True),
    ticks=st.integers(1, 80),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_encoded_is_what_an_independent_reader_reads(
    read_request: Read, protocol: Protocol, series: list[int], ticks: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (len(series), ticks)
    # Any 64 bits may be a value: NaNs of every kind, infinities and denormals included.
    values = rng.integers(0, 2**64 - 1, shape, np.uint64).view(np.float64)
    times = np.sort(rng.integers(EARLIEST_MS, LATEST_MS, shape), axis=1)
    samples = Samples(np.array(series), times, values)
    page = catalogue(protocol, 300).pages[0]
    found = read_request(request(page, [samples]), protocol)
    assert len(found) == len(series)
    assert dict(found) == expected(samples)


def test_the_staleness_marker_keeps_its_bits(read_request: Read) -> None:
    page = catalogue("v2", 1).pages[0]
    body = request(page, [Samples(np.array([0]), np.array([[NOW]]), np.array([[STALE]]))])
    assert read_request(body, "v2")[0][1] == [(NOW, (0x7FF0000000000002).to_bytes(8, "little"))]


@settings(deadline=None)
@given(st.integers(EARLIEST_MS, LATEST_MS))
def test_times_are_plain_varints(at_ms: int) -> None:
    assert int(six_bytes(np.array([at_ms]))[0]).to_bytes(6, "little") == varint(at_ms)


def test_the_limits_of_six_bytes() -> None:
    assert [len(varint(t)) for t in (EARLIEST_MS - 1, EARLIEST_MS, LATEST_MS, LATEST_MS + 1)] == [5, 6, 6, 7]


@settings(deadline=None)
@given(st.permutations(list(range(0, 3 * PAGE_SERIES, 700))))
def test_samples_are_cut_by_page_whatever_their_order(series: list[int]) -> None:
    numbers = np.array(series)
    samples = Samples(numbers, numbers[:, None] + NOW, numbers[:, None].astype(np.float64))
    found: list[int] = []
    for page, part in by_page(samples):
        assert set(part.series // PAGE_SERIES) == {page}
        assert (part.times[:, 0] - NOW == part.series).all()
        assert (part.values[:, 0] == part.series).all()
        found += part.series.tolist()
    assert sorted(found) == sorted(series)


@pytest.mark.parametrize("shape", [(2, 1), (5, 3), (1, 7)])
def test_halves_hold_everything_once(shape: tuple[int, int]) -> None:
    values = np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)
    samples = Samples(np.arange(shape[0]), values.astype(np.int64), values)
    first, second = samples.halves()
    assert first.count
    assert second.count
    assert sorted([*first.values.reshape(-1), *second.values.reshape(-1)]) == values.reshape(-1).tolist()


def test_a_page_that_grows_between_requests(read_request: Read) -> None:
    grown = catalogue("v2", 3)
    one = Samples(np.array([0]), np.array([[NOW]]), np.array([[1.0]]))
    request(grown.pages[0], [one])
    number = grown.add({"__name__": "late", "node": "v001"})
    body = request(grown.pages[0], [Samples(np.array([number]), np.array([[NOW]]), np.array([[2.0]]))])
    assert read_request(body, "v2")[0][0] == (("__name__", "late"), ("node", "v001"))
