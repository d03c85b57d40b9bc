"""Variables filled in as Grafana does, values shown in its units, tables merged as its transformations do."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dashboards.catalogue import dashboard
from services.dashboards.live import Answer as Answered
from services.dashboards.live import Series, Source, Window, legend
from services.dashboards.model import TablePanel
from services.dashboards.tabulate import tabulated
from services.dashboards.units import KNOWN, shown
from services.kit.errors import UserError
from tests.answering import Answer, Request, Served

WINDOW = Window(1_700_000_000_000, 1_700_003_600_000)


class Asked(Served):
    """Answers with what it was given, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.data: Any = []
        self.status = 200
        super().__init__(self._answer)

    def _answer(self, request: Request) -> Answer:
        parts = urlsplit(request.target)
        self.asked.append((parts.path, parse_qs(parts.query or request.body.decode())))
        return Answer(self.status, json.dumps({"status": "success", "data": self.data}).encode())


@pytest.fixture
def asked() -> Iterator[Asked]:
    server = Asked()
    yield server
    server.close()


@pytest.fixture
def source(asked: Asked) -> Iterator[Source]:
    source = Source(asked.url, WINDOW)
    yield source
    source.close()


def test_variables_are_filled_in(source: Source) -> None:
    text = 'rate(a{node=~"$node"}[$__rate_interval]) / b[$__range] + $__range_s + c{d=~"$1"}[$__interval]'
    filled = 'rate(a{node=~"(x|y)"}[120s]) / b[3600s] + 3600 + c{d=~"$1"}[15s]'
    assert source.filled(text, {"node": "(x|y)"}, 15) == filled
    assert source.filled("[$__rate_interval]", {}, 600) == "[630s]"


def test_label_values_are_asked_for_in_the_time_range(source: Source, asked: Asked) -> None:
    asked.data = ["v002:9400", "v001:9400"]
    board = dashboard("fleet")
    node = next(variable for variable in board.templating.list if variable.name == "node")
    values = {"cluster": "vela", "replay": ".*", "rack": ".*"}
    assert source.options(node, values) == ["v001", "v002"]
    ((path, sent),) = asked.asked
    assert path == "/api/v1/label/instance/values"
    assert sent["match[]"] == ['DCGM_FI_DEV_GPU_TEMP{cluster=~"vela",replay=~".*",rack=~".*"}']
    assert (float(sent["start"][0]), float(sent["end"][0])) == (WINDOW.start_ms / 1000, WINDOW.end_ms / 1000)


def test_a_choice_is_taken_literally_and_all_is_all(source: Source, asked: Asked) -> None:
    asked.data = {"result": [{"metric": {"job_id": name}, "value": [0, "1"]} for name in ("9", "812")]}
    values = source.values(dashboard("job"), {"replay": "a.b"})
    assert values == {"cluster": ".*", "replay": r"a\.b", "job": "812", "peers": "()"}


def test_incidents_are_listed_newest_first_and_the_first_is_taken_as_it_is(source: Source, asked: Asked) -> None:
    names = ("straggler of v010", "gpu_lost of v002", "none")
    asked.data = {"result": [{"metric": {"incident": name}, "value": [0, "1"]} for name in names]}
    board = dashboard("incident")
    incident = next(variable for variable in board.templating.list if variable.name == "incident")
    assert source.options(incident, {}) == list(names)
    assert source.values(board, {})["incident"] == "straggler of v010"
    assert source.values(board, {"incident": "link_down of a.b"})["incident"] == "link_down of a.b"


def test_a_refusal_is_reported_with_the_query(source: Source, asked: Asked) -> None:
    asked.status, asked.data = 422, "too many samples"
    panel, target = dashboard("fleet").queries()[0]
    with pytest.raises(UserError, match=r"422.*too many samples"):
        source.answer(panel, target, {})


def test_nobody_there_is_reported_with_a_remedy() -> None:
    source = Source("http://127.0.0.1:9", WINDOW)
    panel, target = dashboard("fleet").queries()[0]
    with pytest.raises(UserError, match="nothing answers") as refused:
        source.answer(panel, target, {})
    source.close()
    assert "--url" in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.125, "percentunit", "12.5%"),
        (4_700.0, "watt", "4.7 kW"),
        (2**30, "bytes", "1 GiB"),
        (61_000_000_000, "Bps", "61 GB/s"),
        (14.26, "s", "14.3 s"),
        (0.004, "s", "4 ms"),
        (5400, "dtdurations", "90.0 min"),
        (1_711_963_800_000, "dateTimeAsIso", "04-01 09:30:00"),
        (1410, "rotmhz", "1410 MHz"),
        (float("nan"), "none", "NaN"),
    ],
)
def test_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


@given(st.floats(min_value=0, max_value=4e12), st.sampled_from(sorted(KNOWN)))
def test_any_value_is_shown_in_any_unit(value: float, unit: str) -> None:
    assert 0 < len(shown(value, unit)) < 30


def test_a_table_is_merged_by_its_labels_and_sorted_by_its_first_value() -> None:
    board = dashboard("fleet")
    panel = next(panel for panel in board.panels if isinstance(panel, TablePanel))
    at = np.array([1_700_000_000.0])
    ours, other = {"node": "v001", "fault": "gpu_lost"}, {"node": "v002", "fault": "straggler"}
    since = 1_711_963_800_000.0
    answers = [
        Answered(panel, panel.targets[0], (Series(other, at, np.zeros(1)), Series(ours, at, np.ones(1))), 0.0),
        Answered(panel, panel.targets[1], (Series(ours, at, np.array([since])),), 0.0),
    ]
    made = tabulated(panel, answers)
    assert made.titles == ["fault", "node", "state", "since"]
    assert [[cell.text for cell in row] for row in made.rows] == [
        ["gpu_lost", "v001", "open", "04-01 09:30:00"],
        ["straggler", "v002", "resolved", ""],
    ]
    assert legend(panel.targets[0], ours) == "fault=gpu_lost, node=v001"
