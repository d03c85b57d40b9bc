"""Whether a mix gives a cluster's ordinary business: shares, sizes, no two jobs on one GPU, any length."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.kit.errors import UserError
from services.recording.validate import validate_recording
from services.synth.conftest import Write
from services.synth.jobs.background_jobs import jobs_of
from services.synth.library import LIBRARY
from services.synth.make import Variant, make_recording, scenario_and_world
from services.synth.story.scenario import JobSpec, load_scenario

STATES = LIBRARY / "sakuraone-job-states" / "scenario.yaml"
HOUR = 3600.0


def drawn(path: Path, **variant: Any) -> tuple[list[JobSpec], Any]:
    scenario, world = scenario_and_world(path, Variant(**variant))
    return jobs_of(scenario, world, scenario.seed), world


def node_seconds(spec: JobSpec) -> float:
    assert spec.end is not None
    return (spec.end - spec.start) * len(spec.nodes)


def test_no_node_has_two_jobs_at_a_time() -> None:
    for scale in (0.1, 1.0):
        specs, world = drawn(STATES, scale=scale, duration_s=48 * HOUR)
        held: dict[int, list[tuple[float, float]]] = {}
        for spec in specs:
            for node in world.nodes(spec.nodes):
                held.setdefault(node, []).append((spec.start, spec.end or np.inf))
        for spans in held.values():
            spans.sort()
            assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_states_have_the_published_shares_of_jobs_and_of_time() -> None:
    """SAKURAONE: CANCELLED 9.5 % of jobs and 73.5 % of GPU time, FAILED 16.9 % and 0.3 %, COMPLETED 26.2 % of time."""
    specs, _ = drawn(STATES, duration_s=20 * 24 * HOUR)
    mixed = [spec for spec in specs if isinstance(spec.nodes, list)]
    count = {state: sum(spec.state == state for spec in mixed) / len(mixed) for state in ("CANCELLED", "FAILED")}
    assert count["CANCELLED"] == pytest.approx(0.095, abs=0.02)
    assert count["FAILED"] == pytest.approx(0.169, abs=0.02)
    total = sum(node_seconds(spec) for spec in mixed)
    time = {
        state: sum(node_seconds(spec) for spec in mixed if spec.state == state) / total
        for state in ("CANCELLED", "FAILED", "COMPLETED")
    }
    assert time["CANCELLED"] == pytest.approx(0.735, abs=0.07)
    assert time["COMPLETED"] == pytest.approx(0.262, abs=0.07)
    assert time["FAILED"] < 0.01


def test_a_cluster_is_as_busy_as_asked_and_busy_from_the_start() -> None:
    path = LIBRARY / "vela-healthy" / "scenario.yaml"
    specs, world = drawn(path, duration_s=240 * HOUR)
    mixed = [spec for spec in specs if isinstance(spec.nodes, list)]
    free = world.profile.nodes - 48
    busy = sum(node_seconds(spec) for spec in mixed if spec.start > 0) / (free * 240 * HOUR)
    assert busy == pytest.approx(0.8, abs=0.12)
    on_at_first = []
    for seed in range(10):
        mixed = [spec for spec in drawn(path, seed=seed)[0] if isinstance(spec.nodes, list)]
        on_at_first.append(sum(len(spec.nodes) for spec in mixed if spec.start < 0 < (spec.end or 0)))
    assert np.mean(on_at_first) == pytest.approx(0.8 * free, rel=0.3)


def test_a_mix_depends_on_the_seed_and_not_on_how_long_is_made() -> None:
    week, _ = drawn(STATES, duration_s=168 * HOUR)
    day, _ = drawn(STATES, duration_s=24 * HOUR)
    other, _ = drawn(STATES, seed=99, duration_s=24 * HOUR)
    assert [spec.id for spec in day] == [spec.id for spec in week[: len(day)]]
    assert [spec.start for spec in day] == [spec.start for spec in week[: len(day)]]
    assert [spec.start for spec in other] != [spec.start for spec in day]


def test_a_mixed_day_is_valid_and_every_job_has_an_end_or_runs_on(write: Write, tmp_path: Path) -> None:
    path = LIBRARY / "vela-healthy" / "scenario.yaml"
    out = make_recording(path, tmp_path / "out" / "vela-healthy", Variant(scale=0.05, duration_s=2 * HOUR))
    assert validate_recording(out) == []


def test_presets_are_filled_in_and_what_stands_beside_them_wins(write: Write, tmp_path: Path) -> None:
    jobs = [{"id": "1", "name": "n", "user": "u", "nodes": "all", "submit": "+00:00:10", "start": "+00:00:20"}]
    path = write({"jobs": [jobs[0] | {"training": {"preset": "granite-8b-a100", "collective_s": 0.7}}]})
    (spec,) = load_scenario(path)[0].jobs
    assert spec.training.collective_s == 0.7
    assert spec.training.compute_s == 4.4
    own = path.parent.parent / "profiles" / "training"
    own.mkdir()
    (own / "granite-8b-a100.yaml").write_text((LIBRARY / "profiles/training/finetune-8b.yaml").read_text())
    assert load_scenario(path)[0].jobs[0].training.compute_s == 2.4
    path = write({"jobs": [jobs[0] | {"training": {"preset": "nothing"}}]})
    with pytest.raises(UserError, match=r"nothing\.yaml: no such training preset"):
        load_scenario(path)
    (own / "odd.yaml").write_text("[1, 2]")
    path = write({"jobs": [jobs[0] | {"training": {"preset": "odd"}}]})
    with pytest.raises(UserError, match="not a mapping"):
        load_scenario(path)
