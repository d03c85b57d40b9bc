"""The gateway reads what the sink writes, and damaged bytes are refused, never a failure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.conftest import Client, packed
from services.gateway.remote_write import read, unpack
from services.gateway.symbols import Symbols
from services.sink.encode import EARLIEST_MS, LATEST_MS, Samples, request
from services.sink.pages import Catalogue, Protocol
from tests.mangled import fuzzed

NOW = 1_763_650_000_000


def labels_of(number: int) -> dict[str, str]:
    # Lengths differ, and beyond 127 symbols references take two bytes.
    name = ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "unknown")[number % 3]
    return {"__name__": name, "Hostname": f"v{number // 24}", "gpu": str(number // 3 % 8), "x": "y" * (number % 5)}


def encoded(protocol: Protocol, samples: Samples) -> bytes:
    catalogue = Catalogue(protocol)
    for number in range(300):
        catalogue.add(labels_of(number))
    return request(catalogue.pages[0], [samples])


@pytest.mark.parametrize("protocol", ["v1", "v2"])
@settings(deadline=None, max_examples=30)
@given(
    series=st.lists(st.integers(0, 299), min_size=1, max_size=300, unique=True),
    ticks=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_the_sink_writes_is_read(protocol: Protocol, series: list[int], ticks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Any 64 bits may be a value: NaNs of every kind, infinities and denormals included.
    values = rng.integers(0, 2**64 - 1, (len(series), ticks), np.uint64).view(np.float64)
    times = np.sort(rng.integers(EARLIEST_MS, LATEST_MS, (len(series), ticks)), axis=1)
    found = read(unpack(encoded(protocol, Samples(np.array(series), times, values)), 2**24), protocol, Symbols())
    assert len(found.keys) == len(series)
    labels = [dict(found.labels(number)) for number in range(len(found.keys))]
    places = [labels.index(labels_of(number)) for number in series]
    for row, place in enumerate(places):
        mine = found.owner == place
        assert found.times[mine].tolist() == times[row].tolist()
        assert found.values[mine].tobytes() == values[row].tobytes()


def _request(protocol: Protocol) -> bytes:
    values = np.arange(60, dtype=np.float64).reshape(30, 2)
    return encoded(protocol, Samples(np.arange(30), NOW + np.arange(60).reshape(30, 2), values))


GOOD: dict[Protocol, bytes] = {"v1": _request("v1"), "v2": _request("v2")}
CLIENT = Client()


@pytest.mark.parametrize("protocol", ["v1", "v2"])
@fuzzed(*GOOD.values())
def test_damaged_bytes_are_refused_or_read(protocol: Protocol, content: bytes) -> None:
    answer = CLIENT.write(protocol, content)
    assert answer.status_code in (204, 400, 413)
    assert answer.status_code == 204 or answer.json()["detail"]


@pytest.mark.parametrize("protocol", ["v1", "v2"])
@fuzzed(*(unpack(body, 2**24) for body in GOOD.values()))
def test_damage_under_the_compression_is_refused_or_read(protocol: Protocol, content: bytes) -> None:
    answer = CLIENT.write(protocol, packed(content))
    assert answer.status_code in (204, 400)


def test_one_request_is_rows_of_what_hindcast_knows() -> None:
    client = Client()
    assert client.write("v2", GOOD["v2"]).status_code == 204
    rows = client.outlet.rows("dcgm")
    # Ten GPUs, two readings of each of two fields at times of their own.
    assert len(rows) == 40
    assert (
        sum("DCGM_FI_DEV_SM_CLOCK" in row for row in rows) == sum("DCGM_FI_DEV_GPU_TEMP" in row for row in rows) == 20
    )
