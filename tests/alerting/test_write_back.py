"""What rules recorded, and ALERTS, written back to a real Prometheus or as its blocks: each sample at its own time."""

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.dashboards.catalogue import dashboard
from services.dashboards.live import Source, Window
from services.kit.errors import UserError
from services.recording.reader import Recording
from services.rules.recorded import windows, write_back
from services.sink.encode import STALE
from services.sink.pages import Catalogue
from services.sink.settings import SinkSettings
from services.stack import build
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests import web
from tests.small import Brake, small_recording

pytestmark = pytest.mark.integration

RULES = """
groups:
  - name: mine
    interval: 15s
    rules:
      - record: node:power:sum
        expr: sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE)
      - alert: NodeDrawsLittle
        expr: node:power:sum{Hostname="v002"} < 2400
        for: 30s
"""
BEGIN = "2026-02-01T00:00:00Z"
LATER = "2026-02-02T00:00:00Z"
RULES_OF_HINDCAST = Path(__file__).parents[2] / "alert-rules" / "detectors"
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Prometheus alone."""
    with Stack.start(tmp_path_factory.mktemp("stack"), load_settings(), only=("prometheus",)) as stack:
        yield stack


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Three nodes for eight minutes, one of them braked for two."""
    folder = tmp_path_factory.mktemp("recording")
    return Recording.open(small_recording(folder, "braked", nodes=3, minutes=8, brakes=[Brake("v002", 240, 360)]))


def test_recorded_series_and_alerts_come_back_at_their_time(
    prometheus: Stack, recording: Recording, tmp_path: Path
) -> None:
    rules, lines, text = tmp_path / "mine.yaml", tmp_path / "alerts.jsonl", tmp_path / "recorded.txt"
    rules.write_text(RULES, encoding="utf-8")
    url = prometheus.addresses.prometheus_write
    done = CliRunner().invoke(
        app,
        ["rules", str(recording.path), "--rules", str(rules), "--remote-write", url, "--at", BEGIN,
         "--json", str(lines), "--openmetrics", str(text)],
        catch_exceptions=False,
    )  # fmt: skip
    assert done.exit_code == 0
    assert f"written to {url}, from 2026-02-01T00:00:00" in done.stdout
    shift_ms = _ms(BEGIN) - recording.manifest.start
    held = _held(prometheus, '{__name__=~"node:power:sum|ALERTS|ALERTS_FOR_STATE"}', recording, shift_ms)
    # What the other way out says, sample by sample.
    assert held == _openmetrics(text.read_text(encoding="utf-8"))
    (firing,) = [times for series, times in held.items() if ("alertstate", "firing") in series]
    changes = {change["state"]: change for change in map(json.loads, lines.read_text(encoding="utf-8").splitlines())}
    assert min(firing) == _ms(changes["firing"]["at"])
    assert max(firing) == _ms(changes["resolved"]["at"]) - 15_000
    # The staleness marker came too: an instant query after the end, within the five minutes of look-back, is empty.
    over = (_ms(changes["resolved"]["at"]) + shift_ms + 1000) / 1000
    answer = web.get(
        f"{prometheus.addresses.prometheus}/api/v1/query",
        params={"query": 'ALERTS{alertname="NodeDrawsLittle"}', "time": over},
    )
    assert answer.json()["data"]["result"] == []


def test_blocks_hold_the_same_for_thanos_and_mimir_to_upload(recording: Recording, tmp_path: Path) -> None:
    """Cut at the whole two hours as a Prometheus cuts them, which this recording is laid over; read by promtool."""
    rules, text, blocks = tmp_path / "mine.yaml", tmp_path / "recorded.txt", tmp_path / "made" / "blocks"
    rules.write_text(RULES, encoding="utf-8")
    begin = "2026-02-01T01:55:00Z"
    given = ["rules", str(recording.path), "--rules", str(rules), "--blocks", str(blocks), "--at", begin, "--as", "r7"]
    done = CliRunner().invoke(app, [*given, "--openmetrics", str(text)], catch_exceptions=False)
    assert f"2 blocks of recorded series and ALERTS written to {blocks}" in done.stdout
    metas = [json.loads(path.read_text(encoding="utf-8")) for path in blocks.glob("*/meta.json")]
    edge = _ms("2026-02-01T02:00:00Z")
    assert sorted(meta["maxTime"] <= edge for meta in metas) == sorted(meta["minTime"] < edge for meta in metas)
    promtool = build.ensure(load_settings().cache_dir, ("prometheus",))["prometheus"] / "promtool"
    (blocks / "wal").mkdir()  # promtool wants one
    dumped = subprocess.run([promtool, "tsdb", "dump", blocks], capture_output=True, text=True, check=True).stdout
    shift_ms = _ms(begin) - recording.manifest.start
    held: Held = defaultdict(dict)
    over = set()
    for line in dumped.splitlines():
        head, value, at = line.rsplit(" ", 2)
        series = _series("", head.strip("{}"), ", ")
        if value == "NaN":
            over.add((series, int(at) - shift_ms))
        else:
            held[series][int(at) - shift_ms] = float(value)
    assert held == {
        tuple(sorted({**dict(series), "replay": "r7"}.items())): samples
        for series, samples in _openmetrics(text.read_text(encoding="utf-8")).items()
    }
    # A staleness marker wherever a series breaks off before the last evaluation.
    assert over == {
        (series, at + 15_000)
        for series, times in held.items()
        for at in times
        if at + 15_000 not in times and at + 15_000 <= recording.manifest.end
    }
    with pytest.raises(UserError, match="is not empty"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def _ms(text: str) -> int:
    return int(np.datetime64(text.removesuffix("Z"), "ms").astype(np.int64))


Held = dict[tuple[tuple[str, str], ...], dict[int, float]]


def _held(stack: Stack, query: str, recording: Recording, shift_ms: int) -> Held:
    """Return every sample by series, at recording time."""
    end = recording.manifest.end + shift_ms
    answer = web.get(f"{stack.addresses.prometheus}/api/v1/query", params={"query": f"{query}[1h]", "time": end / 1000})
    return {
        tuple(sorted(one["metric"].items())): {round(at * 1000) - shift_ms: float(v) for at, v in one["values"]}
        for one in answer.json()["data"]["result"]
    }


def _openmetrics(text: str) -> Held:
    found: Held = defaultdict(dict)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        head, value, at = line.rsplit(" ", 2)
        name, _, labels = head.removesuffix("}").partition("{")
        found[_series(f'__name__="{name}",', labels)][round(float(at) * 1000)] = float(value)
    return dict(found)


def _series(name: str, labels: str, between: str = ",") -> tuple[tuple[str, str], ...]:
    pairs = [pair.partition("=") for pair in f"{name}{labels}".split(between) if pair]
    return tuple(sorted((key, quoted.strip('"')) for key, _, quoted in pairs))


def test_where_no_detector_runs_dashboards_know_incidents_from_alerts(prometheus: Stack, recording: Recording) -> None:
    rules, begin_ms = RULES_OF_HINDCAST / "power_throttle.yaml", _ms(LATER)
    url = prometheus.addresses.prometheus_write
    given = ["rules", str(recording.path), "--rules", str(rules), "--remote-write", url, "--at", LATER, "--as", "r7"]
    assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 0
    length_ms = recording.manifest.end - recording.manifest.start
    source = Source(prometheus.addresses.prometheus, Window(begin_ms, begin_ms + length_ms))
    board = dashboard("incident")
    values = source.values(board, {"replay": "r7", "incident": "power_throttle of v002"})
    listed = next(variable for variable in board.templating.list if variable.name == "incident")
    # The newest first: BMCs are read once a minute, so the supply is seen after the brake.
    assert source.options(listed, values) == ["psu_failed of v002", "power_throttle of v002", "none"]
    assert values["node"] == "v002"
    board = dashboard("executive")
    values = source.values(board, {"replay": "r7"})
    (faults,) = [source.answer(panel, target, values) for panel, target in board.queries() if panel.title == "Faults"]
    source.close()
    assert [series.values[-1] for series in faults.series] == [2]


def test_what_the_server_refuses_is_reported_in_its_words(prometheus: Stack, tmp_path: Path) -> None:
    """A day behind its newest, and its window for late samples is half of that."""
    now = _ms(BEGIN) + 30 * DAY_MS
    settings = SinkSettings.model_validate({"url": prometheus.addresses.prometheus_write})
    write_back(_file(tmp_path, "new", [(now, 1.0)]), settings)
    with pytest.raises(UserError, match=r"refuses.*400 .*(out of bounds|too old)") as refused:
        write_back(_file(tmp_path, "old", [(now - DAY_MS, 1.0)]), settings)
    assert "out_of_order_time_window" in str(refused.value.remedy)


def test_a_staleness_marker_is_kept_as_it_is(tmp_path: Path) -> None:
    catalogue = Catalogue("v2")
    path = _file(tmp_path, "stale", [(1_700_000_000_000, 1.0), (1_700_000_015_000, STALE)])
    with path.open("rb") as file:
        ((block,),) = windows(file, catalogue)
    assert catalogue.labels(0) == {"__name__": "stale"}
    assert block.values.view("u8")[0, 1] == np.float64(STALE).view("u8")


def _file(folder: Path, metric: str, samples: list[tuple[int, float]]) -> Path:
    times, values = np.array([at for at, _ in samples], "<i8"), np.array([value for _, value in samples], "<f8")
    block = np.array([1, len(samples), 0], "<u4").tobytes() + times.tobytes() + values.tobytes()
    named = json.dumps([{"__name__": metric}]).encode()
    frames = ((b"L", named), (b"S", block), (b"W", times[-1:].tobytes()), (b"E", b""))
    path = folder / metric
    path.write_bytes(b"".join(kind + np.uint32(len(body)).tobytes() + body for kind, body in frames))
    return path
