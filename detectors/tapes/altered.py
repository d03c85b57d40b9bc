"""Tapes made of tapes, for the laws: with scrapes that got lost, readings that make no sense, machines beside them."""

from dataclasses import replace
from typing import Any

import numpy as np

from detectors.contract import BoolArray, Entity
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Job, JobEvent
from detectors.tapes.tape import Tape, take

_OWN_NAMES = ("node", "switch", "job_id", "mount")
GONE = "-x"
"""How the names of company end."""


def with_lost_scrapes(tape: Tape, seed: int) -> Tape:
    """Return the tape with two runs of 3 to 8 scrapes lost on every node and switch, in each stream of its own, and a
    pause of 20 to 90 s in all streams at once: so collectors are, on clusters of others (docs/detection.md).
    """
    chance = np.random.default_rng(seed)
    length = int(chance.integers(20_000, 90_000))
    pause = int(chance.integers(tape.start, max(tape.end - length, tape.start + 1)))
    rows = []
    for part in tape.rows:
        lost = (part.times >= pause) & (part.times < pause + length)
        owner = next(iter(part.keys.values())).codes
        for one in np.unique(owner) if part.kind != "steps" else ():
            scrapes = np.unique(part.times[owner == one])
            for _ in range(2):
                begin = int(chance.integers(len(scrapes)))
                run = scrapes[begin : begin + int(chance.integers(3, 9))]
                lost |= (owner == one) & (part.times >= run[0]) & (part.times <= run[-1])
        rows.append(take(part, np.flatnonzero(~lost)))
    return replace(tape, rows=rows)


def spoiled(tape: Tape, seed: int) -> Tape:
    """Return the tape with a good part of its readings lost, frozen, or turned into NaN, infinity and huge numbers."""
    chance = np.random.default_rng(seed)
    rows = []
    for whole in tape.rows:
        values, valid = {}, {}
        for name, column in whole.values.items():
            dirty, kept = column.copy(), whole.valid[name] & (chance.random(len(column)) > 0.1)
            bad = chance.random(len(column)) < 0.1
            dirty[bad] = chance.choice(
                [np.nan, np.inf, -np.inf, 1e300, -1e300, -1.0, 0.0, 2.0**63], size=int(bad.sum())
            )
            if chance.random() < 0.2:
                dirty[:] = dirty[0]
            if chance.random() < 0.2:
                continue
            values[name], valid[name] = dirty, kept
        rows.append(type(whole)(whole.kind, whole.times, whole.keys, values, valid))
    return Tape(tape.start, tape.end, rows, tape.logs, tape.jobs, tape.topology)


def with_company(tape: Tape, other: Tape) -> Tape:
    """Return a tape with another's machines and jobs beside its own, at the same time, under names of their own."""
    shift = tape.start - other.start
    rows = {part.kind: part for part in tape.rows}
    for part in other.rows:
        keys = {
            name: KeyColumn(column.codes, tuple(f"{c}{GONE}" if name in _OWN_NAMES else c for c in column.categories))
            for name, column in part.keys.items()
        }
        moved = replace(part, times=part.times + shift, keys=keys)
        rows[part.kind] = _together(rows[part.kind], moved) if part.kind in rows else moved
    jobs = [
        JobEvent(
            event.at + shift,
            event.event,
            Job(
                f"{event.job.job_id}{GONE}", tuple(f"{node}{GONE}" for node in event.job.nodes),
                event.job.start + shift,
                event.job.gpus_per_node, {f"{node}{GONE}": gpus for node, gpus in event.job.gpus.items()},
            ),
            event.state,
        )
        for event in other.jobs
    ]  # fmt: skip
    topology = {
        what: [*tape.topology.get(what, ()), *(_renamed(entry) for entry in other.topology.get(what, ()))]
        for what in {*tape.topology, *other.topology}
        if isinstance(tape.topology.get(what, other.topology.get(what)), list)
    }
    longer = replace(tape, rows=list(rows.values()), jobs=[*tape.jobs, *jobs], topology=topology)
    return longer.until(tape.end)


def with_gone_company(tape: Tape, other: Tape) -> Tape:
    """Return a tape with another's machines and jobs beside its own for a third of the time, which nothing announced,
    and of which nothing is heard afterwards.
    """
    cut = other.start + min(other.end - other.start, tape.end - tape.start) // 3
    short = other.until(cut)
    running = {event.job.job_id: event.job for event in short.jobs}
    over = [JobEvent(cut, "end", job) for job in running.values()]
    beside = with_company(tape, replace(short, jobs=[*short.jobs, *over]))
    return replace(beside, topology=tape.topology)


def _renamed(entry: Any) -> Any:
    """Return a node, switch, link or mount of a topology under its new name."""
    if not isinstance(entry, dict):
        return entry
    renamed = dict(entry)
    for name in ("name", "switch", "mount"):
        if name in renamed:
            renamed[name] = f"{renamed[name]}{GONE}"
    for end in ("a", "b"):
        if end in renamed:
            switch, _, port = str(renamed[end]).partition(":")
            renamed[end] = f"{switch}{GONE}:{port}"
    if "nics" in renamed:
        renamed["nics"] = [_renamed(nic) for nic in renamed["nics"]]
    return renamed


def _together(one: Rows, two: Rows) -> Rows:
    """Return the rows of both; a field that only one has is not reported by the other."""
    keys = {}
    for name, column in one.keys.items():
        more = two.keys[name]
        keys[name] = KeyColumn(
            np.concatenate([column.codes, more.codes + len(column.categories)]), (*column.categories, *more.categories)
        )
    values, valid = {}, {}
    for name in sorted({*one.values, *two.values}):
        parts = [(part.values.get(name), part.valid.get(name), len(part.times)) for part in (one, two)]
        values[name] = np.concatenate([v if v is not None else np.zeros(size) for v, _, size in parts])
        valid[name] = np.concatenate([k if k is not None else np.zeros(size, bool) for _, k, size in parts])
    return Rows(one.kind, np.concatenate([one.times, two.times]), keys, values, valid)


def is_about(rows: Rows, entity: Entity) -> BoolArray:
    """Return which rows are of an entity's node, switch, mount or job."""
    about = np.zeros(len(rows.times), bool)
    for key in {"node", "switch", "mount", "job_id"} & entity.keys() & rows.keys.keys():
        names, codes = rows.keys[key].categories, rows.keys[key].codes
        about |= np.array([name == entity[key] for name in names], bool)[codes]
    return about
