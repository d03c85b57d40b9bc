"""A history gone through: what is missing of it is worked on, window by window, and all of it is put together."""

import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from detectors.contract import Finding
from detectors.engine.engine import Choice
from services.backtest.keys import days_key, detector_key, rules_key
from services.backtest.pieces import Part, Piece
from services.backtest.results import Results, from_json
from services.backtest.stitch import stitched
from services.backtest.work import Days, Detection, Rules, Work, done
from services.kit.errors import UserError
from services.rules.evaluation import Settings


@dataclass(frozen=True)
class RuleSet:
    """Rule files that are looked at together, and how they are evaluated."""

    files: Sequence[Path]
    evaluator: Path
    settings: Settings = field(default_factory=Settings)


def missing(
    parts: Sequence[Part], configurations: Sequence[Sequence[Choice]], rule_sets: Sequence[RuleSet], results: Results
) -> list[Work]:
    """Return the work whose results are not there: in each window only the detectors that have changed."""
    found: list[Work] = []
    for piece in (piece for part in parts for piece in part.pieces):
        recording, window = piece.recording, piece.window
        wanted = {_detector_key(choice, piece): choice for choices in configurations for choice in choices}
        lacking = [(key, choice) for key, choice in wanted.items() if key not in results]
        found += [Detection(recording, window, lot, piece.grid_ms) for lot in _lots(lacking)]
        days = days_key(piece.data, window)
        if days not in results:
            found.append(Days(recording, window, days))
        for rules in rule_sets:
            key = _rules_key(rules, piece)
            if key not in results:
                found.append(Rules(recording, window, key, rules.files, rules.settings, rules.evaluator))
    return found


def _lots(lacking: Iterable[tuple[str, Choice]]) -> list[list[tuple[str, Choice]]]:
    """Return the detectors by the engine that they run in: of several settings of one detector each has its own."""
    lots: list[list[tuple[str, Choice]]] = []
    for key, choice in lacking:
        free = (lot for lot in lots if all(choice[0] is not other[0] for _, other in lot))
        lot = next(free, None)
        if lot is None:
            lots.append([(key, choice)])
        else:
            lot.append((key, choice))
    return lots


def _detector_key(choice: Choice, piece: Piece) -> str:
    return detector_key(choice, piece.data, piece.window, piece.grid_ms)


def _rules_key(rules: RuleSet, piece: Piece) -> str:
    settings = (rules.settings.interval, rules.settings.lookback, rules.settings.replay)
    return rules_key(rules.files, settings, rules.evaluator, piece.data, piece.window)


def work_off(
    work: Sequence[Work],
    pool: concurrent.futures.Executor,
    results: Results,
    heard: Callable[[Work], None] = lambda _: None,
) -> None:
    """Do the work and keep each result as it comes; `heard` is called with each piece.

    UserError: a recording or a rule is wrong, or a worker was killed; what was done until then is kept.
    """
    waiting = {pool.submit(done, piece): piece for piece in work}
    try:
        for future in concurrent.futures.as_completed(waiting):
            for key, value in future.result().items():
                results.put(key, value)
            heard(waiting.pop(future))
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, as one that takes too much memory is",
            remedy="run it again with fewer --workers: what is done is kept",
        ) from error


def detected(part: Part, choices: Sequence[Choice], results: Results) -> list[Finding]:
    """Return what a configuration's detectors found in a part, in order; of those in shadow nothing."""
    loud = [choice for choice in choices if not choice[1].shadow]

    def of(piece: Piece) -> list[Finding]:
        stored = (results.get(_detector_key(choice, piece)) for choice in loud)
        return [finding for one in stored for finding in from_json(one or [])]

    return stitched((piece.window, of(piece)) for piece in part.pieces)


def fired(part: Part, rules: RuleSet, results: Results) -> tuple[list[Finding], int]:
    """Return what rules fired in a part, in order, and how many more alerts that name no part of the cluster."""
    stored = [results.get(_rules_key(rules, piece)) or {"findings": [], "apart": 0} for piece in part.pieces]
    found = stitched((piece.window, from_json(one["findings"])) for piece, one in zip(part.pieces, stored, strict=True))
    return found, sum(one["apart"] for one in stored)


def node_days_of(parts: Iterable[Part], results: Results) -> float:
    """Return the node-days of telemetry that were looked at."""
    pieces = (piece for part in parts for piece in part.pieces)
    return sum(results.get(days_key(piece.data, piece.window)) or 0.0 for piece in pieces)
