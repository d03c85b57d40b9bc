"""What a cluster's telemetry can show of each fault: the ladders of detector.yaml against what arrives.

Nothing here reads telemetry: who has seen it says of each thing that a ladder can need how many of those that should
report it do (`Seen`), and gets the matrix, fault by fault.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from detectors.contract import KINDS, DetectorSpec, Fault, Rung
from detectors.exporters import exporters

Verdict = Literal["sees", "less", "late", "partly", "blind", "off", "undeclared"]
_ALL: Final = 0.995
"""A share from which on it is all: of a thousand GPUs some are always away."""
_SOME: Final = 0.005


@dataclass(frozen=True, slots=True)
class Seen:
    """What arrives: by need of a ladder the share (0 to 1) of those that should report it; what is left out is 0.

    Needs are ``kind.FIELD``, ``kind`` alone, ``logs.SOURCE``, ``jobs``, ``steps.ranks``, ``topology.links``,
    ``topology.nics`` and ``topology.pcie``. `inferred_jobs`: no scheduler and no label names jobs, they are found by
    GPUs that work in step.
    `intervals_s` says how often each kind is read, where that is known.
    """

    shares: Mapping[str, float]
    intervals_s: Mapping[str, float] = field(default_factory=dict)
    inferred_jobs: bool = False
    amd: bool = False
    """Whether the GPUs are AMD's: other exporters give their readings, and not all of them."""

    def of(self, rung: Rung) -> float:
        """Return the share of the cluster that has all that a rung needs: at most, for who lacks what may differ."""
        return min((max(self.shares.get(need, 0.0) for need in either(needs)) for needs in rung.needs), default=1.0)


def either(needs: str) -> list[str]:
    """Return the needs of which one suffices."""
    return needs.split("|")


@dataclass(frozen=True, slots=True)
class Level:
    """What is seen of a fault on a part of the cluster: the best rung that there is telemetry for."""

    sees: str
    within_s: float
    share: float
    rung: int
    """From 0, the best."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What a better rung would add, and which needs it lacks; a kind where nothing of it arrives.

    Of the better rungs these are those of which none still better lacks as little.
    """

    sees: str
    within_s: float
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: what is seen of it, by parts of the cluster, the best first; for the rest it is blind."""

    fault: Fault
    detector: str
    verdict: Verdict
    levels: tuple[Level, ...]
    gains: tuple[Gain, ...]

    @property
    def blind_share(self) -> float:
        """The part of the cluster on which the fault cannot be seen."""
        return 1.0 - sum(level.share for level in self.levels)


def coverage(specs: Iterable[DetectorSpec], seen: Seen, off: Iterable[DetectorSpec] = ()) -> tuple[Row, ...]:
    """Return the matrix: a row for every fault of `specs`, and of those detectors that are switched `off`."""
    rows = [_row(spec, fault, seen) for spec in specs for fault in spec.faults]
    return (*rows, *(Row(fault, spec.name, "off", (), ()) for spec in off for fault in spec.faults))


def _row(spec: DetectorSpec, fault: Fault, seen: Seen) -> Row:
    ladder = spec.ladders.get(fault, ())
    if not ladder:
        return Row(fault, spec.name, "undeclared", (), ())
    levels: list[Level] = []
    reached = 0.0
    for number, rung in enumerate(ladder):
        share = 1.0 if (share := seen.of(rung)) >= _ALL else share
        if share - reached > _SOME:
            levels.append(Level(rung.sees, rung.within_s, share - reached, number))
            reached = share
    worst = levels[-1].rung if levels and reached >= _ALL else len(ladder)
    gains: list[Gain] = []
    for rung in ladder[:worst]:
        lacks = _lacking(rung, seen)
        if lacks and (not gains or len(lacks) < len(gains[-1].lacks)):
            gains.append(Gain(rung.sees, rung.within_s, lacks))
    return Row(fault, spec.name, _verdict(ladder, levels, reached), tuple(levels), tuple(gains))


def _verdict(ladder: Sequence[Rung], levels: Sequence[Level], reached: float) -> Verdict:
    if not levels:
        return "blind"
    if reached < _ALL:
        return "partly"
    if any(level.within_s > ladder[0].within_s for level in levels):
        return "late"
    return "less" if levels[-1].rung else "sees"


def _lacking(rung: Rung, seen: Seen) -> tuple[str, ...]:
    """Return what a rung needs and not all of the cluster has: of alternatives the one that most of it has.

    Of a kind of which nothing arrives it is the kind.
    """
    lacking = []
    for needs in rung.needs:
        best = max(either(needs), key=lambda need: seen.shares.get(need, 0.0))
        kind = best.partition(".")[0]
        if seen.shares.get(best, 0.0) < _ALL:
            lacking.append(kind if kind in KINDS and not seen.shares.get(kind) else best)
    return tuple(dict.fromkeys(lacking))


@dataclass(frozen=True, slots=True)
class Addition:
    """What to add, needs that belong together, and what it gives: faults with what would be seen, and how soon."""

    needs: tuple[str, ...]
    gives: tuple[tuple[Fault, Gain], ...]


def additions(rows: Iterable[Row]) -> list[Addition]:
    """Return what is worth adding, what helps most faults first."""
    found: dict[tuple[str, ...], list[tuple[Fault, Gain]]] = {}
    for row in rows:
        for gain in row.gains:
            given = found.setdefault(gain.lacks, [])
            if row.fault not in (fault for fault, _ in given):  # the best of its rungs comes first
                given.append((row.fault, gain))
    listed = [Addition(needs, tuple(given)) for needs, given in found.items()]
    return sorted(listed, key=lambda one: (len(one.needs), -len(one.gives), one.needs))


def csv_lines(rows: Iterable[Row], seen: Seen) -> list[str]:
    """Return the lines that give dcgm-exporter every field that would add something; none for AMD's GPUs."""
    return (
        [] if seen.amd else exporters().csv(sorted({need for row in rows for gain in row.gains for need in gain.lacks}))
    )


_CLOSING: Final[Mapping[Verdict, str]] = {
    "blind": "not judged",
    "partly": "judged on a part of the cluster only",
    "late": "seen later than it could be",
    "off": "switched off",
}


def closing(rows: Sequence[Row]) -> list[str]:
    """Return, in a line each, what could not be judged, or only late, and for lack of what; [] where all is well."""
    lines = []
    for verdict, words in _CLOSING.items():
        reasons: dict[str, list[str]] = {}
        for row in rows:
            if row.verdict == verdict:
                reasons.setdefault(_reason(row), []).append(row.fault)
        if reasons:
            gaps = [f"{', '.join(faults)}{reason and f' ({reason})'}" for reason, faults in reasons.items()]
            lines.append(f"{words}: {'; '.join(gaps)}")
    return lines


def _reason(row: Row) -> str:
    """Return what is missing: of a blind fault for its least rung, of others for the best."""
    if not row.gains:
        return ""
    gain = row.gains[-1] if row.verdict in {"blind", "partly"} else row.gains[0]
    words = dict.fromkeys(exporters().words(need) for need in gain.lacks)
    reason = f"no {', no '.join(words)}"
    return f"{reason} on {row.blind_share:.0%}" if row.verdict == "partly" else reason
