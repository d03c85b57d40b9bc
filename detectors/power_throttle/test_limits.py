"""power_throttle where power limits are lowered, by a fault or by choice, and where others than the driver cap."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import LogRecord
from detectors.power_throttle.examples import Brake, Scene, tape_of
from detectors.power_throttle.test_detector import (
    CLOCK,
    DEFAULT,
    POWER,
    REASONS,
    VIOLATION,
    firing,
    healthy,
    lowered,
    run,
)
from detectors.signals.power_limits import IN_FORCE
from detectors.signals.throttle_bits import SW_POWER_CAP
from detectors.tapes.gpus import START, changed, name
from detectors.tapes.tape import Tape


def limited(tape: Tape, watts: Any, field: str = IN_FORCE) -> Tape:
    """Return the tape with a power limit of `watts`(seconds, node, gpu) reported."""
    return changed(tape, field, lambda *of: np.asarray(watts(*of[:3]), float))


def test_a_limit_lowered_on_one_gpu_is_noted_until_it_is_set_back() -> None:
    def watts(at: Any, node: Any, gpu: Any) -> Any:
        mine = (node == name(1)) & (gpu == 4) & (at >= 120) & (at < 300)
        return np.where(mine, 250.0, 400.0)

    def held(share: float) -> Any:
        return lambda at, node, gpu, values: np.where(watts(at, node, gpu) < 400, share * values, values)

    lowered = limited(tape_of(Scene(seed=4)), watts)
    assert run(lowered) == [], "a card that draws as much as before is not held by its limit"
    slower = changed(changed(lowered, CLOCK, held(0.8)), POWER, lambda *at: np.minimum(at[-1], watts(*at[:3])))
    fired, resolved = run(slower)
    assert (fired.state, dict(fired.entity), fired.severity) == ("firing", {"node": name(1), "gpu": 4}, "info")
    assert START + 120_000 <= fired.started_at <= START + 127_000
    assert fired.detected_at <= START + 165_000
    assert float(fired.evidence["sm_clock_mhz"]) < 0.85 * float(fired.evidence["sm_clock_peers_mhz"])
    assert (fired.evidence["power_limit_w"], fired.evidence["power_limit_peers_w"]) == (250, 400)
    assert resolved.id == fired.id
    assert START + 300_000 <= resolved.detected_at <= START + 310_000


def test_a_node_whose_limit_is_lower_since_it_was_first_seen_is_somebodys_choice() -> None:
    (note,) = run(limited(tape_of(Scene(seed=4)), lambda at, node, gpu: np.where(node == name(1), 250.0, 400.0)))
    assert (note.state, note.severity, dict(note.entity)) == ("firing", "info", {"node": name(1)})


@pytest.mark.parametrize("field", ["DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT"])
def test_a_limit_lowered_on_a_node_is_noted_once_however_many_of_its_gpus_it_holds(field: str) -> None:
    def watts(at: Any, node: Any, gpu: Any) -> Any:
        return np.where((node == name(1)) & (at >= 120), 250.0, 400.0)

    def slower(at: Any, node: Any, gpu: Any, values: Any) -> Any:
        held = (node == name(1)) & ((gpu == 4) & (at >= 120) | (gpu == 5) & (at >= 300))
        return np.where(held, 0.8 * values, values)

    drawn = changed(tape_of(Scene(seed=4)), POWER, lambda *of: np.minimum(of[-1], watts(*of[:3])))
    (note,) = run(limited(changed(drawn, CLOCK, slower), watts, field))
    assert (note.severity, dict(note.entity), note.evidence["power_limit_w"]) == ("info", {"node": name(1)}, 250)


def test_a_limit_lowered_on_all_is_a_decision() -> None:
    assert run(limited(tape_of(Scene(seed=4)), lambda at, node, gpu: np.where(at > 120, 300.0, 400.0))) == []
    assert run(limited(tape_of(Scene(seed=4)), lambda at, node, gpu: np.full(len(at), 300.0))) == []


def test_two_models_have_two_limits() -> None:
    models = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
    tape = tape_of(Scene(seed=4, models=models))
    assert run(limited(tape, lambda at, node, gpu: np.where(np.isin(node, [name(0), name(2)]), 400.0, 700.0))) == []


def capped_from_200_s(share: float, *, nodes: Sequence[int] = (1,), limit: bool = False, until_s: float = 1e9) -> Tape:
    """Return a tape of nodes that the driver says are capped, by a cap that takes clock and power to `share`."""

    def here(seconds: Any, node: Any) -> Any:
        return np.isin(node, [name(number) for number in nodes]) & (seconds > 200) & (seconds < until_s)

    def cut(seconds: Any, node: Any, gpu: Any, values: Any) -> Any:
        return np.where(here(seconds, node), share * values, values)

    tape = healthy()
    if limit:
        tape = changed(
            tape, IN_FORCE, lambda seconds, node, gpu, values: np.where(here(seconds, node), 400 * share, 400.0)
        )
    for field in (CLOCK, POWER):
        tape = changed(tape, field, cut)
    return changed(tape, REASONS, lambda s, node, gpu, bits: np.where(here(s, node), SW_POWER_CAP, bits))


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_software_cap_far_below_the_limit_is_somebody_elses_cap(share: float) -> None:
    (fired,) = firing(capped_from_200_s(share))
    assert (dict(fired.entity), fired.severity) == ({"node": name(1)}, "page")
    assert START + 230_000 <= fired.detected_at <= START + 260_000
    assert "power capped far below the limit" in fired.summary
    assert "Redfish PowerLimit" in fired.recommended_action


@pytest.mark.parametrize(("share", "severity"), [(0.7, "page"), (0.85, "ticket"), (0.95, None)])
def test_a_limit_lowered_on_a_node_of_a_job_is_an_alert_if_it_costs_a_tenth(share: float, severity: str | None) -> None:
    found = [(one.severity, one.state) for one in run(capped_from_200_s(share, limit=True, until_s=400))]
    assert found == ([(severity, "firing"), (severity, "resolved")] if severity else [])


def test_a_limit_cuts_the_peaks_of_a_step_where_the_driver_says_so() -> None:
    tape = changed(capped_from_200_s(0.7, limit=True, until_s=400), POWER, lambda *at: 0.8 * at[-1])
    fired, resolved = run(tape)
    assert (fired.severity, fired.evidence["power_limit_w"]) == ("page", 280)
    assert resolved.id == fired.id


def of_one_node(tape: Tape, words: str = "", source: Any = "job", node: str | None = None) -> Tape:
    """Return the tape with a job for each node, and a line about the second's before its limit is lowered."""
    jobs = [
        replace(one, job=replace(one.job, job_id=f"job-{number}", nodes=(name(number),)))
        for one in tape.jobs
        for number in range(4)
    ]
    line = LogRecord(START + 170_000, source, words, node=node, job_id="job-1" if source == "job" else None)
    return replace(tape, jobs=jobs, logs=[line] if words else [])


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ((), "info"),
        (("step 12, loss 3.1",), "page"),
        (("prolog: user ana requested power cap 280W on all allocated GPUs (nvidia-smi -pl 280)",), "info"),
        (("prolog: user ana requested power cap 350W on all allocated GPUs (nvidia-smi -pl 350)",), "page"),
        (("sudo: ops : COMMAND=/usr/bin/nvidia-smi -pl 280", "kernel", name(1)), "info"),
        (("sudo: ops : COMMAND=/usr/bin/nvidia-smi -pl 280", "kernel", name(2)), "page"),
        (("ops: nvidia-smi -pl 250 (rack budget)", "scheduler", name(1)), "info"),
        (("ops: nvidia-smi -pl 320 (rack budget)", "scheduler", name(1)), "page"),
    ],
    ids=["no logs", "nobody", "its user", "another limit", "an operator", "on another node", "lower", "higher"],
)
def test_a_limit_lowered_on_all_of_a_job_is_its_users_if_a_log_shows_it_or_there_are_none(
    line: tuple[Any, ...], severity: str
) -> None:
    assert [one.severity for one in firing(of_one_node(capped_from_200_s(0.7, limit=True), *line))] == [severity]


def test_a_rack_that_is_capped_under_several_jobs_is_no_users_choice_even_where_there_are_no_logs() -> None:
    rack = of_one_node(capped_from_200_s(0.7, nodes=(0, 1), limit=True))
    assert [(one.entity["node"], one.severity) for one in firing(rack)] == [(name(0), "page"), (name(1), "page")]


@pytest.mark.parametrize(
    ("limit_w", "words"), [(340.0, "its power limit is 340 W"), (400.0, "power capped far below the limit")]
)
def test_a_software_cap_is_that_of_a_limit_that_somebody_lowered_then(limit_w: float, words: str) -> None:
    """However much less than the limit is drawn: in communication, or as the driver goes by more than a mean."""

    def watts(at: Any, node: Any, _: Any) -> Any:
        return np.where((node == name(1)) & (at > 200), limit_w, 400.0)

    tape = limited(capped_from_200_s(0.7), watts, "DCGM_FI_DEV_POWER_MGMT_LIMIT")
    (page,) = [one for one in firing(tape) if one.severity == "page"]
    assert words in page.summary


@pytest.mark.parametrize(("stated", "found"), [(1, [{"node": name(1)}]), (6, [])], ids=["all the time", "now and then"])
def test_a_cap_that_the_driver_states_now_and_then_is_no_reason_for_a_clock_that_is_low(
    stated: int, found: list[Any]
) -> None:
    """A GPU that works near its limit is at it in some readings, whatever else lowered its node's clocks."""
    tape = changed(capped_from_200_s(0.7), VIOLATION, lambda *of: 0 * of[-1])
    tape = changed(tape, REASONS, lambda *of: np.where(of[0] // 5 % stated == 0, of[-1], 0))
    assert [dict(one.entity) for one in firing(tape)] == found


def test_a_rack_that_is_capped_is_somebodys_decision() -> None:
    assert firing(capped_from_200_s(0.7, nodes=(0, 1))) == []


@pytest.mark.parametrize(
    ("left", "stated", "found"),
    [(0.72, False, [{"node": name(1)}]), (0.85, False, []), (0.75, True, []), (0.5, True, [{"node": name(1)}])],
)
def test_a_node_that_has_lost_a_fifth_of_both_is_capped_unless_the_driver_gives_no_reason(
    left: float, stated: bool, found: list[Any]
) -> None:
    fields = [*DEFAULT.fields, REASONS] if stated else DEFAULT.fields
    tape = tape_of(replace(DEFAULT, fields=fields, brakes=[], minutes=10))
    if stated:
        tape = changed(tape, REASONS, lambda _s, _node, _gpu, bits: 0 * bits)
    assert [dict(one.entity) for one in firing(lowered(tape, name(1), 300, left))] == found


@pytest.mark.parametrize("field", ["DCGM_FI_DEV_POWER_MGMT_LIMIT", IN_FORCE])
@pytest.mark.parametrize("drawn", [250.0, 200.0])
def test_a_cap_that_somebody_sets_on_a_node_whose_supply_failed_before_is_no_brake(field: str, drawn: float) -> None:
    """One that nobody asked for is the platform's for its supply; and so is what takes more than the cap."""

    def capped(low: float, usual: float) -> Any:
        return lambda at, node, _: np.where((node == name(1)) & (at >= 300), low, usual)

    scene = Scene(seed=4, minutes=10, brakes=[Brake(1, 60, 61)])
    failed = [line for line in tape_of(scene).logs if "Asserted" in line.message]
    tape = replace(limited(tape_of(Scene(seed=4, minutes=10)), capped(250.0, 400.0), field), logs=failed)
    tape = changed(tape, POWER, lambda at, node, gpu, values: np.minimum(values, capped(drawn, 400.0)(at, node, gpu)))
    tape = changed(tape, CLOCK, lambda at, node, gpu, values: values * capped(0.75, 1.0)(at, node, gpu))
    tape = changed(tape, REASONS, lambda at, node, gpu, values: capped(SW_POWER_CAP, 0)(at, node, gpu) + 0 * values)
    braked = [one for one in firing(tape) if one.severity == "page" and "its power limit" not in one.summary]
    by_choice = field != IN_FORCE and drawn == 250.0
    assert [dict(one.entity) for one in braked] == ([] if by_choice else [{"node": name(1)}])


@pytest.mark.parametrize(
    ("source", "node", "words", "braked"),
    [
        ("kernel", name(1), "sudo: ops : COMMAND=/usr/bin/nvidia-smi -pl 250", False),
        ("kernel", name(1), "nvidia-smi: power limit for all GPUs set to 250.00 W by root", False),
        ("scheduler", None, f"prolog: job 7 asked for a cap: nvidia-smi -pl 250 on {name(1)}", False),
        ("scheduler", None, "operator note: nvidia-smi -pl 250 applied to all GPU nodes", False),
        ("kernel", name(0), "sudo: ops : COMMAND=/usr/bin/nvidia-smi -pl 250", True),
        ("kernel", name(1), "sudo: ops : COMMAND=/usr/bin/nvidia-smi -i 0,1 -pl 250", True),
        ("kernel", name(1), "sudo: ops : COMMAND=/usr/bin/nvidia-smi -pl 400", True),
    ],
)
def test_on_default_fields_a_line_of_who_sets_a_limit_says_that_it_is_no_brake(
    source: Any, node: str | None, words: str, braked: bool
) -> None:
    tape = tape_of(replace(DEFAULT, brakes=[], minutes=10))
    for field, most in ((CLOCK, 0.7), (POWER, 250.0)):

        def cut(at: Any, of: Any, _: Any, values: Any, most: float = most) -> Any:
            held = np.minimum(values, most) if most > 1 else most * values
            return np.where((of == name(1)) & (at > 300), held, values)

        tape = changed(tape, field, cut)
    line = LogRecord(START + 299_000, source, words, node=node)
    found = [dict(one.entity) for one in firing(replace(tape, logs=[line]))]
    assert found == ([{"node": name(1)}] if braked else [])


def test_one_gpu_that_counts_throttled_time_at_a_limit_that_was_lowered_on_it_has_no_brake() -> None:
    def mine(at: Any, node: Any, gpu: Any) -> Any:
        return (node == name(1)) & (gpu == 4) & (at >= 120)

    tape = limited(tape_of(Scene(seed=4)), lambda *of: np.where(mine(*of), 250.0, 400.0))
    tape = changed(tape, POWER, lambda *of: np.minimum(of[-1], np.where(mine(*of[:3]), 250.0, 400.0)))
    tape = changed(tape, CLOCK, lambda *of: np.where(mine(*of[:3]), 0.8, 1.0) * of[-1])
    tape = changed(tape, REASONS, lambda *of: np.where(mine(*of[:3]), 0, of[-1]))
    tape = changed(tape, VIOLATION, lambda *of: of[-1] + np.where(mine(*of[:3]), (of[0] - 120) * 6e8, 0))
    assert [one.severity for one in firing(tape)] == ["info"]


@pytest.mark.parametrize(
    ("gpus", "nodes_of_job", "bits", "found"),
    [([4], 4, SW_POWER_CAP, 0), ([4], 4, 0, 1), (range(8), 1, SW_POWER_CAP, 0), (range(8), 1, 0, 1),
     (range(8), 4, SW_POWER_CAP, 1)],
    ids=["a cap of one GPU", "a brake of one GPU", "its user's cap", "a brake of its node", "a cap in a job of four"],
)  # fmt: skip
def test_throttled_time_that_the_drivers_cap_explains_in_most_readings_is_the_caps(
    gpus: Sequence[int], nodes_of_job: int, bits: int, found: int
) -> None:
    """No limit is read, so it may have been lowered; in one reading of three the driver gives no reason."""

    def mine(at: Any, node: Any, gpu: Any) -> Any:
        return (node == name(1)) & np.isin(gpu, gpus) & (at >= 240)

    tape = tape_of(Scene(seed=4))
    tape = changed(tape, POWER, lambda *of: np.where(mine(*of[:3]), 0.5, 1.0) * of[-1])
    tape = changed(tape, CLOCK, lambda *of: np.where(mine(*of[:3]), 0.6, 1.0) * of[-1])
    tape = changed(
        tape, REASONS, lambda *of: np.where(mine(*of[:3]), np.where((of[0] + of[2]) % 3 < 2, bits, 0), of[-1])
    )
    tape = changed(tape, VIOLATION, lambda *of: of[-1] + np.where(mine(*of[:3]), (of[0] - 240) * 8e8, 0))
    jobs = [replace(one, job=replace(one.job, job_id=f"{first}", nodes=one.job.nodes[first : first + nodes_of_job]))
            for one in tape.jobs for first in range(0, 4, nodes_of_job)]  # fmt: skip
    assert len([one for one in firing(replace(tape, jobs=jobs)) if one.severity != "info"]) == found


def test_work_that_pauses_at_a_lowered_limit_has_no_brake_though_its_counter_still_reads_as_before() -> None:
    """Collectors repeat a counter: what a cap counted before the pause is no brake in it, whose reasons are read."""

    def capped(at: Any, node: Any) -> Any:
        return (node == name(1)) & (at >= 120)

    def paused(at: Any, node: Any) -> Any:
        return capped(at, node) & (at >= 300) & (at < 330)

    tape = limited(tape_of(Scene(seed=4)), lambda at, node, _gpu: np.where(capped(at, node), 280.0, 400.0))
    for field, low, pause in ((CLOCK, 1180.0, 1410.0), (POWER, 276.0, 130.0), (REASONS, float(SW_POWER_CAP), 0.0)):
        tape = changed(
            tape,
            field,
            lambda at, node, _gpu, values, low=low, pause=pause: np.where(
                paused(at, node), pause, np.where(capped(at, node), low, values)
            ),
        )

    def counted(at: Any, node: Any, _gpu: Any, values: Any) -> Any:
        return np.where(node == name(1), 1e9 * (np.clip(at, 120, 300) - 120 + np.clip(at - 330, 0, None)), values)

    found = firing(changed(tape, VIOLATION, counted))
    assert [one.severity for one in found if "brake" in one.summary] == []
