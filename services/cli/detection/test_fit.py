"""`hindcast fit` and `hindcast novelty`, on recordings written column by column."""

import json
from functools import partial
from pathlib import Path

import pytest

from detectors.contract import Finding
from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.kit.times import parse_time
from services.model.conftest import Slow, write_recording

invoke = partial(hindcast, columns=200)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    healthy = [write_recording(folder / f"healthy-{seed}", minutes=180, seed=seed) for seed in (21, 22)]
    slow = write_recording(folder / "slow", minutes=90, seed=23, slow=Slow())
    result = invoke("fit", *map(str, healthy), str(slow), "--out", str(folder / "gpus.model"))
    assert result.exit_code == 0, result.output
    (folder / "printed").write_text(result.output)
    return folder


def test_what_it_was_fitted_on_is_printed(fitted: Path) -> None:
    printed = (fitted / "printed").read_text()
    assert "healthy-21: " in printed
    assert "near labelled faults left out" in printed
    assert "of the variance" in printed
    assert "threshold" in printed
    assert "sha256" in printed


def test_what_is_novel_is_printed_beside_what_was_found(fitted: Path, tmp_path: Path) -> None:
    at = parse_time("2024-04-01T08:43:00.000Z")
    findings, out = tmp_path / "findings.jsonl", tmp_path / "novelties.jsonl"
    lines = [
        Finding("0", "straggler", "straggler", {"node": node, "gpu": gpu}, "firing", at, at, "ticket", 1.0, "slow", "")
        for node, gpu in (("n2", 3), ("n1", 0))
    ]
    findings.write_text("".join(f"{line.to_json()}\n" for line in lines))
    common = ("novelty", str(fitted / "slow"), "--model", str(fitted / "gpus.model"))
    result = invoke(*common, "--findings", str(findings), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "straggler node=n2 gpu=3: supported by n2 GPU 3 is unlike its peers" in result.output
    assert "straggler node=n1 gpu=0: not seen by the model" in result.output
    assert [json.loads(line)["kind"] for line in out.read_text().splitlines()] == ["novelty", "novelty"]
    findings.write_text(f"{lines[1].to_json()}\n")
    assert "no finding explains: n2 GPU 3" in invoke(*common, "--findings", str(findings)).output


def test_a_file_that_is_no_model_or_no_findings_is_refused(fitted: Path, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_text("{}\n")
    no_model = invoke("novelty", str(fitted / "slow"), "--model", str(junk))
    assert isinstance(no_model.exception, UserError)
    assert "not a model" in no_model.exception.message
    no_findings = invoke(
        "novelty", str(fitted / "slow"), "--model", str(fitted / "gpus.model"), "--findings", str(junk)
    )
    assert isinstance(no_findings.exception, UserError)
    assert "line 1" in no_findings.exception.message
