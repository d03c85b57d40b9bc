from pathlib import Path

import pytest

from services.recording.reader import Recording
from services.recording.validate import validate_recording
from services.synth.small import FOLDER, MOST_BYTES, SMALL, Small, make_small


@pytest.mark.parametrize("small", SMALL, ids=lambda small: small.name)
def test_a_committed_recording_is_what_the_generator_makes(small: Small, tmp_path: Path) -> None:
    committed = FOLDER / small.name
    made = make_small(small, tmp_path)
    names = {path.name for path in made.iterdir()}
    assert names == {path.name for path in committed.iterdir()}
    stale = [name for name in sorted(names) if (made / name).read_bytes() != (committed / name).read_bytes()]
    assert stale == [], "run `make generate` and commit what it writes"


@pytest.mark.parametrize("small", SMALL, ids=lambda small: small.name)
def test_a_committed_recording_is_small_valid_and_worth_having(small: Small) -> None:
    committed = FOLDER / small.name
    assert validate_recording(committed) == []
    assert sum(path.stat().st_size for path in committed.iterdir()) < MOST_BYTES
    recording = Recording.open(committed)
    required = [label for label in recording.labels() if not label.distractor and not label.optional]
    assert bool(required) != ("healthy" in small.name)
    assert any(label.distractor for label in recording.labels())
    assert {"dcgm", "steps", "bmc", "storage"} <= set(recording.streams())
    assert list(recording.jobs())


def test_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {small.name for small in SMALL}
