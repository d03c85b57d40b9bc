"""What detection loses when telemetry is taken away: two scorecards of the same recordings, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.score.sheet import Row, Sheet, number

_NOTE = (
    "prec, recall and p50 (of the delay from the label's onset to the alert): of the recordings as they are, then w/o, "
    "without what was taken away; +miss, +false: labels and false alarms that this adds."
)


def loss_sheet(before: Mapping[str, Any], after: Mapping[str, Any], without: Sequence[str]) -> Sheet:
    """Return precision, recall and delay by fault with all telemetry and without some; `Scorecard.as_json` of both."""
    faults = [name for name in before["faults"] | after["faults"] if name != "all"]
    rows = []
    for name in [*sorted(faults), "all"]:
        one, other = (card["faults"].get(name, {}) for card in (before, after))
        cells = [name, number(one.get("labels", 0), "d")]
        for key, form in (("precision", ".3g"), ("recall", ".3g"), ("delay_p50_s", ".0f")):
            cells += [number(card.get(key), form) for card in (one, other)]
        cells += [str(other.get("misses", 0) - one.get("misses", 0)), str(_more_false(one, other))]
        worse = other.get("misses", 0) > one.get("misses", 0) or _more_false(one, other) > 0
        rows.append(Row(cells, "total" if name == "all" else "short" if worse else ""))
    titles = ["fault", "labels", "prec", "w/o", "recall", "w/o", "p50 s", "w/o", "+miss", "+false"]
    return Sheet(f"Without {', '.join(without)}", titles, rows, [_NOTE])


def _more_false(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return int(other.get("false_alarms", 0)) - int(one.get("false_alarms", 0))
