import xml.etree.ElementTree as ET

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.postmortem.chart import Chart, Mark, figure

_VALUES = st.lists(st.one_of(st.just(float("nan")), st.floats(-1e9, 1e12)), min_size=1, max_size=40)


def _chart(values: list[float], marks: tuple[Mark, ...] = ()) -> Chart:
    cells = np.array(values, dtype=np.float64)
    at = 1_700_000_000_000 + 5000 * np.arange(len(values), dtype=np.int64)
    return Chart("power, W", "W", "a <node>", "its & peers", at, cells, cells - 1, cells, cells + 1, marks)


@given(_VALUES)
def test_any_values_make_a_drawing_without_a_number_that_is_none(values: list[float]) -> None:
    drawn = _chart(values).svg()
    ET.fromstring(drawn)  # noqa: S314 - our own text
    assert "nan" not in drawn.replace("a <node>", "")
    assert "inf" not in drawn


@given(_VALUES)
def test_characters_are_of_one_length_a_row(values: list[float]) -> None:
    rows = _chart(values).characters().split("\n")
    assert len({len(row) for row in rows}) == 1


def test_a_gap_breaks_the_line_and_a_lone_value_is_a_dot() -> None:
    drawn = _chart([1.0, 2.0, float("nan"), 3.0, float("nan")]).svg()
    line = drawn.split('class="culprit" d="')[1].split('"')[0]
    assert line.count("M") == 2
    assert line.endswith("h1")


def test_marks_that_stand_close_share_their_name_and_those_outside_are_left_out() -> None:
    begin = 1_700_000_000_000
    marks = (Mark(begin + 5000, "onset", "onset"), Mark(begin + 5100, "found", "found"), Mark(0, "over", "resolved"))
    drawn = _chart([1.0] * 40, marks).svg()
    assert "onset, found" in drawn
    assert "resolved" not in drawn
    assert drawn.count('class="mark') == 2


def test_figures_are_read_as_people_write_them() -> None:
    assert [figure(value) for value in (0.0, 0.0051, 4.5, 150.0, 23_456.7, 2.5e9, float("nan"), None)] == [
        "0", "0.0051", "4.5", "150", "23,457", "2.5e+03 M", "", "",
    ]  # fmt: skip
