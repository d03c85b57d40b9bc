from typing import Any

import numpy as np
import pytest

from detectors.state import StateError, pack, unpack


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
