import struct
import zlib
from typing import Any

import numpy as np
import pytest

from detectors.engine.state import StateError, pack, unpack


def test_what_goes_in_comes_out() -> None:
    arrays = {
        "floats": np.array([[1.5, np.nan], [np.inf, -0.0]]),
        "flags": np.array([True, False]),
        "empty": np.empty((0, 3), np.int64),
        "big": np.array([1, 2], dtype=">i4"),
    }
    document, back = unpack(pack({"a": [1, "two", None]}, arrays))
    assert document == {"a": [1, "two", None]}
    assert sorted(back) == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].shape == array.shape
    back["floats"][0, 0] = 2.0


def test_numbers_take_fewer_bytes_where_that_changes_none() -> None:
    at = 1_760_000_000_000
    arrays = {
        "times": np.array([at, -1, at + 86_400_000, at + 5]),
        "never": np.full(4, -1),
        "late": np.array([-1, at]),
        "wide": np.array([0, 2**62, -1]),
        "below": np.array([-2, at, 3]),
        "counts": np.arange(4),
        "whole": np.array([1410.0, np.nan, -0.0, np.inf]),
        "fine": np.array([0.1, np.nan, 1e300]),
    }
    state = pack({}, arrays)
    _, back = unpack(state)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
        np.testing.assert_array_equal(np.signbit(back[name]), np.signbit(array))
    many = np.tile(arrays["times"], 1000)
    assert len(pack({}, {"times": many})) < 0.6 * many.nbytes
    assert pack({}, unpack(state)[1]) == state


def test_the_same_state_gives_the_same_bytes() -> None:
    left = pack({"b": 1, "a": 2}, {"y": np.arange(3), "x": np.arange(2)})
    right = pack({"a": 2, "b": 1}, {"x": np.arange(2), "y": np.arange(3)})
    assert left == right


def test_an_array_of_objects_is_refused_by_name() -> None:
    with pytest.raises(StateError, match="array nodes"):
        pack({}, {"nodes": np.array(["v001"], dtype=object)})


@pytest.mark.parametrize(
    "damage", [lambda s: s[:-1], lambda s: s[:5], lambda s: b"PK" + s[2:], lambda s: s[:-1] + b"x"]
)
def test_damage_is_noticed(damage: Any) -> None:
    with pytest.raises(StateError):
        unpack(damage(pack({"a": 1}, {"x": np.arange(4)})))


def test_a_state_of_an_older_version_is_read_whose_head_is_not_deflated() -> None:
    head = b'{"arrays":[["x","<i8",[2],"<i8",null]],"document":{"names":["n01","n02"]}}'
    body = head + np.array([3, 4]).tobytes()
    document, arrays = unpack(struct.pack("<4sIQ", b"HCS2", zlib.crc32(body), len(head)) + body)
    assert document == {"names": ["n01", "n02"]}
    assert arrays["x"].tolist() == [3, 4]


def test_names_take_few_bytes() -> None:
    names = [f"gpu-node-{number:04d}.cluster.example" for number in range(1000)]
    assert len(pack(names)) < 0.2 * len(str(names))
