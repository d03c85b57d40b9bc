"""What GPUs do: what is usual is not learnt while a step never ends, and who works on hangs nobody."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.job_health.examples import HUNG, line, tape_of
from detectors.job_health.test_detector import fired_after_s, run
from detectors.tapes.cluster import START, name


def test_what_gpus_do_while_a_long_step_never_ends_is_not_what_they_usually_do() -> None:
    hung = replace(HUNG, step_s=120.0, spin_w=300.0, minutes=95, hang=(3600, 1e9), interval_s=30.0)
    assert fired_after_s(tape_of(hung), 3600) <= 660


@pytest.mark.parametrize(("watts", "hangs"), [(150.0, ["812"]), (590.0, [])], ids=["all wait", "all but one wait"])
def test_a_job_that_waits_for_one_gpu_which_works_on_does_not_hang_as_far_as_its_gpus_show(
    watts: float, hangs: list[str]
) -> None:
    _, dcgm = tape_of(HUNG).rows
    power = dcgm.values["DCGM_FI_DEV_POWER_USAGE"]
    first = (dcgm.keys["node"].codes == 0) & (dcgm.keys["gpu"].codes == 0) & (power < 300)
    values = dict(dcgm.values) | {"DCGM_FI_DEV_POWER_USAGE": np.where(first, watts, power)}
    alone = replace(tape_of(HUNG), rows=[replace(dcgm, values=values)])
    assert [str(one.entity["job_id"]) for one in run(alone) if one.state == "firing"] == hangs


@pytest.mark.parametrize(("little", "wobbles", "hangs"), [(0.05, 0.0, ["812"]), (0.05, 0.2, []), (0.2, 0.0, [])])
def test_gpus_that_do_little_at_a_power_that_stands_still_spin(little: float, wobbles: float, hangs: list[str]) -> None:
    """A rank or two may go on by themselves where all others wait; what works on draws now more and now less."""
    steps, dcgm = tape_of(replace(HUNG, nodes=1)).rows
    power = dcgm.values["DCGM_FI_DEV_POWER_USAGE"]
    waits = power < 300
    scrape = (dcgm.times - START) // 10_000
    values = dict(dcgm.values) | {
        "DCGM_FI_DEV_POWER_USAGE": np.where(waits, power * (1 + wobbles * (scrape % 3)), power),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.where(waits, little, 0.4),
    }
    valid = {field: np.ones(len(power), bool) for field in values}
    tape = replace(tape_of(replace(HUNG, nodes=1)), rows=[steps, replace(dcgm, values=values, valid=valid)])
    assert [str(one.entity["job_id"]) for one in run(tape) if one.state == "firing"] == hangs


@pytest.mark.parametrize(("interval_s", "tensor"), [(10.0, np.nan), (60.0, np.nan), (60.0, 0.0)])
@pytest.mark.parametrize(("nodes", "until_s", "hangs"), [(3, 1e9, ["812"]), (1, 1e9, []), (3, 2800, [])])
def test_a_job_of_several_nodes_without_steps_that_idles_after_long_work_hangs(
    nodes: int, until_s: float, hangs: list[str], interval_s: float, tensor: float
) -> None:
    """Eight minutes after the last reading by which it works, not after the first by which it does not."""
    tape = tape_of(replace(HUNG, nodes=nodes, spinning=False, hang=(2400, until_s), minutes=60, interval_s=interval_s))
    (dcgm,) = [rows for rows in tape.rows if rows.kind == "dcgm"]
    used = np.full(len(dcgm.times), tensor)  # a simulation reads 0 at work, too
    field = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
    values, valid = {**dcgm.values, field: used}, {**dcgm.valid, field: np.isfinite(used)}
    alone = replace(tape, rows=[replace(dcgm, values=values, valid=valid)])
    found = [one for one in run(alone) if one.state == "firing" and one.severity != "info"]
    assert [str(one.entity["job_id"]) for one in found] == hangs
    last_s = 2400.7 - interval_s
    assert all(480 < (one.detected_at - START) / 1000 - last_s <= 490 for one in found)


@pytest.mark.parametrize(
    ("node", "util", "after_s"),
    [(1, 0.0, [485]), (1, 15.0, []), (0, 0.0, [905])],
    ids=["idles", "works now and then", "the first: it may be saving"],
)
def test_a_job_whose_nodes_spin_while_one_of_four_idles_hangs(node: int, util: float, after_s: list[int]) -> None:
    tape = tape_of(replace(HUNG, nodes=4, hang=(2400, 1e9), minutes=60))
    _, dcgm = tape.rows
    power, used = (dcgm.values[f"DCGM_FI_DEV_{field}"] for field in ("POWER_USAGE", "GPU_UTIL"))
    stuck = (dcgm.keys["node"].codes == node) & (dcgm.times >= START + 2_400_000)
    values = dict(dcgm.values) | {
        "DCGM_FI_DEV_POWER_USAGE": np.where(stuck, 130.0, power),
        "DCGM_FI_DEV_GPU_UTIL": np.where(stuck, util, used),
    }
    found = [one for one in run(replace(tape, rows=[replace(dcgm, values=values)])) if one.state == "firing"]
    assert [one.entity for one in found] == [{"job_id": "812"}] * len(after_s)
    assert [(one.detected_at - START) // 1000 - 2400 for one in found] == pytest.approx(after_s, abs=15)


def test_a_pause_of_a_job_that_has_been_slow_for_long_is_no_hang() -> None:
    """A brake holds down one of its nodes, and the others wait for it: 70 % of the power."""
    tape = tape_of(replace(HUNG, nodes=3, spinning=False, hang=(3000, 3060), minutes=60))
    _, dcgm = tape.rows
    power, at_s = dcgm.values["DCGM_FI_DEV_POWER_USAGE"], (dcgm.times - START) / 1000
    values = dict(dcgm.values) | {"DCGM_FI_DEV_POWER_USAGE": np.where((at_s > 2400) & (power > 400), 420.0, power)}
    valid = dict(dcgm.valid) | {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.zeros(len(power), bool)}
    alone = replace(tape, rows=[replace(dcgm, values=values, valid=valid)])
    assert [one for one in run(alone) if one.state == "firing"] == []


@pytest.mark.parametrize(("watts", "least_s", "most_s"), [(330.0, 150, 165), (420.0, 900, 915)])
def test_gpus_that_draw_two_thirds_of_the_power_or_more_do_not_only_spin(
    watts: float, least_s: float, most_s: float
) -> None:
    hung = tape_of(replace(HUNG, spin_w=watts, minutes=30))
    steps, dcgm = hung.rows
    valid = dict(dcgm.valid) | {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.zeros(len(dcgm.times), bool)}
    tape = replace(hung, rows=[steps, replace(dcgm, valid=valid)])
    assert least_s <= fired_after_s(tape, 480) <= most_s


@pytest.mark.parametrize("profiled", [True, False], ids=["tensor activity", "power"])
@pytest.mark.parametrize(("gpus", "least_s", "most_s"), [(8, 900, 1000), (2, 150, 300)], ids=["a node", "two ranks"])
def test_nodes_that_wait_for_one_that_evaluates_do_not_hang(
    gpus: int, least_s: float, most_s: float, *, profiled: bool
) -> None:
    hung = tape_of(replace(HUNG, nodes=6, gpus=8, minutes=30))
    steps, dcgm = hung.rows
    power, at_s = dcgm.values["DCGM_FI_DEV_POWER_USAGE"], (dcgm.times - START) / 1000
    works = (dcgm.keys["node"].codes == 1) & (dcgm.keys["gpu"].codes < gpus) | (at_s < 480)
    values = dict(dcgm.values) | {
        "DCGM_FI_DEV_POWER_USAGE": np.where(works, 600.0, power),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.where(works, 0.4, 0.0),
    }
    valid = {field: np.full(len(power), profiled or "PROF" not in field) for field in values}
    valid = {field: np.ones(len(power), bool) for field in dcgm.values} | valid
    tape = replace(hung, rows=[steps, replace(dcgm, values=values, valid=valid)])
    assert least_s <= fired_after_s(tape, 480) <= most_s


def test_the_step_after_an_evaluation_on_one_node_takes_its_time() -> None:
    hung = tape_of(replace(HUNG, nodes=6, gpus=8, minutes=20, hang=(480, 840)))
    steps, dcgm = hung.rows
    at_s = (dcgm.times - START) / 1000
    works = (dcgm.keys["node"].codes == 1) & (at_s < 790) | (at_s < 480)
    power = np.where(works, 600.0, dcgm.values["DCGM_FI_DEV_POWER_USAGE"])
    evaluated = replace(dcgm, values=dict(dcgm.values) | {"DCGM_FI_DEV_POWER_USAGE": power})
    assert run(replace(hung, rows=[steps, evaluated])) == []
    assert run(hung) != []


@pytest.mark.parametrize(("again", "hangs"), [(True, ["812"]), (False, [])])
def test_a_file_server_that_answers_again_explains_no_hang(again: bool, hangs: list[str]) -> None:
    lines = [line(500, "nfs: server nas-home not responding, still trying", "kernel", name(0))]
    if again:
        lines.append(line(550, "nfs: server nas-home OK", "kernel", name(1)))
    found = run(tape_of(replace(HUNG, lines=lines)))
    assert [str(one.entity["job_id"]) for one in found if one.state == "firing"] == hangs


@pytest.mark.parametrize(
    ("watts", "hangs"), [(600.0, []), (150.0, ["812"]), (0.0, ["812"])], ids=["works", "waits", "does not count"]
)
def test_power_that_is_read_at_the_same_moment_of_each_step_is_no_hang_where_energy_grows_as_ever(
    watts: float, hangs: list[str]
) -> None:
    _, dcgm = tape_of(HUNG).rows
    power, at_s = dcgm.values["DCGM_FI_DEV_POWER_USAGE"], (dcgm.times - START) / 1000
    waits_s = at_s[power < 300].min()
    used = 1000 * ((600.0 if watts else 0.0) * np.minimum(at_s, waits_s) + watts * np.maximum(at_s - waits_s, 0))
    values = dict(dcgm.values) | {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": used}
    valid = {field: np.ones(len(power), bool) for field in values}
    alone = replace(tape_of(HUNG), rows=[replace(dcgm, values=values, valid=valid)])
    assert [str(one.entity["job_id"]) for one in run(alone) if one.state == "firing"] == hangs


@pytest.mark.parametrize(
    ("watts", "tensor", "hangs"), [(390.0, 0.0, ["812"]), (390.0, 0.3, []), (470.0, 0.0, ["812"]), (540.0, 0.0, [])]
)
def test_gpus_that_are_busy_at_four_fifths_of_the_power_of_light_steps_spin_if_they_compute_nothing(
    watts: float, tensor: float, hangs: list[str]
) -> None:
    tape = tape_of(replace(HUNG, spin_w=watts))
    (_, dcgm), at_s = tape.rows, (tape.rows[1].times - START) / 1000
    values = dict(dcgm.values) | {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.where(at_s < 480, 0.3, tensor)}
    valid = {field: np.ones(len(at_s), bool) for field in values}
    alone = replace(tape, rows=[replace(dcgm, values=values, valid=valid)])
    assert [str(one.entity["job_id"]) for one in run(alone) if one.state == "firing"] == hangs


@pytest.mark.parametrize(
    ("at_s", "prompt", "severity", "after_s"),
    [
        ([483], "> train.py(212)<module>() -> breakpoint()", "info", 900),
        ([483], "-> import pdb; pdb.set_trace()", "info", 900),
        ([483], "(Pdb) ", "info", 900),
        ([483], "ok", "page", 150),
        ([483], "py-spy attached to pid 44120", "info", 900),
        ([470, 600], "Attaching to process 44120 with gdb", "info", 900),
        ([600], "py-spy attached to pid 44120", "page", 150),
    ],
)
def test_a_job_that_a_debugger_holds_is_information(
    at_s: list[float], prompt: str, severity: str, after_s: float
) -> None:
    """Who attaches one two minutes later looks for what stopped it."""
    tape = tape_of(replace(HUNG, minutes=30, lines=[line(at, prompt, "job", name(0)) for at in at_s]))
    (fired,) = (one for one in run(tape) if one.state == "firing")
    assert fired.severity == severity
    assert (fired.detected_at - START) / 1000 - 480 == pytest.approx(after_s, abs=30)


@pytest.mark.parametrize(("hours", "severity", "after_s"), [(7, "info", 900), (9, "page", 310)])
def test_a_job_on_one_node_that_made_steps_for_a_working_day_has_no_user_at_its_prompt(
    hours: int, severity: str, after_s: float
) -> None:
    stops_s = 3600 * hours
    hung = replace(HUNG, nodes=1, spinning=False, hang=(stops_s, 1e9), minutes=60 * hours + 20)
    (fired,) = run(tape_of(replace(hung, step_s=30.0, interval_s=60.0, losses=False)))
    assert fired.severity == severity
    assert fired.detected_at - START == pytest.approx(1000 * (stops_s + after_s), abs=50_000)


def test_how_long_evaluations_take_in_which_tensor_cores_work_says_nothing_of_how_long_gpus_may_spin() -> None:
    tape = tape_of(replace(HUNG, light=[(150, 450)], hang=(700, 1e9), minutes=25))
    assert 150 <= fired_after_s(tape, 700) <= 175


def test_nor_of_how_long_they_may_idle() -> None:
    tape = tape_of(replace(HUNG, light=[(150, 750)], hang=(1100, 1e9), spinning=False, minutes=35))
    assert 270 <= fired_after_s(tape, 1100) <= 300


@pytest.mark.parametrize(("hours", "severity", "after_s"), [(0.5, "info", 900), (2, "ticket", 600)])
def test_a_job_on_one_node_without_steps_that_spins_after_an_hour_of_work_has_lost_a_rank(
    hours: float, severity: str, after_s: float
) -> None:
    hung = replace(HUNG, nodes=1, gpus=8, gathered=False, hang=(3600 * hours, 1e9), minutes=60 * hours + 20)
    (fired,) = run(tape_of(hung))
    assert fired.severity == severity
    assert fired.detected_at - START == pytest.approx(1000 * (3600 * hours + after_s), abs=20_000)


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize(("ended", "hangs"), [(True, []), (False, ["812"])])
def test_of_processes_that_have_ended_the_next_ones_may_do_anything(
    ended: bool, hangs: list[str], *, gathered: bool
) -> None:
    """A script runs its next program: what its GPUs did in the first one's steps says nothing of it."""
    tape = tape_of(replace(HUNG, hang=(2400, 1e9), minutes=60))
    steps, dcgm = tape.rows
    at_s = (dcgm.times - START) / 1000
    between = ended & (at_s >= 2400) & (at_s < 2460)
    values = dict(dcgm.values) | {"DCGM_FI_DEV_FB_USED": np.where(between, 4.0, 61_000.0)}
    rows = [*([steps] if gathered else []), replace(dcgm, values=values)]
    assert [str(one.entity["job_id"]) for one in run(replace(tape, rows=rows)) if one.state == "firing"] == hangs


def test_a_job_that_waited_for_its_data_for_twenty_minutes_did_not_pause() -> None:
    """Its GPUs were busy for two thirds of the time."""
    tape = tape_of(replace(HUNG, nodes=2, gathered=False, hang=(3000, 1e9), minutes=60))
    (dcgm,) = tape.rows
    at_s = (dcgm.times - START) / 1000
    waits = (at_s >= 900) & (at_s < 2100)
    values = dict(dcgm.values) | {
        "DCGM_FI_DEV_POWER_USAGE": np.where(waits, 0.59, 1.0) * dcgm.values["DCGM_FI_DEV_POWER_USAGE"],
        "DCGM_FI_DEV_GPU_UTIL": np.where(waits, 66.0, dcgm.values["DCGM_FI_DEV_GPU_UTIL"]),
    }
    assert fired_after_s(replace(tape, rows=[replace(dcgm, values=values)]), 3000) <= 320
