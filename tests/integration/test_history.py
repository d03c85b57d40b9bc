"""A year and more of a few series, written by both of a pair, under the stack's own retention, with the real Thanos."""

import itertools
import time
from pathlib import Path

from benchmarks import history
from benchmarks.history import DAY_MS, HOUR_MS, PANELS, POINTS, RESOLUTIONS, History
from services.stack.runner import Stack
from services.stack.settings import load_settings


def test_each_age_is_kept_at_its_resolution_once_and_all_of_it_answers(tmp_path: Path) -> None:
    end_ms = int(time.time()) // 3600 * HOUR_MS
    with Stack(tmp_path, load_settings(), only=("query", "compact")) as stack:
        # Blocks of 14 days, Compact's largest: how it gets there from two days is the benchmark's to show.
        year = History(stack, series=4, days=400, end_ms=end_ms, replicas=2, block_days=14)
        year.write()
        assert {block.resolution for block in year.blocks()} == {"raw"}
        assert history.amiss(year.blocks(), year)
        year.compact()
        blocks = year.blocks()
        assert history.amiss(blocks, year) == []
        for resolution in RESOLUTIONS:
            mine = [block for block in blocks if block.resolution == resolution]
            # Once: of what both have written one is left.
            assert all(one.end <= other.start for one, other in itertools.pairwise(mine)), resolution
            assert max(block.end - block.start for block in mine) <= 14 * DAY_MS
        assert blocks[0].start > year.start_ms  # what is older than a year is gone altogether
        url = year.query()
        assert history.differences(url, year) == []
        for panel in PANELS:
            _, points = history.answer_s(url, panel, end_ms)
            assert points >= POINTS, panel
