"""The committed dashboards: strictly decoded, of known panels, with queries that name what something emits."""

import importlib
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

import services.detect
import services.notify
import services.replay
import services.sink
from services.dashboards.board import TITLES
from services.dashboards.catalogue import FOLDERS, NAMES
from services.dashboards.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, YELLOW
from services.dashboards.live import SCRAPE_S
from services.dashboards.model import Dashboard, Row
from services.dashboards.units import KNOWN
from services.kit.series import table
from services.recording.reader import Recording
from services.synth.small import FOLDER as RECORDINGS
from tests.promql import named_metrics

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "dashboards"
FILES = sorted(path for path in FOLDER.rglob("*.json"))
GRAFANAS_OWN = {"__range", "__range_s", "__interval", "__rate_interval", "__url_time_range"}
PROMETHEUS_OWN = {"up", "ALERTS", "ALERTS_FOR_STATE"}


def decoded(path: Path) -> Dashboard:
    return Dashboard.model_validate_json(path.read_text(encoding="utf-8"))


@pytest.fixture(params=FILES, ids=[path.stem for path in FILES])
def board(request: pytest.FixtureRequest) -> Dashboard:
    path: Path = request.param
    return decoded(path)


def test_there_is_a_file_a_dashboard_in_its_folder() -> None:
    assert {str(path.relative_to(FOLDER)) for path in FILES} == {
        f"{FOLDERS.get(name, 'clusters')}/{name}.json" for name in NAMES
    }


def test_decoding_is_strict_and_loses_nothing(board: Dashboard) -> None:
    path = next(path for path in FILES if decoded(path).uid == board.uid)
    assert board.to_json() == path.read_text(encoding="utf-8")
    spoilt = json.loads(path.read_text(encoding="utf-8"))
    spoilt["panels"][1]["tagets"] = []
    with pytest.raises(ValueError, match="tagets"):
        Dashboard.model_validate(spoilt)
    spoilt = json.loads(path.read_text(encoding="utf-8"))
    spoilt["panels"][1]["type"] = "graph"
    with pytest.raises(ValueError, match="graph"):
        Dashboard.model_validate(spoilt)


def test_panels_have_a_place_of_their_own_a_title_and_a_number(board: Dashboard) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board.panels:
        place = panel.grid_pos
        assert place.x + place.w <= 24, panel.title
        for cell in ((x, y) for x in range(place.x, place.x + place.w) for y in range(place.y, place.y + place.h)):
            assert cell not in taken, f"{panel.title} lies on {taken[cell]}"
            taken[cell] = panel.title
    assert len({panel.id for panel in board.panels}) == len(board.panels)
    for section in re.split(r"(?=row)", " ".join(panel.type for panel in board.panels))[1:]:
        assert section.strip() != "row", "a heading with nothing below it"


def test_every_panel_says_what_it_is_and_in_what_unit(board: Dashboard) -> None:
    for panel, target in board.queries():
        assert panel.description.endswith("."), panel.title
        defaults = panel.field_config.defaults
        assert defaults.unit in KNOWN, panel.title
        for override in panel.field_config.overrides:
            assert all(one.value in KNOWN for one in override.properties if one.id == "unit"), panel.title
        assert panel.datasource.uid == target.datasource.uid == "thanos"


def test_colours_are_those_that_all_people_distinguish(board: Dashboard) -> None:
    palette = {BLUE, SKY, GREEN, YELLOW, ORANGE, RED, PURPLE, GREY}
    found = set(re.findall(r"#[0-9A-Fa-f]{6}", board.to_json()))
    assert found <= palette
    assert not re.findall(r'"(?:fixedColor|color)":\s*"(?!#)[a-z-]+"', board.to_json())


def test_every_variable_in_use_is_there(board: Dashboard) -> None:
    there: set[str] = set()
    for variable in board.templating.list:
        used = set(re.findall(r"\$([a-z_]\w*)", variable.query.query)) - GRAFANAS_OWN
        assert used <= there, f"{variable.name} depends on what comes after it"
        there.add(variable.name)
    shown = {variable.name for variable in board.templating.list if variable.hide == 0}
    assert {"cluster", "replay"} <= shown
    for _, target in board.queries():
        assert set(re.findall(r"\$([a-z_]\w*)", target.expr)) - GRAFANAS_OWN <= there
    for annotation in board.annotations.list:
        assert set(re.findall(r"\$([a-z_]\w*)", annotation.expr)) - GRAFANAS_OWN <= there
    for name in re.findall(r"\$\{(\w+):queryparam\}", board.to_json()):
        assert name in there | GRAFANAS_OWN


def test_dashboards_lead_to_each_other_with_time_and_variables(board: Dashboard) -> None:
    uids = {f"hindcast-{name}" for name in TITLES}
    assert set(re.findall(r"/d/([\w-]+)", board.to_json())) <= uids
    for link in board.links:
        assert link.keep_time
        assert link.include_vars
    for url in re.findall(r'"url": "(/d/[^"]*\?[^"]*)"', board.to_json()):
        assert "${__url_time_range}" in url
    assert [link.type for link in board.links] == ["dashboards", "link"]
    # Wherever Grafana is: no link names a host.
    assert "://" not in re.sub(r'"\$schema": "[^"]*"', "", board.to_json())


def test_following_the_links_shows_all() -> None:
    following = {board.uid: board.links[1].url.removeprefix("/d/") for board in map(decoded, FILES)}
    seen, at = [], "hindcast-fleet"
    while at not in seen:
        seen.append(at)
        at = following[at]
    assert set(seen) == set(following)


def test_findings_are_annotations(board: Dashboard) -> None:
    metrics = {name for annotation in board.annotations.list for name in named_metrics(annotation.expr)}
    assert metrics == {table().findings.active, table().findings.started, "ALERTS"}


def emitted() -> set[str]:
    """Return every metric name that something here emits."""
    names = set(PROMETHEUS_OWN) | {table().findings.active, table().findings.started}
    for stream in table().streams.values():
        names |= {column.metric for column in stream.columns.values()} | {one.metric for one in stream.patterns}
        names |= {metric for by_column in stream.by_unit.values() for metric in by_column.values()}
    # The columns of the generator's recordings that have no line of their own in the table.
    for path in RECORDINGS.iterdir():
        recording = Recording.open(path)
        for name in recording.manifest.streams:
            stream = table().streams[name]
            names |= {stream.column(column)[0].metric for column in _columns(recording, name)}
    return names | of_services()


def _columns(recording: Recording, stream: str) -> list[str]:
    batch = next(iter(recording.batches(stream)))
    return [name for name in batch.schema.names if name not in ("timestamp", *table().streams[stream].entity)]


def of_services() -> set[str]:
    """Return the metrics that hindcast's services declare."""
    for package in (services.detect, services.notify, services.replay, services.sink):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.rpartition(".")[2].startswith(("test_", "conftest", "__main__")):
                importlib.import_module(module.name)
    found: set[str] = set()
    for family in REGISTRY.collect():
        if family.name.startswith("hindcast_"):
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            found |= {family.name + suffix for suffix in suffixes}
    return found


def test_every_metric_is_one_that_something_emits() -> None:
    known = emitted()
    for board in map(decoded, FILES):
        for panel, target in board.queries():
            metrics = named_metrics(target.expr)
            assert metrics, panel.title
            assert metrics <= known, f"{board.title}, {panel.title}"


def test_no_panel_rests_on_a_recording_rule() -> None:
    assert not [
        (panel.title, metric)
        for board in map(decoded, FILES)
        for panel, target in board.queries()
        for metric in named_metrics(target.expr)
        if ":" in metric
    ]


def test_what_rests_on_hindcasts_own_series_alone_has_no_standard() -> None:
    """Training loops, clients of file systems and hindcast's own services have no exporter that is common to all."""
    own = {column.metric for name in ("steps", "storage") for column in table().streams[name].columns.values()}
    for board in map(decoded, FILES):
        if board.uid in ("hindcast-replay", "hindcast-pipeline"):
            continue
        for panel in board.panels:
            if not isinstance(panel, Row):
                metrics = {metric for target in panel.targets for metric in named_metrics(target.expr)}
                alone = all(metric.startswith("hindcast_") for metric in metrics)
                assert not alone or metrics <= own, f"{board.title}, {panel.title}: {metrics - own}"


def test_gpus_nodes_and_ports_show_without_hindcast() -> None:
    """On data of the usual exporters alone these dashboards are not bare."""
    for name, share in (
        ("fleet", 1.0),
        ("node", 1.0),
        ("power", 1.0),
        ("fabric", 1.0),
        ("incident", 0.7),
        ("job", 0.2),
    ):
        board = decoded(FOLDER / FOLDERS.get(name, "clusters") / f"{name}.json")
        standard = {
            panel.id
            for panel, target in board.queries()
            if any(not metric.startswith("hindcast_") for metric in named_metrics(target.expr))
        }
        panels = [panel for panel in board.panels if not isinstance(panel, Row)]
        assert len(standard) >= share * len(panels), name


@pytest.mark.parametrize(
    ("query", "metrics"),
    [
        ("up", {"up"}),
        ('sum by (node) (rate(a_total{job="x{y}",z=~"b|c"}[5m])) / on (node) group_left (d) b', {"a_total", "b"}),
        ("1e-9 * topk(10, x:y offset 15m) > bool 0 or vector(0)", {"x:y"}),
        ('label_replace(a % 16 >= bool 8, "why", "slowed", "", "") unless ignoring (c) b', {"a", "b"}),
        ("sum_over_time((a)[$__range:1m]) / 60 and $__range_s / 3600", {"a"}),
    ],
)
def test_metrics_are_read_out_of_a_query(query: str, metrics: set[str]) -> None:
    assert named_metrics(query) == metrics


@given(st.from_regex(r"[a-z_]{3,12}_total", fullmatch=True), st.from_regex(r"[a-z]{3,8}", fullmatch=True))
def test_a_label_is_no_metric(metric: str, label: str) -> None:
    query = f'sum without ({label}) (increase({metric}{{{label}!="{metric}x"}}[1h])) > 0'
    assert named_metrics(query) == {metric}


def test_provisioning_names_the_data_source_and_the_folders() -> None:
    source: dict[str, Any] = _yaml("datasources/thanos.yml")["datasources"][0]
    assert source["uid"] == "thanos"
    assert source["jsonData"]["timeInterval"] == f"{SCRAPE_S}s"
    provider: dict[str, Any] = _yaml("dashboards/hindcast.yml")["providers"][0]
    inside = provider["options"]["path"]
    grafana: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"] if volume.startswith("./"))
    assert mounted == {f"./dashboards/{folder}": f"{inside}/{folder}" for folder in {"clusters", *FOLDERS.values()}}
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{inside}/clusters/fleet.json"


def _yaml(path: str) -> Any:
    return yaml.safe_load((FOLDER / "provisioning" / path).read_text(encoding="utf-8"))
