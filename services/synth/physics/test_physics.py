"""Whether the made telemetry looks as an expert would expect it to."""

import numpy as np
import pytest

from detectors.signals.throttle_bits import GPU_IDLE, HW_POWER_BRAKE, HW_SLOWDOWN, SW_POWER_CAP
from services.synth.conftest import BRAKE_AT, BRAKE_UNTIL, BRAKED, CAP_W, GPUS, NODES, Telemetry
from services.synth.logs.schedulers import compress

POWER, CLOCK, REASONS = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
TENSOR, DRAM = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"
HEALTHY = (120.0, 195.0)  # after warm-up, before the first checkpoint
UNDER_BRAKE = (345.0, 445.0)


def steps(telemetry: Telemetry, field: str, begin: float, end: float, *, job: bool) -> np.ndarray:
    seconds, rank = telemetry.seconds("steps"), telemetry.column("steps", "rank")
    pick = (seconds >= begin) & (seconds < end) & ((rank == -1) == job)
    return np.asarray(telemetry.column("steps", field)[pick])


def test_idle_gpus_are_idle(brake: Telemetry) -> None:
    begin, end = 0.0, 30.0
    assert set(brake.dcgm(CLOCK, begin, end)) == {210}
    assert set(brake.dcgm(REASONS, begin, end)) == {GPU_IDLE}
    assert set(brake.dcgm("DCGM_FI_DEV_GPU_UTIL", begin, end)) == {0}
    assert 45 < brake.dcgm(POWER, begin, end).mean() < 75
    assert brake.dcgm("DCGM_FI_DEV_FB_USED", begin, end).max() < 100


def test_a_busy_gpu_runs_at_its_limit_and_not_above(brake: Telemetry) -> None:
    power, reasons = brake.dcgm(POWER, *HEALTHY), brake.dcgm(REASONS, *HEALTHY)
    assert 350 < np.median(power) <= 403
    assert power.max() < 405
    assert set(reasons) <= {0, SW_POWER_CAP}
    assert 0.1 < (reasons == SW_POWER_CAP).mean() < 0.9
    clock = brake.dcgm(CLOCK, *HEALTHY)
    assert clock.min() > 1200
    assert set(clock % 15) == {0}
    assert (clock[reasons == 0] == 1410).all()


def test_gpus_of_one_kind_differ(brake: Telemetry) -> None:
    temperatures = brake.dcgm("DCGM_FI_DEV_GPU_TEMP", 150, 190)
    assert 50 < temperatures.mean() < 75
    assert temperatures.max() - temperatures.min() >= 3


def test_the_brake_takes_power_and_clock_of_its_node_only(brake: Telemetry) -> None:
    braked = brake.dcgm(POWER, *UNDER_BRAKE, BRAKED)
    assert np.abs(braked - CAP_W).max() < 6
    assert 420 < brake.dcgm(CLOCK, *UNDER_BRAKE, BRAKED).mean() < 560
    assert set(brake.dcgm(REASONS, *UNDER_BRAKE, BRAKED)) == {HW_SLOWDOWN | HW_POWER_BRAKE}
    assert not np.any(brake.dcgm(REASONS, *UNDER_BRAKE, but=BRAKED).astype(int) & (HW_SLOWDOWN | HW_POWER_BRAKE))
    assert set(brake.dcgm(CLOCK, *UNDER_BRAKE, but=BRAKED)) == {1410}


def test_the_brake_comes_two_seconds_after_the_supply_fails_and_goes_after_its_return(brake: Telemetry) -> None:
    seconds, nodes = brake.seconds("dcgm"), np.array(brake.column("dcgm", "node"))
    bits = brake.column("dcgm", REASONS).astype(int) & HW_POWER_BRAKE
    when = seconds[(nodes == BRAKED) & (bits > 0)]
    assert BRAKE_AT + 2 <= when.min() < BRAKE_AT + 12
    assert BRAKE_UNTIL - 10 < when.max() < BRAKE_UNTIL + 12


def test_the_others_wait_busy_but_cool(brake: Telemetry) -> None:
    others = {name: brake.dcgm(name, *UNDER_BRAKE, but=BRAKED).mean() for name in (POWER, TENSOR, DRAM)}
    healthy = {name: brake.dcgm(name, *HEALTHY, but=BRAKED).mean() for name in (POWER, TENSOR, DRAM)}
    assert brake.dcgm("DCGM_FI_DEV_GPU_UTIL", *UNDER_BRAKE, but=BRAKED).min() >= 90
    assert CAP_W + 30 < others[POWER] < 0.7 * healthy[POWER]
    assert 0.25 < others[TENSOR] / healthy[TENSOR] < 0.45
    assert 0.25 < others[DRAM] / healthy[DRAM] < 0.55
    # The culprit's tensor pipe is busy almost every one of its few cycles: it shows by its clock, not by idleness.
    assert brake.dcgm(TENSOR, *UNDER_BRAKE, BRAKED).mean() > 2 * others[TENSOR]


def test_every_step_takes_almost_three_times_as_long(brake: Telemetry) -> None:
    healthy = np.median(steps(brake, "step_time_s", *HEALTHY, job=True))
    braked = np.median(steps(brake, "step_time_s", *UNDER_BRAKE, job=True))
    assert 4.8 < healthy < 5.4
    assert 2.5 < braked / healthy < 3.1
    after = np.median(steps(brake, "step_time_s", BRAKE_UNTIL + 60, 600, job=True))
    assert after == pytest.approx(healthy, rel=0.1)
    (label,) = [label for label in brake.recording.labels() if not label.distractor]
    assert label.impact is not None
    assert label.impact["step_time_factor"] == pytest.approx(braked / healthy, rel=0.03)
    assert label.impact["gpus"] == NODES * GPUS


def test_the_culprit_waits_least_and_computes_longest(brake: Telemetry) -> None:
    seconds, rank = brake.seconds("steps"), brake.column("steps", "rank")
    iteration = brake.column("steps", "iteration")
    wait, compute = brake.column("steps", "comm_wait_s"), brake.column("steps", "compute_s")
    culprits = set(range(GPUS, 2 * GPUS))
    for one in np.unique(iteration[(seconds > UNDER_BRAKE[0]) & (seconds < UNDER_BRAKE[1])]):
        pick = (iteration == one) & (rank >= 0)
        by_wait = rank[pick][np.argsort(wait[pick])]
        assert set(by_wait[:GPUS]) == culprits
        assert compute[pick][np.isin(rank[pick], list(culprits))].min() > 2 * np.median(compute[pick])


def test_parts_of_a_step_add_up(brake: Telemetry) -> None:
    parts = sum(brake.column("steps", name) for name in ("compute_s", "comm_wait_s", "data_wait_s"))
    assert np.abs(parts - brake.column("steps", "step_time_s")).max() < 0.001
    assert steps(brake, "comm_wait_s", 0, 600, job=False).min() > 0


def test_loss_is_the_jobs_alone(brake: Telemetry) -> None:
    loss = brake.table("steps")["loss"].to_pylist()
    rank = brake.column("steps", "rank")
    assert all((value is None) == (one >= 0) for value, one in zip(loss, rank, strict=True))


def test_half_of_a_temperature_follows_power_at_once_and_half_with_a_lag(brake: Telemetry) -> None:
    name = "DCGM_FI_DEV_GPU_TEMP"
    before = brake.dcgm(name, 280, 300, BRAKED).mean()
    soon = brake.dcgm(name, 303, 309, BRAKED).mean()
    late = brake.dcgm(name, 420, 450, BRAKED).mean()
    assert 0.45 < (before - soon) / (before - late) < 0.75
    assert before - late > 10


def test_counters_never_fall_and_agree_with_their_gauges(brake: Telemetry) -> None:
    seconds, nodes, gpus = brake.seconds("dcgm"), np.array(brake.column("dcgm", "node")), brake.column("dcgm", "gpu")
    for name in ("ENERGY", "VIOLATION"):
        field = {"ENERGY": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "VIOLATION": "DCGM_FI_DEV_POWER_VIOLATION"}[name]
        for node in set(nodes):
            pick = (nodes == node) & (gpus == 1)
            assert (np.diff(brake.column("dcgm", field)[pick]) >= 0).all()
    pick = (nodes == BRAKED) & (gpus == 0) & (seconds > UNDER_BRAKE[0]) & (seconds < UNDER_BRAKE[1])
    span = np.ptp(seconds[pick])
    watts = np.ptp(brake.column("dcgm", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[pick]) / 1000 / span
    throttled = np.ptp(brake.column("dcgm", "DCGM_FI_DEV_POWER_VIOLATION")[pick]) / 1e9 / span
    assert watts == pytest.approx(CAP_W, rel=0.06)
    assert throttled == pytest.approx(1.0, rel=0.06)


def test_the_bmc_reports_the_supply_and_no_other(brake: Telemetry) -> None:
    table, seconds = brake.table("bmc"), brake.seconds("bmc")
    nodes, sensors = (np.array(table[name].to_pylist()) for name in ("node", "sensor"))
    reading, state = brake.column("bmc", "reading"), brake.column("bmc", "state")
    down = (seconds >= BRAKE_AT) & (seconds < BRAKE_UNTIL)
    failed = (nodes == BRAKED) & (sensors == "psu1_status")
    assert set(state[failed & down]) == {2}
    assert set(state[failed & ~down]) == {0}
    assert set(reading[(nodes == BRAKED) & (sensors == "psu1_input_power") & down]) == {0}
    assert set(state[nodes != BRAKED]) == {0}
    power = (sensors == "node_power") & down
    assert reading[power & (nodes == BRAKED)].max() < reading[power & (nodes != BRAKED)].min()
    both = [reading[(nodes == BRAKED) & (sensors == f"psu{psu}_input_power") & ~down].mean() for psu in (1, 2)]
    assert both[0] == pytest.approx(both[1], rel=0.1)


def test_the_sel_speaks_within_two_seconds_and_in_order(brake: Telemetry) -> None:
    start = brake.recording.manifest.start
    lines = [(event.timestamp - start, event.message) for event in brake.recording.events() if event.source == "sel"]
    assert all(event.node == BRAKED for event in brake.recording.events() if event.source == "sel")
    assert BRAKE_AT * 1000 < lines[0][0] <= BRAKE_AT * 1000 + 2000
    tails = [" | ".join(message.split(" | ")[3:]) for _, message in lines]
    assert tails == [
        "Power Supply #0x51 | Failure detected | Asserted",
        "Power Unit #0x01 | Redundancy Lost | Asserted",
        "Power Supply #0x51 | Presence detected | Deasserted",
        "Power Supply #0x51 | Presence detected | Asserted",
        "Power Supply #0x51 | Failure detected | Deasserted",
        "Power Unit #0x01 | Fully Redundant | Asserted",
    ]
    ids = [int(message.split(" | ")[0], 16) for _, message in lines]
    assert ids == list(range(ids[0], ids[0] + 6))


def test_the_trainer_logs_as_megatron_does(brake: Telemetry) -> None:
    lines = [event for event in brake.recording.events() if "elapsed time per iteration" in event.message]
    assert {event.rank for event in lines} == {NODES * GPUS - 1}
    step = brake.column("steps", "step_time_s")[brake.column("steps", "rank") == -1]
    logged = float(lines[1].message.split("elapsed time per iteration (ms): ")[1].split(" ")[0])
    assert logged == pytest.approx(1000 * step[5:10].mean(), abs=1)
    loss = [value for value in brake.table("steps")["loss"].to_pylist() if value is not None]
    assert float(lines[1].message.split("lm loss: ")[1].split(" ")[0]) == pytest.approx(loss[9], abs=1e-5)


def test_checkpoints_pause_the_job_and_are_labelled(brake: Telemetry) -> None:
    start = brake.recording.manifest.start
    pauses = [label for label in brake.recording.labels() if "checkpoint" in label.id]
    assert pauses
    begin = (pauses[0].onset - start) / 1000
    quiet = brake.dcgm(TENSOR, begin + 6, begin + 18)
    assert quiet.max() == 0
    assert brake.dcgm("DCGM_FI_PROF_PCIE_TX_BYTES", begin + 6, begin + 18).min() > 1e9
    assert brake.dcgm("DCGM_FI_DEV_FB_USED", begin + 6, begin + 18).min() > 60_000


def test_nodes_are_scraped_on_beats_of_their_own_and_some_scrapes_are_missing(brake: Telemetry) -> None:
    seconds, nodes = brake.seconds("dcgm"), np.array(brake.column("dcgm", "node"))
    phases = {node: np.median(seconds[nodes == node] % 5) for node in set(nodes)}
    assert len({round(phase, 1) for phase in phases.values()}) > 1
    for node, phase in phases.items():
        assert np.abs(seconds[nodes == node] % 5 - phase).max() < 0.06
    assert len(seconds) <= 120 * NODES * GPUS
    times = seconds[nodes == BRAKED]
    assert (np.unique(times, return_counts=True)[1] == GPUS).all()  # one scrape, one time for all its GPUs


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["v001", "v002", "v003"], "v[001-003]"),
        (["v001", "v003", "v004"], "v[001,003-004]"),
        (["v001"], "v001"),
        (["a", "b"], "a,b"),
    ],
)
def test_node_lists_are_written_as_slurm_writes_them(names: list[str], short: str) -> None:
    assert compress(names) == short
