"""power_throttle on what clusters do: braked in many ways, and healthy in ways that look braked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, LogRecord
from detectors.engine.rows import Rows
from detectors.engine.state import pack, unpack
from detectors.power_throttle.detector import PowerThrottle
from detectors.power_throttle.examples import Brake, Scene, tape_of
from detectors.registry import choose
from detectors.signals.bmc_alarms import alarm_line
from detectors.signals.throttle_bits import (
    CLOCKS_SETTING,
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    POWER_BRAKE_NS,
    POWER_CAP_NS,
)
from detectors.tapes.gpus import START, changed, name
from detectors.tapes.tape import Handling, Tape, play, take

BRAKED = Scene(brakes=[Brake(2, 200, 320)])
UNSTATED = replace(BRAKED, supply_lines=False)
CLOCK, POWER = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"
REASONS = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
TEMP = "DCGM_FI_DEV_GPU_TEMP"
VIOLATION = "DCGM_FI_DEV_POWER_VIOLATION"


def run(tape: Tape) -> list[Finding]:
    choices = [c for c in choose() if c[0] is PowerThrottle]
    return play(tape, choices)[0]


def firing(tape: Tape) -> list[Finding]:
    return [finding for finding in run(tape) if finding.state == "firing"]


def lowered(tape: Tape, node: str, since_s: float, left: float, *, is_set: bool = False) -> Tape:
    """Return the tape with so much `left` of a node's power and clock: capped, so that all its GPUs draw as much, each
    at the clock that its chip reaches with it; or at a clock that was set, at which each draws its own.
    """

    def change(same: bool) -> Any:
        def of_chip(at: Any, nodes: Any, gpu: Any, values: Any) -> Any:
            lower = (
                left * np.median(values[nodes == node]) * (1.0 if same else 1 + 0.02 * (gpu.astype(int) - 3.5) / 3.5)
            )
            return np.where((nodes == node) & (at >= since_s), lower, values)

        return of_chip

    return changed(changed(tape, "DCGM_FI_DEV_POWER_USAGE", change(not is_set)), "DCGM_FI_DEV_SM_CLOCK", change(is_set))


def test_one_finding_on_the_node_with_its_evidence_and_its_end() -> None:
    found = run(tape_of(replace(BRAKED, missing=0.0)))
    assert [(finding.state, dict(finding.entity)) for finding in found] == [
        ("firing", {"node": name(2)}),
        ("resolved", {"node": name(2)}),
    ]
    fired, resolved = found
    assert fired.id == resolved.id
    assert fired.started_at == START + 198_500, "the line of the supply is the onset"
    assert fired.detected_at <= START + 210_000
    assert START + 320_000 < resolved.detected_at <= START + 380_000, "with the next reading of the supply's sensor"
    evidence = fired.evidence
    assert evidence["gpus_braked"] == evidence["gpus_busy"] == 8
    assert evidence["throttle_reasons"] == "0x88"
    assert float(evidence["power_w"]) == pytest.approx(150)
    assert float(evidence["power_before_w"]) > 330
    assert float(evidence["sm_clock_mhz"]) < 0.4 * float(evidence["sm_clock_peers_mhz"])
    assert float(evidence["work_rate"]) < 0.4
    assert float(evidence["power_violation_fraction"]) > 0.9 > float(evidence["power_violation_fraction_peers"])
    assert evidence["supply_alarm"] == "Power Supply #0x51 | Failure detected | Asserted"
    assert (evidence["job_id"], evidence["peers"], evidence["feed_nodes_braked"]) == ("812", 24, 1)
    assert fired.score == 1.0


def test_without_the_bmc_two_readings_must_agree() -> None:
    (fired,) = firing(tape_of(UNSTATED))
    assert fired.entity == {"node": name(2)}
    assert 195_000 <= fired.started_at - START <= 205_000
    assert fired.detected_at - START <= 215_000
    assert fired.score == 0.8


def test_one_reading_a_minute_apart_suffices_where_the_counter_says_that_it_was_no_blip() -> None:
    scene = replace(UNSTATED, minutes=20, interval_s=60.0, brakes=[Brake(1, 605, 665, gpus=[6])])
    (fired,) = firing(tape_of(scene))
    assert fired.entity == {"node": name(1), "gpu": 6}
    assert fired.detected_at - START <= 670_000
    uncounted = [field for field in Scene.fields if field != VIOLATION]
    assert firing(tape_of(replace(scene, fields=uncounted))) == []


def test_one_gpu_is_named_alone() -> None:
    (fired,) = firing(tape_of(replace(UNSTATED, brakes=[Brake(1, 200, 300, gpus=[6])])))
    assert fired.entity == {"node": name(1), "gpu": 6}


def test_gpus_that_follow_one_by_one_become_a_finding_on_the_node() -> None:
    brakes = [Brake(1, 200, 400, gpus=[0]), Brake(1, 260, 400, gpus=[1, 2, 3, 4, 5, 6, 7])]
    found = run(tape_of(replace(UNSTATED, brakes=brakes)))
    gpu, node = {"node": name(1), "gpu": 0}, {"node": name(1)}
    changes = [(finding.state, dict(finding.entity)) for finding in found]
    assert changes == [("firing", gpu), ("resolved", gpu), ("firing", node), ("resolved", node)]


def test_nodes_of_one_feed_are_one_finding_each_and_say_so() -> None:
    found = firing(tape_of(replace(UNSTATED, brakes=[Brake(2, 200, 300), Brake(3, 200, 300)])))
    assert [dict(finding.entity) for finding in found] == [{"node": name(2)}, {"node": name(3)}]
    assert all(finding.evidence["feed_nodes_braked"] == finding.evidence["feed_nodes"] == 2 for finding in found)


@pytest.mark.parametrize("unit_ns", [1.0, 1000.0])
def test_the_counters_alone_suffice_in_either_unit(unit_ns: float) -> None:
    fields = [field for field in Scene.fields if field != REASONS]
    (fired,) = firing(tape_of(replace(UNSTATED, fields=fields, violation_unit_ns=unit_ns)))
    assert fired.entity == {"node": name(2)}
    assert float(fired.evidence["power_violation_fraction"]) > 0.5


def by_reason(scene: Scene, **shares: float) -> Tape:
    """Return a scene without reasons, whose counter of throttled time is that of the reasons in its place."""
    tape = tape_of(replace(scene, fields=[field for field in Scene.fields if field != REASONS]))
    dcgm = tape.rows[0]
    values, valid = dict(dcgm.values), dict(dcgm.valid)
    counted, there = values.pop(VIOLATION), valid.pop(VIOLATION)
    for reason, share in shares.items():
        values[reason], valid[reason] = share * counted, there
    return replace(tape, rows=[Rows("dcgm", dcgm.times, dcgm.keys, values, valid), *tape.rows[1:]])


@pytest.mark.parametrize(
    "shares", [{POWER_BRAKE_NS: 1.0}, {POWER_CAP_NS: 1.0}, {POWER_BRAKE_NS: 0.9, POWER_CAP_NS: 0.1}]
)
def test_a_counter_of_one_reason_suffices_where_that_of_all_is_not_there(shares: dict[str, float]) -> None:
    (fired,) = firing(by_reason(UNSTATED, **shares))
    assert fired.entity == {"node": name(2)}
    assert fired.detected_at - START <= 215_000
    assert float(fired.evidence["power_violation_fraction"]) > 0.5
    assert fired.score == 0.8, "the driver says so"


def test_one_gpu_is_named_by_the_brakes_own_counter_and_not_by_that_of_a_cap() -> None:
    alone = replace(UNSTATED, brakes=[Brake(2, 200, 320, gpus=[5])])
    (fired,) = firing(by_reason(alone, **{POWER_BRAKE_NS: 1.0}))
    assert dict(fired.entity) == {"node": name(2), "gpu": 5}
    assert firing(by_reason(alone, **{POWER_BRAKE_NS: 0.0, POWER_CAP_NS: 1.0})) == [], "a cap by software is no brake"


def test_the_state_of_a_version_without_counters_by_reason_is_gone_on_with() -> None:
    config = next(config for kind, config in choose() if kind is PowerThrottle)
    _, engine = play(tape_of(UNSTATED).until(START + 250_000), [(PowerThrottle, config)])
    document, arrays = unpack(engine._detectors[0].snapshot())
    older = {key: kept for key, kept in arrays.items() if not key.startswith("by_reason_") and key != "gpu_counted_of"}
    assert len(older) == len(arrays) - 5
    _, now = unpack(PowerThrottle.restore(config, engine._fleet, pack(document, older)).snapshot())
    assert {key: kept.shape for key, kept in now.items()} == {key: kept.shape for key, kept in arrays.items()}


@pytest.mark.parametrize(
    "scene",
    [
        replace(UNSTATED, missing=0.3),
        replace(UNSTATED, fields=[field for field in Scene.fields if field != VIOLATION]),
        replace(UNSTATED, fields=[field for field in Scene.fields if field != "DCGM_FI_DEV_GPU_UTIL"]),
        replace(UNSTATED, models=("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")),
        replace(UNSTATED, job_known=False),
        replace(UNSTATED, topology_known=False),
        replace(UNSTATED, interval_s=1.0, minutes=6),
        replace(UNSTATED, interval_s=15.0),
        replace(UNSTATED, brakes=[Brake(2, 0, 200)]),
    ],
    ids=["missing scrapes", "no counter", "no utilisation", "two models", "no job", "no topology", "every second",
         "every 15 s", "braked from the first reading"],
)  # fmt: skip
def test_the_node_is_named_with_less_to_go_on(scene: Scene) -> None:
    assert [dict(finding.entity) for finding in firing(tape_of(scene))] == [{"node": name(2)}]


def test_a_counter_that_is_reset_raises_nothing_and_hides_nothing() -> None:
    fields = [field for field in Scene.fields if field != REASONS]

    def reset(seconds: Any, node: Any, gpu: Any, values: Any) -> Any:
        return np.where(seconds > 150, values - values[seconds > 150].min(), values)

    found = firing(changed(tape_of(replace(UNSTATED, fields=fields)), VIOLATION, reset))
    assert [dict(finding.entity) for finding in found] == [{"node": name(2)}]


DEFAULT = replace(BRAKED, fields=[field for field in Scene.fields if field not in (REASONS, VIOLATION)])
"""What dcgm-exporter sends of it by default."""


def test_a_dip_of_twenty_seconds_is_nothing() -> None:
    assert firing(tape_of(replace(DEFAULT, brakes=[Brake(2, 300, 322)], supply_lines=False))) == []


def test_a_brake_that_flutters_is_one_finding() -> None:
    brakes = [Brake(2, begin, begin + 120) for begin in (200, 520, 840)]
    tape = tape_of(replace(DEFAULT, brakes=brakes, minutes=22))
    tape = replace(tape, logs=[line for line in tape.logs if line.message.endswith("| Asserted")])
    assert [finding.state for finding in run(tape) if finding.severity == "page"] == ["firing", "resolved"]


@pytest.mark.parametrize("every_s", [180, 600, 1500])
def test_a_brake_that_is_back_within_the_hour_is_one_finding_from_then_on(every_s: int) -> None:
    brakes = [Brake(2, at, at + 60) for at in range(200, 200 + 4 * every_s, every_s)]
    found = run(tape_of(replace(UNSTATED, brakes=brakes, minutes=(brakes[-1].until_s + 2000) / 60)))
    assert [finding.state for finding in found] == ["firing", "resolved"] * 2
    last = brakes[-1].until_s
    assert last + 1800 <= (found[-1].detected_at - START) / 1000 <= last + 1830


def test_a_brake_of_36_hours_is_one_finding_until_its_end() -> None:
    day_and_a_half = 36 * 3600
    brakes = [Brake(1, 900, 900 + day_and_a_half)]
    tape = tape_of(Scene(nodes=2, minutes=36.5 * 60, interval_s=300, brakes=brakes, missing=0))
    choices = [c for c in choose({}) if c[0] is PowerThrottle]
    found, _ = play(tape, choices, Handling(grid_ms=300_000))
    assert [one.state for one in found] == ["firing", "resolved"]
    assert (found[1].detected_at - START) / 1000 == pytest.approx(900 + day_and_a_half, abs=1200)


def cut(tape: Tape, share: float, since: float = 300.0, *, whom: str = "") -> Tape:
    """Return the tape with clock and power cut on all nodes, or on one, from a time on."""

    def less(at: Any, node: Any, gpu: Any, values: Any) -> Any:
        return np.where((at >= since) & ((node == whom) | (not whom)), share * values, values)

    return changed(changed(tape, CLOCK, less), POWER, less)


def test_clocks_and_power_that_fall_on_all_of_a_job_are_its_work() -> None:
    assert firing(cut(tape_of(replace(DEFAULT, brakes=[])), 0.5)) == []


def test_a_little_less_on_one_gpu_is_no_brake() -> None:
    assert firing(cut(tape_of(replace(DEFAULT, brakes=[])), 0.85, whom=name(1))) == []


def test_a_gpu_that_works_less_than_before_is_not_held_down() -> None:
    scene = replace(DEFAULT, brakes=[Brake(2, 300, 500)], supply_lines=False)
    waits = changed(
        tape_of(scene),
        "DCGM_FI_DEV_GPU_UTIL",
        lambda at, node, gpu, util: np.where((node == name(2)) & (at >= 300), 40.0, util),
    )
    assert firing(waits) == []


def test_clocks_that_the_user_sets_are_not_a_brake() -> None:
    scene = replace(DEFAULT, fields=[*DEFAULT.fields, REASONS], brakes=[Brake(2, 300, 500)], supply_lines=False)
    chosen = changed(tape_of(scene), REASONS, lambda at, node, gpu, bits: np.where(bits > 4, CLOCKS_SETTING, bits))
    assert firing(chosen) == []


def test_a_node_alone_is_judged_by_its_limit() -> None:
    (fired,) = firing(tape_of(Scene(nodes=1, brakes=[Brake(0, 0, 120)], supply_lines=False)))
    assert fired.entity == {"node": name(0)}


def healthy(**changes: Any) -> Tape:
    return tape_of(Scene(**changes))


@pytest.mark.parametrize(
    ("bits", "left", "degrees", "found"),
    [
        (HW_SLOWDOWN, 0.36, 50, [{"node": name(2), "gpu": 5}]),
        (HW_SLOWDOWN, 0.8, 50, []),
        (HW_SLOWDOWN, 0.36, 84, []),
        (HW_SLOWDOWN | HW_THERMAL, 0.36, 50, []),
    ],
    ids=["halved", "by less than half", "at its limit", "heat is stated"],
)
def test_a_hardware_slowdown_that_no_heat_explains_is_for_power(
    bits: int, left: float, degrees: float, found: list[dict[str, Any]]
) -> None:
    """The card's own draw trips it (DCGM: fast trigger), and then it has no other bit, and no counter."""
    fields = [field for field in Scene.fields if field != VIOLATION]
    tape = tape_of(replace(UNSTATED, fields=fields, brakes=[Brake(2, 200, 320, gpus=[5])]))

    def here(at: Any, node: Any, gpu: Any) -> Any:
        return (node == name(2)) & (gpu == 5) & (at >= 200) & (at < 320)

    for field, value in ((REASONS, bits), (CLOCK, left * 1410), (TEMP, degrees)):
        tape = changed(
            tape, field, lambda *of, value=value: np.where(here(*of[:3]), value, 50.0 if of[3] is None else of[3])
        )
    fired = firing(tape)
    assert [dict(one.entity) for one in fired] == found
    assert all("hardware slowdown, without heat" in one.summary for one in fired)


def test_a_blip_of_one_reading_is_nothing() -> None:
    assert firing(tape_of(replace(UNSTATED, brakes=[Brake(2, 200, 204)], missing=0))) == []


def test_the_bit_alone_with_clocks_and_power_as_they_were_is_nothing() -> None:
    def stuck(seconds: Any, node: Any, gpu: Any, values: Any) -> Any:
        return np.where(node == name(1), HW_POWER_BRAKE, values)

    assert firing(changed(healthy(), REASONS, stuck)) == []


def test_idle_gpus_are_not_looked_at_whatever_their_bits_say() -> None:
    def set_while_idle(seconds: Any, node: Any, gpu: Any, values: Any) -> Any:
        return np.where((seconds >= 120) & (seconds < 200), 0x89, values)

    assert firing(changed(healthy(pauses=[(120, 200)]), REASONS, set_while_idle)) == []


def test_a_supply_that_fails_without_any_brake_is_not_a_throttle() -> None:
    line = LogRecord(START + 200_000, "sel", "Power Supply #0x51 | Failure detected | Asserted", "critical", name(1))
    (note,) = firing(replace(healthy(), logs=[line]))
    assert (note.severity, dict(note.entity)) == ("info", {"node": name(1)})
    assert note.evidence["supply_alarm"] == line.message


def test_a_brake_at_a_checkpoint_is_one_finding_over_the_pause() -> None:
    found = run(tape_of(replace(BRAKED, pauses=[(240, 255)])))
    assert [finding.state for finding in found] == ["firing", "resolved"]


@pytest.mark.parametrize("interval_s", [5.0, 15.0, 30.0, 60.0])
def test_a_brake_is_over_within_five_minutes_at_any_cadence(interval_s: float) -> None:
    scene = Scene(minutes=32, brakes=[Brake(2, 900, 1400)], interval_s=interval_s)
    fired, resolved = run(tape_of(scene))
    assert (fired.state, resolved.state) == ("firing", "resolved")
    assert fired.detected_at - START <= (900 + 2 * interval_s + 5) * 1000
    assert 0 <= resolved.detected_at - START - 1_400_000 <= 300_000


def test_a_node_that_falls_silent_stays_open() -> None:
    tape = tape_of(replace(BRAKED, brakes=[Brake(2, 200, 9999)]))
    dcgm = tape.rows[0]
    heard = np.flatnonzero((dcgm.keys["node"].codes != 2) | (dcgm.times < START + 230_000))
    found = run(replace(tape, rows=[take(dcgm, heard), *tape.rows[1:]]))
    assert [finding.state for finding in found] == ["firing"]


@pytest.mark.parametrize(
    ("message", "failed"),
    [
        ("1 | 04/01/2024 | 09:29:59 | Power Supply #0x51 | Failure detected | Asserted", True),
        ("2 | 04/01/2024 | 09:29:59 | Power Unit #0x01 | Redundancy Lost | Asserted", True),
        ("Power Supply #0x52 | Power Supply AC lost | Asserted", True),
        ("PSU1 input out-of-range", True),
        ("Power Supply #0x51 | Failure detected | Deasserted", False),
        ("Power Unit #0x01 | Fully Redundant | Asserted", False),
        ("Power Supply #0x51 | Presence detected | Asserted", False),
        ("Memory #0x87 | Correctable ECC | Asserted", False),
        ("Fan #0x30 | Lower Critical going low | Asserted", False),
    ],
)
def test_lines_of_the_event_log(message: str, failed: bool) -> None:
    line = alarm_line(LogRecord(START, "sel", message, node="v001"))
    assert (line is not None and line[0] == "supply" and not line[2]) is failed


def test_a_clock_that_falls_without_a_reason_is_not_held_by_what_the_cap_counted_before() -> None:
    """A GPU droops by a seventh as the cap lets go of it: its counter of throttled time stands still from then on."""
    tape = tape_of(Scene(minutes=6, missing=0.0))

    def slow(seconds: Any, node: Any, gpu: Any) -> Any:
        return (node == name(1)) & (gpu == 3) & (seconds >= 200)

    def stands(seconds: Any, node: Any, gpu: Any, counted: Any) -> Any:
        before = ~slow(seconds, node, gpu) & (node == name(1)) & (gpu == 3)
        return np.where(slow(seconds, node, gpu), counted[before].max(), counted)

    tape = changed(tape, VIOLATION, stands)
    for field, value in ((CLOCK, 1210.0), (POWER, 310.0), (REASONS, 0.0)):
        tape = changed(tape, field, lambda *of, at=value: np.where(slow(*of[:3]), at, of[3]))
    assert firing(tape) == []
