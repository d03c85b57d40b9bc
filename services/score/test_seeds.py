"""What the sheet of scores says of recordings' seeds."""

import pytest

from services.score.seeds import kinds_of_seeds


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([None, None], ""),
        ([7, None, 20240301], "recordings generated from training seeds: 2"),
        (
            [7, 900_001],
            "recordings generated from training seeds: 1, from test seeds (nothing was developed on them): 1",
        ),
    ],
)
def test_only_generated_recordings_have_seeds_to_speak_of(seeds: list[int | None], words: str) -> None:
    assert kinds_of_seeds(seeds) == words
