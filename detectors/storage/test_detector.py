"""storage on what file systems do: slow in many ways, and busy in ways that look slow."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding
from detectors.engine.rows import KeyColumn
from detectors.fleet.fleet import Job, JobEvent
from detectors.registry import choose
from detectors.storage.detector import Storage
from detectors.storage.examples import MOUNTS, NFS, POOL, SERVERS, SILENT, Site, Slow, tape_of, with_gpus
from detectors.storage.habit import LoadHabit
from detectors.tapes.cluster import START, changed, name, seconds, without
from detectors.tapes.tape import Tape, play

QUIET = Site()


def run(tape: Tape) -> list[Finding]:
    choices = [c for c in choose() if c[0] is Storage]
    return play(tape, choices)[0]


def firing(tape: Tape) -> list[Finding]:
    return [finding for finding in run(tape) if finding.state == "firing"]


def test_a_slow_server_is_named_with_its_evidence_and_its_end() -> None:
    fired, resolved = run(tape_of(replace(SERVERS, minutes=18)))
    assert (fired.fault, dict(fired.entity), fired.state) == ("storage_slow", {"mount": "/scale"}, "firing")
    assert abs(fired.started_at - START - 480_000) <= 60_000
    assert fired.detected_at - START <= 480_000 + 150_000
    evidence = fired.evidence
    assert float(evidence["read_latency_ms"]) > 3 * float(evidence["read_latency_at_like_load_ms"])
    assert evidence["clients"] == 5
    assert float(evidence["job_data_wait_share"]) > float(evidence["job_data_wait_share_before"])
    assert (resolved.id, resolved.state) == (fired.id, "resolved")
    assert START + 720_000 < resolved.detected_at <= START + 720_000 + 300_000


@pytest.mark.parametrize(("bursts", "lasts_s", "alerts"), [(1, 75, 0), (3, 75, 0), (1, 180, 1)])
def test_a_burst_of_a_minute_is_no_alert(bursts: int, lasts_s: float, alerts: int) -> None:
    slow = [Slow(0, at, at + lasts_s, factor=8.0) for at in range(480, 480 + 300 * bursts, 300)]
    assert len(firing(tape_of(replace(SERVERS, minutes=26, slow=slow)))) == alerts


def test_a_mount_that_is_slow_for_some_of_its_clients_is_named_with_them_and_its_end() -> None:
    fired, resolved = run(tape_of(replace(POOL, minutes=20)))
    assert (dict(fired.entity), fired.severity) == ({"mount": "/scale"}, "ticket")
    assert START + 480_000 < fired.detected_at <= START + 480_000 + 210_000
    assert fired.evidence["nodes_slow"] == ", ".join(name(node) for node in (2, 5, 7, 9))
    assert (fired.evidence["clients_slow"], fired.evidence["clients"]) == (4, 12)
    assert float(fired.evidence["read_latency_ms"]) > 3 * float(fired.evidence["read_latency_of_others_ms"])
    assert "job 812 waits for data" in fired.summary
    assert (resolved.id, resolved.state) == (fired.id, "resolved")


def test_clients_that_are_slow_since_they_move_more_or_for_another_job_have_work_to_do() -> None:
    slow = [name(node) for node in (2, 5, 7, 9)]

    def more(rows: Any, moved: Any) -> Any:
        busy = np.isin(np.array(rows.keys["node"].categories)[rows.keys["node"].codes], slow)
        return moved + np.where(busy, 2e8 * np.maximum(seconds(rows) - 480, 0), 0)

    tape = tape_of(POOL)
    assert firing(changed(changed(tape, "storage", "read_bytes", more), "storage", "write_bytes", more)) == []
    others = tuple(node for node in tape.jobs[0].job.nodes if node not in slow)
    begins = START + 480_000
    jobs = [
        replace(tape.jobs[0], job=replace(tape.jobs[0].job, nodes=others)),
        JobEvent(START, "start", Job("7", tuple(slow), START, 8)),
        JobEvent(begins, "end", Job("7", tuple(slow), START, 8)),
        JobEvent(begins, "start", Job("8", tuple(slow), begins, 8)),
    ]
    assert firing(replace(tape, jobs=jobs)) == []


def test_nfs_that_a_job_starves_on_is_named() -> None:
    (fired,) = firing(tape_of(NFS))
    assert fired.entity == {"mount": "/nfs"}
    assert fired.severity == "page"
    assert fired.evidence["job_id"] == "812"
    assert float(fired.evidence["job_data_wait_share"]) == pytest.approx(0.4, abs=0.05)


def test_nfs_that_was_slow_from_the_first_reading_is_compared_with_other_mounts() -> None:
    (fired,) = firing(tape_of(replace(NFS, begins_s=0)))
    assert fired.entity == {"mount": "/nfs"}


def test_a_mount_alone_and_slow_from_the_start_is_judged_by_itself() -> None:
    site = Site(mounts=1, starving_share=0.4, slow=[Slow(0, 0, factor=30)])
    (fired,) = firing(tape_of(site))
    assert fired.entity == {"mount": "/scale"}


def test_a_storm_that_comes_and_goes_is_one_finding() -> None:
    storms = [Slow(0, 480 + 330 * n, 480 + 330 * n + 200, 3.0) for n in range(3)]
    found = run(tape_of(Site(minutes=32, slow=storms)))
    assert [finding.state for finding in found] == ["firing", "resolved"]


def test_a_slow_ramp_is_not_taken_for_the_habit() -> None:
    ramp = [Slow(0, 480 + 30 * n, factor=1.09) for n in range(20)]
    (fired,) = firing(tape_of(Site(minutes=25, slow=ramp)))
    assert fired.detected_at - START <= 480_000 + 600_000


@pytest.mark.parametrize("interval_s", [5.0, 30.0, 60.0])
def test_cadences(interval_s: float) -> None:
    (fired,) = firing(tape_of(replace(SERVERS, interval_s=interval_s, slow=[Slow(0, 720)], minutes=20)))
    assert fired.detected_at - START <= 720_000 + 300_000


@pytest.mark.parametrize(
    "site",
    [
        replace(SERVERS, missing=0.3),
        replace(SERVERS, counters=False),
        replace(SERVERS, nodes=2),
        replace(SERVERS, mounts=1),
        replace(SERVERS, slow=[Slow(0, 480, 720, nodes=[0, 1, 2, 3])]),
    ],
    ids=["missing scrapes", "no counters", "two clients", "no other mount", "four clients of five"],
)
def test_the_mount_is_named_with_less_to_go_on(site: Site) -> None:
    assert [dict(finding.entity) for finding in firing(tape_of(site))] == [{"mount": "/scale"}]


@pytest.mark.parametrize(("says", "severity"), [(0.05, "info"), (np.nan, "ticket")], ids=["waits known", "unknown"])
def test_steps_that_take_longer_are_no_effect_of_a_slow_mount_where_the_job_waits_no_longer_for_data(
    says: float, severity: str
) -> None:
    tape = tape_of(replace(QUIET, wait_share=0.0, slow=[Slow(0, 480, factor=6)]))
    tape = changed(
        tape, "steps", "step_time_s", lambda rows, values: np.where(seconds(rows) >= 480, 2 * values, values)
    )
    tape = changed(tape, "steps", "data_wait_s", lambda _, values: np.full(values.shape, says))
    assert [one.severity for one in firing(tape)] == [severity]


@pytest.mark.parametrize(("since_s", "severity"), [(600, "info"), (1180, "ticket")], ids=["long before", "with it"])
def test_steps_that_were_longer_long_before_a_mount_is_slow_are_no_effect_of_it(since_s: int, severity: str) -> None:
    tape = tape_of(replace(QUIET, wait_share=0.0, minutes=26, slow=[Slow(0, 1200, factor=6)]))
    tape = changed(tape, "steps", "data_wait_s", lambda _, values: np.full(values.shape, np.nan))
    longer = changed(
        tape, "steps", "step_time_s", lambda rows, values: np.where(seconds(rows) >= since_s, 1.5 * values, values)
    )
    assert [one.severity for one in firing(longer)] == [severity]


def test_steps_that_took_longer_for_another_fault_are_no_habit() -> None:
    site = replace(QUIET, wait_share=0.0, minutes=35, slow=[Slow(0, 1500, factor=6)])
    tape = changed(tape_of(site), "steps", "data_wait_s", lambda _, values: np.full(values.shape, np.nan))

    def longer(rows: Any, values: Any) -> Any:
        at = seconds(rows)
        restless = np.random.default_rng(3).normal(1.0, 0.06, 100)[(at // 30).astype(int)]
        return values * restless * np.select([(at >= 500) & (at < 1400), at >= 1500], [1.35, 1.45], 1.0)

    assert [one.severity for one in firing(changed(tape, "steps", "step_time_s", longer))] == ["ticket"]


@pytest.mark.parametrize(("until_s", "severities"), [(720, ["info"]), (1e9, ["info", "ticket"])])
def test_one_long_step_is_no_effect_of_a_slow_mount(until_s: float, severities: list[str]) -> None:
    """A job prints one step of twenty, and how long it waits for data is not known."""
    tape = tape_of(replace(QUIET, wait_share=0.0, slow=[Slow(0, 480, factor=6)]))
    tape = changed(tape, "steps", "data_wait_s", lambda _, values: np.full(values.shape, np.nan))

    def printed(rows: Any, values: Any) -> Any:
        at = seconds(rows)
        first = np.diff(at // 25, prepend=-1) != 0
        return np.where(first, values * np.where((at >= 700) & (at < until_s), 1.6, 1.0), np.nan)

    assert [one.severity for one in firing(changed(tape, "steps", "step_time_s", printed))] == severities


def test_requests_that_queue_on_every_client_hold_up_somebody_where_no_job_reports_its_steps() -> None:
    quick = replace(QUIET, wait_share=0.0, slow=[Slow(0, 480, factor=6)])
    queued = replace(quick, slow=[Slow(0, 480, factor=40)])
    assert [one.severity for site in (quick, queued) for one in firing(tape_of(site))] == ["info", "info"]
    (found,) = [one for one in firing(without(tape_of(queued), "steps")) if one.severity != "info"]
    assert found.severity == "ticket"
    assert "requests wait, usually" in found.summary
    # A job on two of five clients that does not wait speaks for itself alone.
    few = [replace(event, job=replace(event.job, nodes=event.job.nodes[:2])) for event in tape_of(queued).jobs]
    assert [one.severity for one in firing(replace(tape_of(queued), jobs=few))] == ["ticket"]


@pytest.mark.parametrize(
    ("waits", "spins", "severity"),
    [(0.4, False, "ticket"), (0.4, True, "ticket"), (0.02, False, "info")],
    ids=["they idle", "they spin", "they work"],
)
def test_where_no_job_reports_its_steps_its_gpus_show_whether_it_waits(
    waits: float, severity: str, *, spins: bool
) -> None:
    tape = with_gpus(SILENT, lambda at_s: waits * ((at_s >= 480) & (at_s < 720)), spins=spins)
    assert [one.severity for one in firing(tape)] == [severity]


@pytest.mark.parametrize(("says", "severity"), [(np.nan, "ticket"), (0.05, "info")], ids=["unknown", "waits known"])
def test_clients_that_get_a_quarter_are_held_up_unless_their_jobs_report_that_they_do_not_wait(
    says: float, severity: str
) -> None:
    """GPUs that spin for a rank that waits look at work; steps that are as long as ever have been read ahead."""
    tape = with_gpus(tape_of(replace(QUIET, wait_share=0.0, slow=[Slow(0, 480, factor=6)])), lambda at_s: 0 * at_s)
    tape = changed(tape, "steps", "data_wait_s", lambda _, values: np.full(values.shape, says))

    def less(rows: Any, moved: Any) -> Any:
        reads = np.array(rows.keys["mount"].categories)[rows.keys["mount"].codes] == MOUNTS[QUIET.reads_from]
        return moved - 0.75 * reads * QUIET.read_gb_s * 1e9 / QUIET.nodes * np.maximum(seconds(rows) - 480, 0)

    def restless(rows: Any, moved: Any) -> Any:
        """One more client comes and goes, at five times what all others read: the mount's load is never the same."""
        at, last = seconds(rows), np.array(rows.keys["node"].categories)[rows.keys["node"].codes] == name(4)
        return moved + last * 2.5e9 * np.minimum(at // 120 * 60 + np.minimum(at % 120, 60), 240)

    slow = changed(tape, "storage", "read_bytes", less)
    (found,), (amid,) = firing(slow), firing(changed(slow, "storage", "read_bytes", restless))
    assert (found.severity, "its clients move 0.25 of what they did" in found.summary) == (severity, np.isnan(says))
    assert (amid.severity, "with the same jobs" in amid.summary) == (severity, np.isnan(says))


def test_gpus_that_draw_less_at_a_lower_clock_wait_for_no_mount() -> None:
    tape = with_gpus(SILENT, lambda at_s: 0 * at_s, clock=lambda at_s: np.where((at_s >= 480) & (at_s < 720), 0.7, 1.0))
    assert [one.severity for one in firing(tape)] == ["info"]


def test_a_pause_of_gpus_while_a_mount_is_slow_is_no_wait_for_it() -> None:
    tape = with_gpus(SILENT, lambda at_s: 1.0 * ((at_s >= 560) & (at_s < 650)))
    assert [one.severity for one in firing(tape)] == ["info"]


@pytest.mark.parametrize(("since_s", "severity"), [(300, "info"), (600, "ticket")])
def test_waits_that_began_long_before_a_mount_is_slow_are_for_something_else(since_s: float, severity: str) -> None:
    tape = tape_of(replace(QUIET, slow=[Slow(0, 660, factor=6)]))
    tape = changed(
        tape, "steps", "data_wait_s", lambda rows, values: np.where(seconds(rows) >= since_s, 1.5, values * 0 + 0.05)
    )
    assert [one.severity for one in firing(tape)] == [severity]


@pytest.mark.parametrize(("spins", "severity"), [(False, "ticket"), (True, "info")])
def test_steps_that_are_longer_for_a_slow_gpu_are_no_effect_of_a_slow_mount(severity: str, *, spins: bool) -> None:
    """While all wait for one GPU the others spin; while they wait for data they idle."""
    tape = with_gpus(_longer_steps(480), lambda at_s: 0.5 * (at_s >= 480), spins=spins)
    assert [one.severity for one in firing(tape)] == [severity]


@pytest.mark.parametrize(("ops", "severity"), [(6, "info"), (1000, "ticket")])
def test_steps_are_longer_by_no_more_than_requests_are_under_way(ops: int, severity: str) -> None:
    """Six requests a second of 7 ms each are under way for a twenty-fourth of it; steps take twice as long."""
    tape = _longer_steps(480)
    (rows,) = [rows for rows in tape.rows if rows.kind == "storage"]
    counted = np.floor(ops * seconds(rows))
    more = replace(rows, values={**rows.values, "read_ops": counted}, valid={**rows.valid, "read_ops": counted >= 0})
    tape = replace(tape, rows=[more if one is rows else one for one in tape.rows])
    assert [one.severity for one in firing(tape)] == [severity]


def test_steps_that_come_to_be_longer_long_after_a_mount_is_slow_are_no_effect_of_it() -> None:
    assert [one.severity for one in firing(_longer_steps(1380, minutes=30))] == ["info"]


def _longer_steps(since_s: float, minutes: float = 16) -> Tape:
    """Return a tape with a mount that is slow from 480 s on, and steps that take twice as long from then on."""
    tape = tape_of(replace(QUIET, wait_share=0.0, minutes=minutes, slow=[Slow(0, 480, factor=6)]))
    tape = changed(tape, "steps", "data_wait_s", lambda _, values: np.full(values.shape, np.nan))
    return changed(
        tape, "steps", "step_time_s", lambda rows, values: np.where(seconds(rows) >= since_s, 2 * values, values)
    )


@pytest.mark.parametrize(
    "site",
    [
        replace(QUIET, checkpoints=[(200 + 200 * n, 245 + 200 * n) for n in range(4)]),
        replace(QUIET, checkpoints=[(600, 840)]),
        replace(QUIET, loads=[(600, 840)]),
        replace(QUIET, begins_s=500),
        replace(QUIET, slow=[Slow(0, 480, nodes=[2], factor=20)]),
        replace(QUIET, slow=[Slow(0, 480, nodes=[1, 3], factor=20)]),
        replace(QUIET, slow=[Slow(0, 480, 520, 6.0)]),
        replace(QUIET, slow=[Slow(0, 480, factor=1.5)]),
        replace(QUIET, starving_share=0.4),
        replace(QUIET, nodes=1, slow=[Slow(0, 480)]),
        replace(QUIET, reads_from=1, read_gb_s=0.3, starving_share=0.12),
    ],
    ids=["checkpoints", "a long first checkpoint", "a long first load", "a job that begins", "one slow client",
         "two slow clients of five", "a short hiccup", "half as slow again", "a slow data loader", "a single client",
         "nfs in moderation"],
)  # fmt: skip
def test_what_is_only_busy(site: Site) -> None:
    assert firing(tape_of(site)) == []


def test_a_full_mount_that_fills_a_good_part_of_its_clients_links_is_not_slow() -> None:
    stream = Site(mounts=1, read_gb_s=320, capacity_gb_s=(330, 1), starving_share=0.78)
    assert firing(tape_of(replace(stream, link_gbps=800))) == []
    assert len(firing(tape_of(replace(stream, link_gbps=8000)))) == 1
    assert len(firing(tape_of(stream))) == 1


def test_a_job_that_always_waited_waits_for_no_slow_mount_while_that_is_as_it_was_at_this_load() -> None:
    stream = Site(mounts=1, read_gb_s=9.2, starving_share=0.4, minutes=20)
    assert firing(tape_of(replace(stream, slow=[Slow(0, 600, factor=1.6)]))) == []
    assert len(firing(tape_of(replace(stream, slow=[Slow(0, 600, factor=4)])))) == 1


def test_counters_that_are_reset_raise_nothing() -> None:
    tape = tape_of(QUIET)
    storage = tape.rows[0]
    late = storage.times > START + 500_000
    values = dict(storage.values)
    for field in ("read_bytes", "write_bytes"):
        values[field] = np.where(late, values[field] - values[field][late].min(), values[field])
    reset = type(storage)("storage", storage.times, storage.keys, values, storage.valid)
    assert firing(replace(tape, rows=[reset, tape.rows[1]])) == []


def test_a_mount_that_falls_silent_stays_open() -> None:
    tape = tape_of(replace(SERVERS, slow=[Slow(0, 480)]))
    assert [finding.state for finding in run(tape.until(START + 700_000))] == ["firing"]
    assert MOUNTS[0] == "/scale"


def test_what_to_expect_rises_with_load_and_ends_where_nothing_was_seen() -> None:
    habit, one = LoadHabit(), np.array([0])
    habit.grow(1)
    for _ in range(5):
        for load, latency in ((1e8, 2.0), (1e9, 5.0)):
            habit.learn(one, np.array([load]), np.log([latency]), np.zeros(1, bool))

    def expected(load: float) -> float:
        return float(np.exp(habit.expected(one, np.array([load]))[0]))

    assert [expected(load) for load in (1.2e8, 3e8, 1e9, 1e6)] == pytest.approx([2.0, 2.0, 5.0, 2.0])
    assert np.isnan(expected(4e9))
    assert np.isnan(expected(np.nan))
    assert float(np.exp(habit.least()[0])) == pytest.approx(2.0)


def test_jobs_that_are_over_are_forgotten_where_no_mount_is_read() -> None:
    tape = tape_of(replace(QUIET, minutes=90))
    steps, over = tape.rows[1], tape.jobs[0].job
    next_one = replace(over, job_id="813", start=START + 240_000)
    later = KeyColumn((seconds(steps) >= 240).astype(int), (over.job_id, next_one.job_id))
    rows = replace(steps, keys={**steps.keys, "job_id": later})
    events = [JobEvent(next_one.start, "end", over), JobEvent(next_one.start, "start", next_one)]
    assert run(replace(tape, rows=[rows], jobs=[*tape.jobs, *events])) == []
