"""Worlds: one draw of what clusters differ in, and what it does to a recording."""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detectors.exporters import exporters
from services.recording.validate import validate_recording
from services.synth.cluster.habits import habits
from services.synth.cluster.worlds import PLAIN, draw, fields_of, quantities
from services.synth.conftest import NODES, Telemetry, Write
from services.synth.faults.node_reboot import NodeReboot
from services.synth.faults.user_crash import UserCrash
from services.synth.jobs.background_jobs import jobs_of
from services.synth.library import LIBRARY
from services.synth.make import Variant, fingerprint, make_recording, scenario_and_world
from services.synth.telemetry.outages import IN_BAND, outages_of
from services.synth.test_make import contents

SEVERAL = range(1, 9)


def world_with(**wanted: Any) -> int:
    """Return the first world in which quantities (dots written as two underscores) have these values."""
    named = {name.replace("__", "."): value for name, value in wanted.items()}
    return next(
        number for number in count(1) if all(draw(number).values[name] == value for name, value in named.items())
    )


def test_a_world_is_one_draw_from_the_table() -> None:
    assert draw(17) == draw(17)
    assert draw(17).values != draw(18).values
    for name, how in quantities().items():
        assert how["unit"], name
        assert how["source"], name
        drawn = [draw(number).values[name] for number in range(1, 60)]
        assert len(set(drawn)) > 1, name
        if "between" in how:
            low, high = how["between"]
            assert all(isinstance(value, float) and low * 0.999 <= value <= high * 1.001 for value in drawn), name


def test_in_no_world_nothing_is_changed(write: Write) -> None:
    _, world = scenario_and_world(write())
    assert world.profile.conditions is PLAIN
    assert not outages_of(world, 1).by_stream
    assert fields_of(PLAIN) is None
    for name, value in PLAIN.values.items():
        if name.endswith(("sigma", "spread")):
            assert (PLAIN.factors(name, 5) == 1.0).all(), value


def test_the_same_world_gives_the_same_bytes_and_another_gives_others(write: Write, tmp_path: Path) -> None:
    scenario = write()
    made = [
        contents(make_recording(scenario, tmp_path / str(place) / "tiny-brake", Variant(world=world)))
        for place, world in enumerate((3, 3, 4))
    ]
    assert made[0] == made[1]
    assert made[0]["dcgm.parquet"] != made[2]["dcgm.parquet"]
    assert len({fingerprint(scenario, Variant(world=world)) for world in (None, 3, 4)}) == 3
    assert Variant(world=3).suffix == "-world-3"


@pytest.mark.parametrize("world", SEVERAL)
def test_a_recording_of_any_world_is_valid_and_says_which_it_is(write: Write, tmp_path: Path, world: int) -> None:
    made = make_recording(write(), tmp_path / "out" / "tiny-brake", Variant(world=world))
    assert validate_recording(made) == []
    seen = Telemetry(made)
    assert (seen.recording.manifest.model_extra or {})["world"] == draw(world).document()
    assert seen.recording.manifest.streams["dcgm"].interval_s == draw(world).values["cadence.dcgm_s"]
    required = [label for label in seen.recording.labels() if not label.distractor]
    assert [label.fault for label in required] == ["power_throttle"]
    assert not required[0].optional
    assert required[0].within_s >= 6 * draw(world).number("cadence.dcgm_s")


def test_what_is_not_gathered_is_not_there(write: Write, tmp_path: Path) -> None:
    world = world_with(fields="default", steps="job", jobs=False, bmc=False, logs__scheduler=False)
    seen = Telemetry(make_recording(write(), tmp_path / "out" / "tiny-brake", Variant(world=world)))
    fields = fields_of(draw(world))
    assert fields is not None
    whole = Telemetry(make_recording(write(), tmp_path / "whole" / "tiny-brake"))
    there = set(whole.table("dcgm").column_names) & (fields | {"timestamp", "node", "gpu"})
    assert set(seen.table("dcgm").column_names) == there
    assert len(there) == 20 + 3
    assert fields == exporters().dcgm_default
    assert "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" not in fields
    assert (seen.column("steps", "rank") == -1).all()
    assert "bmc" not in seen.recording.streams()
    assert not (seen.recording.path / "jobs.jsonl").exists()
    sources = {event.source for event in seen.recording.events()}
    assert "scheduler" not in sources
    without = {name for name in ("kernel", "sel", "fabricmanager", "job") if not draw(world).yes(f"logs.{name}")}
    assert not sources & without


def test_scrapes_are_lost_in_runs_as_they_were_drawn(write: Write, tmp_path: Path) -> None:
    world = next(
        number
        for number in count(1)
        if draw(number).number("collector.lost_runs_per_node_day") > 8 and draw(number).values["cadence.dcgm_s"] == 5
    )
    path = write({"duration": "+03:00:00", "happenings": []})
    scenario, placed = scenario_and_world(path, Variant(world=world))
    outages = outages_of(placed, scenario.seed)
    runs = [span for span in outages.by_stream["dcgm"] if span.entity is not None]
    assert runs
    seen = Telemetry(make_recording(path, tmp_path / "out" / "tiny-brake", Variant(world=world)))
    seconds, nodes = seen.seconds("dcgm"), np.array(seen.column("dcgm", "node"))
    for span in runs:
        assert 14 <= span.end - span.begin <= 60
        mine = seconds[nodes == placed.names[span.entity or 0]]
        assert not ((mine >= span.begin) & (mine < span.end)).any()
    arrived = len(seconds) / (NODES * placed.profile.node.gpus * scenario.duration / 5)
    away = sum(
        (min(span.end, scenario.duration) - span.begin) / (1 if span.entity is None else NODES)
        for span in outages.by_stream["dcgm"]
    )
    assert arrived == pytest.approx(1 - away / scenario.duration - draw(world).number("collector.lost_share"), abs=0.01)


@pytest.mark.parametrize("world", SEVERAL)
def test_nothing_that_is_no_fault_is_away_for_five_minutes(world: int) -> None:
    scenario, placed = scenario_and_world(
        LIBRARY / "sakuraone-fault-year" / "scenario.yaml", Variant(world=world, scale=0.2)
    )
    outages = outages_of(placed, scenario.seed)
    for stream in (*IN_BAND, "switch", "bmc"):
        longest, begun, ended = 0.0, dict[int | None, float](), dict[int | None, float]()
        for span in sorted(outages.by_stream[stream], key=lambda span: span.begin):
            if ended.get(span.entity, -np.inf) < span.begin - 10:
                begun[span.entity] = span.begin
            ended[span.entity] = max(span.end, ended.get(span.entity, 0.0))
            longest = max(longest, ended[span.entity] - begun[span.entity])
        assert longest <= 250


def labels_of_year(folder: Path, world: int) -> dict[str, Any]:
    variant = Variant(world=world, scale=0.1, duration_s=10_000)
    made = make_recording(LIBRARY / "sakuraone-fault-year" / "scenario.yaml", folder / "sakuraone-fault-year", variant)
    assert validate_recording(made) == []
    return {label.id: label for label in Telemetry(made).recording.labels()}


def test_what_nothing_reflects_is_not_required_and_stays_a_label(tmp_path: Path) -> None:
    poor = world_with(fields="default", logs__kernel=False, logs__fabricmanager=False)
    labels = labels_of_year(tmp_path, poor)
    # f08: its peers in a synchronous job move as little as it does, and no link state is in the default fields.
    unseen = {"f02": "nvlink_fault", "f03": "ecc_correctable_storm", "f08": "pcie_degraded"}
    for name, fault in unseen.items():
        assert labels[name].fault == fault
        assert labels[name].optional
        assert "no reading and no line" in labels[name].note
    assert not labels["f05"].optional, "a GPU that is lost is missed in any telemetry"


def test_where_all_is_gathered_all_is_required(tmp_path: Path) -> None:
    rich = world_with(fields="all", logs__kernel=True)
    required = [label for label in labels_of_year(tmp_path, rich).values() if not label.distractor]
    assert required
    assert not any(label.optional for label in required)


def test_what_else_goes_on_keeps_clear_of_the_story() -> None:
    path = LIBRARY / "blue-vela-failing-gpus" / "scenario.yaml"
    world = next(
        number
        for number in count(1)
        if draw(number).yes("work.beside")
        and draw(number).number("work.reboots_per_node_day") > 0.4
        and draw(number).number("work.crashes_per_node_day") > 1
    )
    plain, _ = scenario_and_world(path)
    scenario, placed = scenario_and_world(path, Variant(world=world))
    given, more = scenario.happenings[: len(plain.happenings)], scenario.happenings[len(plain.happenings) :]
    assert [one.kind for one in given] == [one.kind for one in plain.happenings]
    assert {one.kind for one in more} == {"node_reboot", "user_crash"}
    assert all(one.truth is None for one in more)
    story = {placed.node(one.node) for one in given if hasattr(one, "node")}
    story |= {node for spec in scenario.jobs for node in placed.nodes(spec.nodes)}
    reboots = {placed.node(one.node) for one in more if isinstance(one, NodeReboot)}
    crashes = {placed.node(one.node) for one in more if isinstance(one, UserCrash)}
    beside = {node for spec in jobs_of(scenario, placed, scenario.seed)[len(scenario.jobs) :] for node in spec.nodes}
    assert not story & (reboots | crashes | beside)
    assert beside
    assert not reboots & beside, "nobody's job is on a node that is rebooted on purpose"


def test_a_reboot_that_nothing_distinguishes_from_a_crash_may_be_reported(write: Write, tmp_path: Path) -> None:
    reboot = {"kind": "node_reboot", "node": "t04", "at": "+00:02:00", "until": "+00:06:00"}
    path = write({"jobs": [], "happenings": [reboot]})
    for logs, found in ((True, []), (False, ["node_down"])):
        world = world_with(logs__kernel=logs, logs__scheduler=logs)
        made = make_recording(path, tmp_path / str(logs) / "tiny-brake", Variant(world=world))
        labels = [label for label in Telemetry(made).recording.labels() if not label.distractor]
        assert [label.fault for label in labels] == found
        assert all(label.optional for label in labels)


def test_work_is_uneven_as_often_as_the_world_has_it(write: Write) -> None:
    """Between GPUs, or between nodes, for some minutes."""
    number = max(range(1, 40), key=lambda one: draw(one).number("work.uneven_per_h"))
    _, world = scenario_and_world(write({"duration": "+48:00:00"}), Variant(world=number))
    uneven = [effect for effect in habits(world, outages_of(world, 1), 1) if effect.quantity == "gpu.more_work"]
    times = {(effect.course.start, effect.course.end) for effect in uneven}
    assert len(times) == pytest.approx(48 * draw(number).number("work.uneven_per_h"), rel=0.3)
    assert all(120 <= end - start <= 901 for start, end in times)
    one = [effect for effect in uneven if effect.course.start == min(times)[0]]
    assert sorted(gpu for effect in one for gpu in effect.columns) == list(range(world.profile.gpu_count))
    assert 0.02 < np.std([np.log(effect.size) for effect in uneven]) < 0.2


def test_unused_ports_are_there_and_down(tmp_path: Path) -> None:
    path = LIBRARY / "sakuraone-pfc-storm" / "scenario.yaml"
    world = next(number for number in count(1) if draw(number).number("ports.spare_share") > 0.3)
    variant = Variant(world=world, scale=0.08, duration_s=1200)
    seen = Telemetry(make_recording(path, tmp_path / "out" / "sakuraone-pfc-storm", variant))
    _, placed = scenario_and_world(path, variant)
    ports = np.array(seen.column("switch", "switch")), np.array(seen.column("switch", "port"))
    wired = set(
        zip([placed.fabric.switches[s] for s in placed.fabric.port_switch], placed.fabric.port_names, strict=True)
    )
    unused = np.array([pair not in wired for pair in zip(*ports, strict=True)])
    assert 0.15 < len({pair for pair in zip(*ports, strict=True) if pair not in wired}) / len(wired) < 0.5
    assert (seen.column("switch", "oper_up")[unused] == 0).mean() > 0.9
    assert not seen.column("switch", "SAI_PORT_STAT_IF_IN_OCTETS")[unused].any()


def test_unused_ports_have_names_of_their_own_in_a_part_of_a_cluster(tmp_path: Path) -> None:
    path = LIBRARY / "blue-vela-healthy-day" / "scenario.yaml"
    world = next(number for number in count(1) if draw(number).number("ports.spare_share") > 0.3)
    variant = Variant(world=world, scale=0.3, profile=LIBRARY / "profiles" / "sierra.yaml", duration_s=600)
    seen = Telemetry(make_recording(path, tmp_path / "out" / "blue-vela-healthy-day", variant))
    rows = list(zip(*(seen.column("switch", name).tolist() for name in ("timestamp", "switch", "port")), strict=True))
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("after_s", [1.0, 3600.0])
def test_a_remap_whose_flag_is_not_gathered_is_part_of_the_error_that_it_comes_with(
    write: Write, tmp_path: Path, after_s: float
) -> None:
    kinds = {"double_bit_error": ("ecc_uncorrectable", 120.0), "row_remap": ("row_remap_pending", 120.0 + after_s)}
    happenings = [
        {"kind": kind, "node": "t02", "gpu": 1, "at": at, "until": 9000,
         "truth": {"id": fault, "fault": fault, "within_s": 60, "cause": "hbm"}}
        for kind, (fault, at) in kinds.items()
    ]  # fmt: skip
    path = write({"duration": "+02:30:00", "jobs": [], "happenings": happenings})
    for fields, part in (("default", after_s == 1.0), ("all", False)):
        world = world_with(fields=fields, logs__kernel=True)
        made = make_recording(path, tmp_path / fields / "tiny-brake", Variant(world=world))
        optional = {label.fault for label in Telemetry(made).recording.labels() if label.optional}
        assert optional == ({"row_remap_pending"} if part else set())
