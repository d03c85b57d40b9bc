"""Who makes room: whatever comes in which order, those that were silent longest, and nobody else."""

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.remembered import TAKEN, Remembered
from services.gateway.remote_write import Protocol

_request = st.tuples(st.sampled_from(["v1", "v2"]), st.lists(st.integers(0, 11), max_size=8), st.integers(0, 6))


@given(requests=st.lists(_request, max_size=30))
def test_those_that_were_silent_longest_are_evicted(requests: list[tuple[Protocol, list[int], int]]) -> None:
    series = Remembered()
    last: dict[tuple[Protocol, bytes], int] = {}
    """The last request with each series that should be remembered."""
    for at, (protocol, members, evicted) in enumerate(requests):
        keys = [bytes([member]) for member in members]
        found = series.find(protocol, keys)
        assert (found >= 0).tolist() == [(protocol, key) in last for key in keys]
        numbers = [
            series.add(protocol, key, TAKEN, f"{protocol} {key!r}", (0, key[0], 1.0, 0.0), f"host {key[0] % 3}")
            for key in keys
        ]
        assert [series.why[number] for number in numbers] == [f"{protocol} {key!r}" for key in keys]
        assert series.places["entity"][numbers].tolist() == members
        last |= {(protocol, key): at for key in keys}
        oldest = series.silent_longest(evicted)
        gone = {why: number for number, why in enumerate(series.why) if number in oldest}
        series.remove(oldest)
        left = {one: when for one, when in last.items() if f"{one[0]} {one[1]!r}" not in gone}
        assert len(left) == len(last) - min(evicted, len(last)) == len(series)
        assert max((last[one] for one in last.keys() - left.keys()), default=-1) <= min(left.values(), default=at)
        last = left
        assert series.uses("entity", 12).tolist() == [any(key[0] == entity for _, key in last) for entity in range(12)]
        hosts = {f"host {key[0] % 3}" for _, key in last}
        assert set(series.hosts_of(["host 0", "host 1", "host 2", "host 3"])) == hosts


def test_all_series_of_a_host_are_found_and_a_freed_number_is_given_anew() -> None:
    series = Remembered()
    series.find("v1", [])
    here = [series.add("v1", bytes([number]), TAKEN, host=f"10.0.0.{number % 2}") for number in range(256)]
    assert series.of_hosts(["10.0.0.1"]).tolist() == here[1::2]
    series.remove(series.of_hosts(["10.0.0.1", "10.0.0.7"]))
    assert (len(series), len(series.of_hosts(["10.0.0.1"]))) == (128, 0)
    assert series.add("v2", b"new", TAKEN) in here[1::2]
