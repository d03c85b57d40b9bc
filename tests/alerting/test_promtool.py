"""Prometheus' own tools on every rule file, and what the rules read against what recordings become."""

import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from detectors.registry import discover
from services.kit.series import table
from services.rules.evaluation import evaluator_program, reads_of
from services.stack import build
from services.stack.settings import load_settings

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
RULES = [*sorted((ROOT / "alert-rules" / "detectors").glob("*.yaml")), ROOT / "alert-rules" / "pipeline.yaml"]
TESTS = [*sorted((ROOT / "detectors").glob("*/rules_test.yaml")), ROOT / "alert-rules" / "pipeline_test.yaml"]


def promtool(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    binary = build.ensure(load_settings().cache_dir, ("prometheus",))["prometheus"] / "promtool"
    return subprocess.run([binary, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.stem)
def test_every_file_is_good(rules: Path) -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cases", TESTS, ids=lambda path: path.parent.name)
def test_every_case_is_as_expected(cases: Path) -> None:
    done = promtool("test", "rules", cases)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.parametrize(
    ("was", "becomes"),
    [("ratio >= 0.5\n    for: 10s", "ratio >= 1.5\n    for: 10s"), ("fault: power_throttle", "fault: other")],
    ids=["never fires", "another label"],
)
def test_the_cases_notice_a_rule_that_is_wrong(tmp_path: Path, was: str, becomes: str) -> None:
    text = (ROOT / "alert-rules" / "detectors" / "power_throttle.yaml").read_text(encoding="utf-8")
    assert was in text
    cases = (ROOT / "detectors" / "power_throttle" / "rules_test.yaml").read_text(encoding="utf-8")
    (tmp_path / "rules.yaml").write_text(text.replace(was, becomes), encoding="utf-8")
    (tmp_path / "tests.yaml").write_text(
        cases.replace("../../alert-rules/detectors/power_throttle.yaml", "rules.yaml"), encoding="utf-8"
    )
    assert promtool("test", "rules", "tests.yaml", cwd=tmp_path).returncode != 0


def test_rules_read_what_a_recording_becomes() -> None:
    """Every metric is one of series.yaml's, one of DCGM's that recordings or detectors have, or of another rule."""
    evaluator = evaluator_program()
    files = RULES[:-1]
    recorded = {
        rule["record"]
        for file in files
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    known = {"up", *recorded}
    for stream in table().streams.values():
        known |= {column.metric for column in (*stream.columns.values(), *stream.patterns)}
        known |= {metric for metrics in stream.by_unit.values() for metric in metrics.values()}
    small = next((ROOT / "replay-data" / "small").glob("*/dcgm.parquet"))
    known |= {name for name in pq.read_schema(small).names if name.startswith("DCGM_")}
    known |= {name for detector in discover().values() for name in detector.spec.fields.get("dcgm", ())}
    reads = reads_of(evaluator, files)
    assert not reads.all
    assert reads.names.keys() <= known
