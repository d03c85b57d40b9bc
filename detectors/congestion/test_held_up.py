"""congestion where jobs report steps: who is held up by little, and who works on as before, held up by nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.congestion.detector import Congestion
from detectors.congestion.examples import (
    DROPPED,
    MARKED,
    PORT,
    RX,
    SCENE,
    TX,
    WAITS,
    infiniband,
)
from detectors.congestion.test_detector import entities, run
from detectors.fleet.fleet import Job, JobEvent
from detectors.laws import deterministic_however_handled, whole
from detectors.spec import configure
from detectors.tapes.cluster import START, changed, growing, seconds, tape_of, without
from detectors.tapes.tape import Handling


def longer(rows: Any, values: Any) -> Any:
    return values * np.where((seconds(rows) >= 420) & (seconds(rows) < 1620), 1.09, 1.0)


def test_pauses_far_from_the_bar_are_a_congestion_where_they_hold_up_the_jobs_steps() -> None:
    scene = replace(SCENE, minutes=34, kinds=("switch", "nic", "steps"))
    mild = growing(tape_of(scene), "switch", RX, 500, 420, 1620, **PORT)
    assert entities(mild) == []
    fired, resolved = run(changed(mild, "steps", "step_time_s", longer))
    assert dict(fired.entity) == PORT
    assert "the steps of job 812 take 9 % longer than before" in fired.summary
    assert float(fired.evidence["step_time_s"]) == pytest.approx(5.45, rel=0.01)
    assert (fired.detected_at - START) / 1000 - 420 <= 200
    assert 1620 < (resolved.detected_at - START) / 1000 <= 1620 + 300
    # Steps that are longer for another reason make no congestion of what every port does.
    assert entities(changed(tape_of(scene), "steps", "step_time_s", longer)) == []

    def much_longer(rows: Any, values: Any) -> Any:
        return values * np.where((seconds(rows) >= 1200) & (seconds(rows) < 1500), 1.8, 1.0)

    # Nor do such pauses explain that steps take nearly twice as long.
    assert entities(changed(mild, "steps", "step_time_s", much_longer)) == []


def test_marks_of_one_port_are_a_congestion_where_they_hold_up_the_jobs_steps() -> None:
    scene = replace(SCENE, minutes=34, kinds=("switch", "nic", "steps"))
    alone = growing(tape_of(scene), "switch", MARKED, 3000, 420, 1620, **PORT)
    marks = growing(alone, "switch", RX, 60, 420, 1620, **PORT)
    assert entities(marks) == entities(changed(alone, "steps", "step_time_s", longer)) == []
    fired, _ = run(changed(marks, "steps", "step_time_s", longer))
    assert (dict(fired.entity), (fired.detected_at - START) / 1000 - 420 <= 200) == (PORT, True)
    everywhere = growing(growing(tape_of(scene), "switch", MARKED, 3000, 420, 1620), "switch", RX, 60, 420, 1620)
    assert entities(changed(everywhere, "steps", "step_time_s", longer)) == []


@pytest.mark.parametrize("longer_by", [0.0, 0.025])
def test_one_port_that_pauses_is_a_congestion_where_the_steps_there_are_longer_and_not_where_they_are_as_before(
    longer_by: float,
) -> None:
    def longer(rows: Any, values: Any) -> Any:
        return values * np.where((seconds(rows) >= 1200) & (seconds(rows) < 1500), 1 + longer_by, 1.0)

    scene = replace(SCENE, minutes=32, kinds=("switch", "nic", "steps"))
    tape = changed(growing(tape_of(scene), "switch", RX, 20_000, 1200, 1500, **PORT), "steps", "step_time_s", longer)
    found = entities(tape)
    assert found == ([PORT] if longer_by else [])
    uplink: dict[str, Any] = {"switch": "leaf-1", "port": "Ethernet101"}
    waiting = growing(infiniband(tape_of(scene)), "switch", WAITS, 2e7, 1200, 1500, **uplink)
    assert entities(changed(waiting, "steps", "step_time_s", longer)) == ([uplink] if longer_by else [])
    dropping = growing(tape, "switch", DROPPED, 40, 1200, 1500, **PORT)
    assert entities(dropping) == [PORT], "so many packets are lost, whatever the steps say"
    some = growing(tape, "switch", DROPPED, 5, 1200, 1500, **PORT)
    assert entities(some) == ([PORT] if longer_by else [])


@pytest.mark.parametrize(("since_s", "found"), [(960, []), (1180, [PORT])])
def test_steps_that_were_longer_long_before_are_no_effect_of_a_congestion(since_s: int, found: list[Any]) -> None:
    def longer(rows: Any, values: Any) -> Any:
        return values * np.where((seconds(rows) >= since_s) & (seconds(rows) < 1500), 1.15, 1.0)

    scene = replace(SCENE, minutes=32, kinds=("switch", "nic", "steps"))
    tape = growing(tape_of(scene), "switch", RX, 20_000, 1200, 1320, **PORT)
    assert entities(changed(tape, "steps", "step_time_s", longer)) == found


def test_steps_that_vary_by_a_tenth_are_as_before_as_far_as_that_shows() -> None:
    """As those of trainers that wait for rollouts: of two minutes the middle is not that of the eight before."""
    varies = np.random.default_rng(5).normal(1.0, 0.1, 80)

    def uneven(rows: Any, values: Any) -> Any:
        return values * varies[(seconds(rows) // 30).astype(int)]

    def longer(rows: Any, values: Any) -> Any:
        return values * np.where((seconds(rows) >= 1200) & (seconds(rows) < 1500), 1.4, 1.0)

    scene = replace(SCENE, minutes=32, kinds=("switch", "nic", "steps"))
    tape = changed(growing(tape_of(scene), "switch", RX, 20_000, 1200, 1500, **PORT), "steps", "step_time_s", uneven)
    assert entities(tape) == []
    assert entities(changed(tape, "steps", "step_time_s", longer)) == [PORT]


def test_ports_that_pause_together_are_a_congestion_where_the_steps_there_are_longer() -> None:
    def held_up(rows: Any, values: Any) -> Any:
        return values * np.where((seconds(rows) >= 1200) & (seconds(rows) < 1500), 1.1, 1.0)

    scene = replace(SCENE, minutes=32, kinds=("switch", "nic", "steps"))
    ports: dict[str, Any] = {"switch": "leaf-1", "port": ["Ethernet2", "Ethernet3"]}
    tape = growing(tape_of(scene), "switch", TX, 1500, 1200, 1500, **ports)
    assert entities(tape) == []
    fired, _ = run(changed(tape, "steps", "step_time_s", held_up))
    assert fired.entity["switch"] == "leaf-1"
    assert fired.detected_at - START <= 1200_000 + Congestion.spec.latency_s * 1000


@pytest.mark.parametrize("age_s", [300, 1100])
def test_what_a_job_that_has_just_begun_waits_is_its_load_where_its_steps_will_show_what_it_loses(age_s: int) -> None:
    scene = replace(SCENE, minutes=32, spares=1, kinds=("switch", "nic", "steps"))
    tape = growing(tape_of(scene), "switch", TX, 6000, 1200, 1500, switch="leaf-1", port="Ethernet4")
    newer = Job("813", ("v005",), START + (1200 - age_s) * 1000, 1)
    tape = replace(tape, jobs=[*tape.jobs, JobEvent(newer.start, "start", newer)])
    assert entities(tape) == ([] if age_s < 600 else [{"switch": "leaf-1", "port": "Ethernet4"}])


def test_uplinks_that_all_wait_more_and_more_are_a_congestion_where_the_steps_grow_with_it() -> None:
    """A transfer that grows for ten minutes fills them; where the steps are as before that is the leaf's load."""
    scene = replace(SCENE, minutes=50, kinds=("switch", "nic", "steps"))
    tape = infiniband(tape_of(scene))
    for minute in range(10):  # each minute adds a tenth
        since_s = 1200 + 60 * minute
        tape = growing(tape, "switch", WAITS, 2e6, since_s, 2400, switch="leaf-1", port=["Ethernet100", "Ethernet101"])

    def held_up(rows: Any, values: Any) -> Any:
        grown = np.interp(seconds(rows), [1200, 1800, 2400, 2401], [1.0, 1.12, 1.12, 1.0])
        return values * grown

    assert entities(tape) == []
    fired, resolved = run(changed(tape, "steps", "step_time_s", held_up))
    assert (fired.entity["switch"], resolved.state) == ("leaf-1", "resolved")
    assert "longer than before" in fired.summary
    assert fired.detected_at - START <= 1800_000


def test_what_has_waited_for_long_and_held_up_nobody_is_not_why_steps_take_longer_later() -> None:
    scene = replace(SCENE, minutes=60, kinds=("switch", "nic", "steps"))
    always: dict[str, Any] = {"switch": "leaf-2", "port": "Ethernet101"}
    since: dict[str, Any] = {"switch": "leaf-1", "port": "Ethernet100"}
    tape = growing(infiniband(tape_of(scene)), "switch", WAITS, 2e7, 900, 3600, **always)
    assert [one.severity for one in run(tape)] == ["info"]
    tape = growing(tape, "switch", WAITS, 2e7, 2400, 3000, **since)

    def held_up(rows: Any, values: Any) -> Any:
        return values * np.where((seconds(rows) >= 2400) & (seconds(rows) < 3000), 1.1, 1.0)

    found = run(changed(tape, "steps", "step_time_s", held_up))
    assert [dict(one.entity) for one in found if (one.state, one.severity) == ("firing", "ticket")] == [since]


def test_one_port_that_pauses_is_a_congestion_where_the_job_there_stands() -> None:
    scene = replace(SCENE, minutes=32, kinds=("switch", "nic", "steps"))
    tape = growing(tape_of(scene), "switch", RX, 20_000, 1200, 1500, **PORT)
    stopped = without(tape, "steps", 1220, 1920)
    assert (entities(tape), entities(stopped)) == ([], [PORT])


def test_what_is_left_of_a_congestion_is_a_quarter_of_it_and_not_any_pause_nearby() -> None:
    def slower(rows: Any, values: Any) -> Any:
        return values * np.where((seconds(rows) >= 300) & (seconds(rows) < 840), 1.09, 1.0)

    scene = replace(SCENE, minutes=30, kinds=("switch", "nic", "steps"))
    tape = changed(growing(tape_of(scene), "switch", RX, 20_000, 420, 840, **PORT), "steps", "step_time_s", slower)
    beside = {"switch": "leaf-1", "port": "Ethernet3"}
    fired, resolved = run(growing(tape, "switch", RX, 500, 840, 1800, **beside))
    assert (dict(fired.entity), resolved.state) == (PORT, "resolved")
    assert (resolved.detected_at - START) / 1000 <= 840 + 300


def test_steps_of_no_time_say_nothing_of_what_a_job_loses() -> None:
    scene = replace(SCENE, minutes=14, gpus=2, kinds=("switch", "steps"))
    tape = growing(tape_of(scene), "switch", RX, 500, 420, 840, **PORT)
    unread = changed(tape, "steps", "step_time_s", lambda _, values: np.full_like(values, np.nan))
    zero = changed(tape, "steps", "step_time_s", lambda _, values: np.where(np.arange(len(values)) % 2, 0.0, 1e-9))
    assert run(zero) == run(unread)


@pytest.mark.parametrize("seed", range(3))
def test_what_jobs_lose_is_the_same_however_their_steps_are_cut_and_carried_over(seed: int) -> None:
    scene = replace(SCENE, minutes=14, gpus=2, kinds=("switch", "steps"))
    tape = changed(growing(tape_of(scene), "switch", RX, 500, 420, 840, **PORT), "steps", "step_time_s", longer)
    # Ranks that are ahead of others by a little: which of them comes first says nothing.
    tape = changed(tape, "steps", "step_time_s", lambda rows, v: v * (1 + 0.002 * rows.keys["rank"].codes))
    choice = (Congestion, configure(Congestion.config_type, Congestion.spec, {}))
    cuts = sorted(np.random.default_rng(seed).integers(tape.start, tape.end, 12).tolist())
    assert [dict(found.entity) for found in whole(choice, tape)] == [PORT]
    deterministic_however_handled(choice, tape, Handling(cuts=cuts, seed=seed, carried=seed > 0))


@pytest.mark.parametrize(("drops", "found"), [(0, []), (3, [PORT])])
def test_steps_that_vary_too_much_to_show_it_are_no_excuse_where_packets_are_lost(drops: int, found: list[Any]) -> None:
    varies = np.random.default_rng(5).normal(1.0, 0.1, 80)

    def uneven(rows: Any, values: Any) -> Any:
        return values * varies[(seconds(rows) // 30).astype(int)]

    scene = replace(SCENE, minutes=32, kinds=("switch", "nic", "steps"))
    tape = growing(tape_of(scene), "switch", RX, 20_000, 1200, 1500, **PORT)
    tape = growing(tape, "switch", DROPPED, drops, 1200, 1500, **PORT)
    assert entities(changed(tape, "steps", "step_time_s", uneven)) == found
    assert entities(tape) == [], "steps that vary little show that nobody is held up"
