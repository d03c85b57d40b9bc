import pytest

from detectors.nearest import meant


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stragler", "; did you mean straggler?"),
        ("Straggler", "; did you mean straggler?"),
        ("gpulost", "; did you mean gpu_lost?"),
        ("weather", ""),
        ("", ""),
    ],
)
def test_the_closest_name_is_proposed_and_none_that_is_far_off(name: str, words: str) -> None:
    assert meant(name, ["straggler", "gpu_lost", "node_down"]) == words
