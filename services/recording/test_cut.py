from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.recording.conftest import END, START
from services.recording.cut import cut_recording
from services.recording.reader import Recording, times_of
from services.recording.validate import validate_recording


def test_a_cut_is_a_valid_recording_of_its_stretch(made: Path, tmp_path: Path) -> None:
    first, last = START + 50_000, START + 150_000
    out = cut_recording(Recording.open(made), tmp_path / "small-cut", start=first, end=last)
    assert validate_recording(out) == []
    recording = Recording.open(out)
    assert (recording.manifest.start, recording.manifest.end, recording.manifest.name) == (first, last, "small-cut")
    assert recording.manifest.streams["dcgm"].interval_s == 5
    for stream in recording.streams():
        times = [time for batch in recording.batches(stream) for time in times_of(batch)]
        assert min(times) == first
        assert max(times) == last - 5000
        assert len(times) == 40
    assert list(recording.events()) == []
    assert [job.job_id for job in recording.jobs()] == ["812"]


def test_labels_are_clipped_and_what_is_no_longer_true_goes(made: Path, tmp_path: Path) -> None:
    recording = Recording.open(made)
    early = Recording.open(cut_recording(recording, tmp_path / "a", end=START + 120_000, name="a"))
    assert [label.id for label in early.labels()] == ["d1", "f1"]
    fault = list(early.labels())[1]
    assert (fault.onset, fault.end) == (START + 100_000, START + 120_000)
    assert fault.optional  # an alert would be due after the cut
    assert fault.impact == {"gpus": 4}
    late = Recording.open(cut_recording(recording, tmp_path / "b", start=START + 150_000, name="b"))
    (fault,) = late.labels()
    assert (fault.onset, fault.end, fault.optional) == (START + 150_000, START + 200_000, None)
    assert late.manifest.end == END


def test_a_cut_outside_the_recording_is_refused(made: Path, tmp_path: Path) -> None:
    recording = Recording.open(made)
    for start, end in ((START - 1, None), (None, END + 1), (START + 5, START + 5)):
        with pytest.raises(UserError, match="no stretch from"):
            cut_recording(recording, tmp_path / "c", start=start, end=end)
    assert not (tmp_path / "c").exists()
