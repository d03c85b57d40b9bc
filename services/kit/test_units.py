"""Units and their partitions: evenly spread, whoever asks at the same time, and never moved."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.kit.topics import Topic, declared, new_topic
from services.kit.units import Assignment, Assignments, least

PARTITIONS = 6


def test_six_units_on_six_partitions_share_none() -> None:
    found: dict[str, int] = {}
    for number in range(PARTITIONS):
        found[f"vela/{number}"] = least(found, PARTITIONS, over=())
    assert sorted(found.values()) == list(range(PARTITIONS))


def test_what_is_over_counts_less_than_what_runs_and_more_than_nothing() -> None:
    found = {"vela/a": 0, "vela/b": 1, "vela/over": 2}
    assert least(found, 3, over={"vela/over"}) == 2
    assert least(found, 4, over={"vela/over"}) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_whoever_reads_the_topic_sees_the_same_and_units_are_spread_evenly(writes: list[tuple[int, int]]) -> None:
    """Writers that have not read the last so many records assign at the same time; each tries again until it counts."""
    log: list[Assignment] = []

    def seen(upto: int) -> dict[str, int]:
        known = Assignments()
        for offset, record in enumerate(log[:upto]):
            known.take(offset, record)
        return dict(known.partitions)

    first: dict[str, int] = {}
    for name, behind in writes:
        unit = f"vela/{name}"
        for read in (max(0, len(log) - behind), len(log)):
            known = seen(read)
            if unit not in known:
                log.append(Assignment(unit=unit, partition=least(known, PARTITIONS, over=()), read=read))
        now = seen(len(log))
        assert unit in now
        assert first.items() <= now.items()
        first = now
    loads = Counter(first.values())
    assert not first or max(loads.values()) - min(loads[number] for number in range(PARTITIONS)) <= 1


def test_the_number_of_partitions_is_what_was_asked_for() -> None:
    plan = declared()
    made = {name: new_topic(name, topic, plan, 48).num_partitions for name, topic in plan.topics.items()}
    assert {made["telemetry.dcgm"], made["logs"], made["findings"]} == {48}
    assert {made["units"], made["replays"]} == {1}
    kept = new_topic("units", Topic(kind="single", forever=True), plan, 48)
    assert kept.topic_configs["retention.ms"] == "-1"
