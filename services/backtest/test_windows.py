"""How a history is cut, and put together again."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.contract import Finding, finding_id
from services.backtest import pieces
from services.backtest.figures import weeks_of
from services.backtest.pages import WEEK_MS
from services.backtest.pieces import Part, Piece, opened
from services.backtest.results import Results
from services.backtest.stitch import stitched
from services.backtest.windows import TAIL_MS, Cuts, Window, windows
from services.recording.reader import Recording
from services.recording.tidy import open_tidy

_HOUR = 3_600_000


@given(st.integers(0, 10**9), st.integers(1, 10**8), st.integers(60_000, 10**7), st.integers(0, 10**7))
def test_windows_cover_a_history_once_and_are_warmed_up(start: int, length: int, each: int, warm: int) -> None:
    end = start + length
    found = windows(Cuts(each, warm), (start, end), (0, 2**60))
    assert (found[0].begin, found[-1].end) == (start, end + 1)
    assert all(one.end == other.begin for one, other in pairwise(found))
    assert all(one.end % each == 0 for one in found[:-1])
    for one in found:
        assert one.read_from == max(start, one.begin - warm)
        assert one.read_to == min(end, one.end + TAIL_MS)


def test_a_longer_history_has_the_same_windows_again() -> None:
    cuts, held = Cuts(_HOUR, 0), (0, 10 * _HOUR)
    short, long = windows(cuts, held, (_HOUR // 2, 3 * _HOUR - 1)), windows(cuts, held, (_HOUR // 2, 7 * _HOUR - 1))
    assert short[:-1] == long[: len(short) - 1]
    assert windows(cuts, held, (20 * _HOUR, 30 * _HOUR)) == []


def test_a_history_is_as_long_as_its_recordings_whatever_lies_between_them() -> None:
    small = Path(__file__).parents[2] / "replay-data" / "small"
    recordings = {
        name: Recording.open(small / name) for name in ("vela-healthy", "vela-power-brake", "sakuraone-job-hang")
    }
    lengths = {name: one.manifest.end + 1 - one.manifest.start for name, one in recordings.items()}

    def part(*names: str) -> Part:
        found = [
            Piece(recordings[name], name, window)
            for name in names
            for window in windows(
                Cuts(_HOUR, 0), (recordings[name].manifest.start, recordings[name].manifest.end), (0, 2**60)
            )
        ]
        return Part("one", found)

    earlier, later = part("vela-healthy", "vela-power-brake"), part("sakuraone-job-hang")
    assert weeks_of([later, earlier]) * WEEK_MS == pytest.approx(sum(lengths.values()))
    assert weeks_of([earlier, earlier]) * WEEK_MS == pytest.approx(
        lengths["vela-healthy"] + lengths["vela-power-brake"]
    )


def test_what_is_wrong_with_a_recording_is_known_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, results = tmp_path / "vela-healthy", Results(tmp_path / "results")
    shutil.copytree(Path(__file__).parents[2] / "replay-data" / "small" / "vela-healthy", made)
    lines = (made / "events.jsonl").read_bytes()
    (made / "events.jsonl").write_bytes(lines + b"{\n")
    first = opened(made, results)
    assert first == open_tidy(made)
    assert "1 that cannot be read" in first.left_out
    with monkeypatch.context() as patch:
        patch.delattr(pieces, "flaws_of")
        assert opened(made, results) == first
    (made / "events.jsonl").write_bytes(lines)
    assert opened(made, results).left_out == ""
    assert opened(made, results, strict=True) == Recording.open(made)


def alarm(at: int, started: int | None = None, node: str = "n1") -> Finding:
    began = at if started is None else started
    entity = {"node": node}
    return Finding(finding_id("d", entity, began), "d", "gpu_lost", entity, "firing", began, at, "page", 1.0, "s", "a")


def over(finding: Finding, at: int) -> Finding:
    return replace(finding, state="resolved", detected_at=at)


FIRST, SECOND, THIRD = (
    Window(max(0, 100_000 * n - 30_000), 100_000 * n, 100_000 * (n + 1), 100_000 * (n + 1) + 10_000) for n in range(3)
)


def test_a_fault_over_a_cut_is_one_finding_whatever_the_next_window_calls_it() -> None:
    raised, again = alarm(90_000), alarm(95_000, 70_000)
    found = stitched([(FIRST, [raised]), (SECOND, [again, over(again, 150_000)])])
    assert found == [raised, replace(over(again, 150_000), id=raised.id)]
    late = alarm(120_000)
    assert stitched([(FIRST, [raised]), (SECOND, [late, over(late, 150_000)])])[0:1] == [raised]
    assert len(stitched([(FIRST, [raised]), (SECOND, [late, over(late, 150_000)])])) == 2


def test_what_the_next_window_never_sees_is_over_at_the_cut() -> None:
    raised = alarm(50_000)
    assert stitched([(FIRST, [raised]), (SECOND, [])]) == [raised, over(raised, 100_000)]
    assert stitched([(FIRST, [raised])]) == [raised]


def test_what_only_the_warm_up_found_and_is_open_is_reported() -> None:
    gone, stays = alarm(75_000), alarm(80_000, node="n2")
    assert stitched([(FIRST, []), (SECOND, [gone, over(gone, 90_000), stays])]) == [stays]


def test_what_lies_beyond_a_window_is_the_next_ones() -> None:
    first, second = alarm(105_000), alarm(105_000, 104_000)
    assert stitched([(FIRST, [first]), (SECOND, [second])]) == [second]
