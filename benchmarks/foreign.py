"""Scores the detectors on recordings that were made by others, and shows what was missed and what was a false alarm.

    python -m benchmarks.foreign [--set development|look] [--only straggler,congestion] [--config X.yaml]
        [--without default-fields,logs] [--json F]

The nine recordings are public data of the project's and no part of the repository. Detectors are developed on one part
of them (`development`); the other (`look`) is for looking at the score only. `--only` runs some detectors.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from detectors.registry import discover
from services.detect.choices import choices_of, overrides_in
from services.recording.without import parse_words
from services.score.suite import Scorecard, score_all
from tests.data import DATA

FOREIGN = DATA / "foreign-recordings"
LOOK = ("aquila-hang-16", "mensa-small-4", "tucana-rails-48", "vega-mixed-28")
"""Never developed on; one of each hard case is in either part."""
WIDTHS = (8, 6, 6, 6, 7, 11, 8, 8)


def recordings(part: str = "all") -> list[Path]:
    """Return the foreign recordings of a part (development, look, or all), or those named, by commas."""
    found = sorted(path.parent for path in FOREIGN.glob("*/recording.yaml"))
    if part in {"all", "development", "look"}:
        return [path for path in found if part == "all" or (path.name in LOOK) == (part == "look")]
    return [path for path in found if path.name in part.split(",")]


def score(part: str, only: list[str], config: Path | None, workers: int = 2, without: Sequence[str] = ()) -> Scorecard:
    """Return the score over a part; with `only`, of these detectors; `without` some telemetry (`without.WORDS`)."""
    overrides = overrides_in(config)
    for name in discover():
        if only and name not in only:
            overrides[name] = {**(overrides.get(name) or {}), "enabled": False}
    return score_all(recordings(part), choices_of(overrides, config), workers=workers, without=without)


def main() -> None:
    """Print the table; exit 1 where there are no recordings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="all", help="development, look, all, or recordings' names by commas")
    parser.add_argument("--only", default="", help="detectors, by commas")
    parser.add_argument("--config", type=Path, help="a detectors.yaml")
    parser.add_argument("--without", action="append", help="what to take away first: see `hindcast degrade --help`")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if not recordings(args.set):
        sys.exit(f"no recordings at {FOREIGN}. Remedy: set HINDCAST_DATA to the folder that has foreign-recordings")
    only = [name for name in args.only.split(",") if name]
    without = parse_words(args.without) if args.without else ()
    card = score(args.set, only, args.config, args.workers, without)
    faults = {fault for name, kind in discover().items() if not only or name in only for fault in kind.spec.faults}
    heads = zip(("labels", "hit", "late", "miss", "false", "precision", "recall", "p50 s"), WIDTHS, strict=True)
    print(f"{'fault':24}" + "".join(f"{head:>{width}}" for head, width in heads))
    for fault, counts in sorted(card.by_fault.items(), key=lambda item: item[0] == "all"):
        if fault in faults or (fault == "all" and not only):
            print(
                f"{fault:24}{counts.labels:8}{counts.hits:6}{counts.late:6}{counts.misses:6}{counts.false_alarms:7}"
                f"{counts.precision:11.2f}{counts.recall:8.2f}{counts.delay_s(0.5):8.0f}"
            )
    total = card.by_fault["all"].false_alarms
    print(f"{total} false alarms in {card.node_days:.1f} node-days: {100 * total / card.node_days:.1f} in a hundred")
    for one in card.recordings:
        for outcome in one.outcomes:
            if outcome.kind in {"false", "late"} and outcome.finding:
                finding = outcome.finding
                at_s, words = finding.detected_at / 1000, finding.summary
                print(f"{outcome.kind:6}{one.name:18}{outcome.fault:20}+{at_s:.0f} {words}")
            elif outcome.kind == "miss" and outcome.fault in faults and outcome.label:
                print(f"miss  {one.name:18}{outcome.fault:20}{dict(outcome.label.entity)} {outcome.label.cause}")
    if args.json:
        args.json.write_text(json.dumps(card.as_json(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
