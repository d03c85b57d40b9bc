"""What the rules do in event time is what a live Prometheus does, alert by alert.

A ten-minute recording is replayed at speed 1 so that it begins now, into the real stack whose Prometheus has loaded the
rules; the same rules are evaluated in event time. Takes some eleven minutes, hence only when asked for:
HINDCAST_TEST_LIVE_RULES=1 pytest tests/alerting/test_live.py
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.cli.pipeline import Pipeline, sink_group
from services.kit.kafka import KafkaSettings
from services.recording.reader import Recording
from services.rules.evaluation import Settings, evaluate, evaluator_program
from services.rules.files import rule_files
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests import web
from tests.small import Brake, small_recording

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        os.environ.get("HINDCAST_TEST_LIVE_RULES") != "1",
        reason="replays ten minutes at speed 1; set HINDCAST_TEST_LIVE_RULES=1",
    ),
]

ROOT = Path(__file__).parents[2]
NAME = "live-rules"
MINUTES = 10
# From a row's moment to the Prometheus that evaluates it: batches of the replay and of the sink.
DELIVERY_MS = 5_000

Identity = tuple[tuple[str, str], ...]
Spans = dict[Identity, list[tuple[int, int | None]]]
"""For every alert, from when to when it fired (ms of recording time); None: it still does when the recording ends."""


def _identity(labels: Mapping[str, str]) -> Identity:
    return tuple(sorted((name, value) for name, value in labels.items() if name not in {"__name__", "alertstate"}))


def _rules(folder: Path) -> list[Path]:
    """Return the rules, looking at this replay instead of at live series."""
    folder.mkdir()
    found = []
    for file in rule_files(ROOT / "alert-rules"):
        text = file.read_text(encoding="utf-8")
        found.append(folder / file.name)
        found[-1].write_text(text.replace('replay=~"live|"', f'replay="{NAME}"'), encoding="utf-8")
    return found


def _intervals(files: list[Path]) -> dict[str, int]:
    """Return each alert's evaluation interval in ms."""
    return {
        rule["alert"]: int(str(group["interval"]).removesuffix("s")) * 1000
        for file in files
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def _in_event_time(recording: Recording, files: list[Path]) -> Spans:
    evaluator = evaluator_program()
    spans: Spans = defaultdict(list)
    for change in evaluate(evaluator, recording, files, Settings(replay=NAME)).changes:
        who = _identity(change.labels)
        if change.state == "firing":
            spans[who].append((change.at, None))
        elif change.state == "resolved":
            spans[who][-1] = (spans[who][-1][0], change.at)
    return dict(spans)


def _live(url: str, start_ms: int, end_ms: int, shift_ms: int, intervals: Mapping[str, int]) -> Spans:
    """Return what Prometheus wrote down while it evaluated: the moments at which each alert was firing."""
    seconds = (end_ms - start_ms) // 1000
    answer = web.get(
        f"{url}/api/v1/query",
        params={
            "query": f'ALERTS{{alertstate="firing",replay="{NAME}"}}[{seconds}s]',
            "time": f"{(end_ms + shift_ms) / 1000:.3f}",
        },
        timeout=300,
    )
    series: list[dict[str, Any]] = answer.json()["data"]["result"]
    spans: Spans = defaultdict(list)
    for one in series:
        interval = intervals[one["metric"]["alertname"]]
        moments = [round(float(at) * 1000) - shift_ms for at, _ in one["values"]]
        begin = before = moments[0]
        for moment in [*moments[1:], end_ms + 3 * interval]:
            if moment - before > 1.5 * interval:
                # Gone at the evaluation after the last at which it fired.
                over = before + interval
                spans[_identity(one["metric"])].append((begin, over if over <= end_ms else None))
                begin = moment
            before = moment
    return dict(spans)


def test_event_time_is_what_a_live_prometheus_does(tmp_path: Path) -> None:
    path = small_recording(
        tmp_path, "ten-minutes", nodes=4, minutes=MINUTES, brakes=[Brake("v002", 180, 300), Brake("v003", 380, 420)]
    )
    recording, files = Recording.open(path), _rules(tmp_path / "rules")
    intervals = _intervals(files)
    settings = load_settings(rule_files=tuple(files))
    with Stack.start(tmp_path / "stack", settings) as stack:
        for spec in services(stack.service_context()):
            stack.add_process(spec)
        pipeline = Pipeline(KafkaSettings(bootstrap=stack.addresses.kafka), stack.addresses.services)
        status = pipeline.start_replay(str(path), name=NAME, speed=1, shift="start-now")
        shift_ms = int(status["shift_ms"])
        pipeline.wait_over(NAME, timeout_s=MINUTES * 60 + 300)
        pipeline.wait_caught_up(sink_group("prometheus"))
        live = _live(stack.addresses.prometheus, recording.manifest.start, recording.manifest.end, shift_ms, intervals)
    offline = _in_event_time(recording, files)

    assert any(("alertname", "NodePowerBrake") in who for who in live)
    assert live.keys() == offline.keys()
    for who, spans in offline.items():
        allowed = intervals[dict(who)["alertname"]] + DELIVERY_MS
        assert len(live[who]) == len(spans), who
        for (fired, over), (live_fired, live_over) in zip(spans, live[who], strict=True):
            assert abs(fired - live_fired) <= allowed, (who, fired, live_fired)
            if over is not None and live_over is not None:
                assert abs(over - live_over) <= allowed, (who, over, live_over)
