"""The scorecard as one HTML page that needs nothing but itself."""

from html import escape
from typing import Any

from services.score.suite import Scorecard

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .75rem; text-align: right }
th { border-bottom: 2px solid #555 } td:first-child, th:first-child { text-align: left }
tr:nth-child(even) td { background: #f3f3f3 } .control td { color: #555; font-style: italic }
"""
_COLUMNS = {
    "labels": "labels", "hits": "hits", "misses": "missed", "late": "late", "false_alarms": "false alarms",
    "repeats": "repeats", "precision": "precision", "recall": "recall", "f1": "F1",
    "delay_p50_s": "delay p50, s", "delay_p95_s": "delay p95, s",
}  # fmt: skip


def page(card: Scorecard) -> str:
    """Return the page: figures by fault, the controls, what was missed and what was cried wolf over."""
    figures = card.as_json()
    rows = [_row(name, row) for name, row in figures["faults"].items()]
    rows += [_row(f"{name} (control)", row, "control") for name, row in figures["controls"].items()]
    head = "".join(f"<th>{title}</th>" for title in ("fault", *_COLUMNS.values()))
    recordings = "".join(
        f"<tr><td>{escape(one['name'])}</td><td>{one['seed']}</td><td>{escape(one['cluster'])}</td>"
        f"<td>{one['node_days']:.2f}</td><td>{one['outcomes'].get('hit', 0)}</td>"
        f"<td>{len(one['missed'])}</td><td>{len(one['false'])}</td></tr>"
        for one in figures["recordings"]
    )
    wrong = "".join(
        f"<li>{escape(one['name'])}: missed {escape(label['fault'])} of {escape(_entity(label['entity']))}</li>"
        for one in figures["recordings"]
        for label in one["missed"]
    ) + "".join(
        f"<li>{escape(one['name'])}: false alarm, {escape(alarm['fault'])} of {escape(_entity(alarm['entity']))}: "
        f"{escape(alarm['summary'])}</li>"
        for one in figures["recordings"]
        for alarm in one["false"]
    )
    rate, bound = (figures[f"false_alarms_per_100_node_days{end}"] for end in ("", "_upper_95"))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>hindcast score</title><style>{_STYLE}</style>'
        f"<h1>What the detectors caught</h1><table><tr>{head}</tr>{''.join(rows)}</table>"
        f"<p>{rate} false alarms per 100 node-days (upper 95 % bound {bound}), "
        f"in {figures['node_days']} node-days.</p>"
        "<h2>Recordings</h2><table><tr><th>recording</th><th>seed</th><th>cluster</th><th>node-days</th><th>hits</th>"
        f"<th>missed</th><th>false alarms</th></tr>{recordings}</table>"
        f"<h2>Missed, and cried wolf over</h2><ul>{wrong or '<li>nothing</li>'}</ul></html>\n"
    )


def _row(name: str, row: dict[str, Any], kind: str = "") -> str:
    cells = "".join(f"<td>{'' if row[key] is None else f'{row[key]:g}'}</td>" for key in _COLUMNS)
    return f'<tr class="{kind}"><td>{escape(name)}</td>{cells}</tr>'


def _entity(entity: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in entity.items())
