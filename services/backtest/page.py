"""The report of a backtest: tables for a terminal, an HTML page that needs nothing but itself, a CSV of matches."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.recording.model import words_of
from services.score.sheet import Row, Sheet, number, page_of

_MOST = 200
"""Rows of a list; the JSON has all."""
MATCH_COLUMNS = ("of", "ticket", "at", "place", "fault", "verdict", "how", "alert", "against_s", "words", "correct")


def sheets(report: Mapping[str, Any]) -> list[Sheet]:
    """Return the tables that fit a terminal."""
    judged = [policy_sheet(report)] if any(one["policies"] for one in report["subjects"]) else []
    return [summary_sheet(report), teams_sheet(report), *judged, offender_sheet(report)]


def html(report: Mapping[str, Any]) -> str:
    """Return the page, with every match and every alert that nothing explains."""
    lists = [sheet for one in report["subjects"] for sheet in (match_sheet(one), false_alarm_sheet(one))]
    lead = f"{report['from']} to {report['to']}: {_length(report['weeks'])}, {_amount(report['node_days'])} node-days."
    return page_of("Would we have caught it?", lead, [*sheets(report), *lists, assumption_sheet(report)])


def _length(weeks: float) -> str:
    """Return how long a history is, in what it is a few of."""
    days = weeks * 7
    return f"{weeks:,.1f} weeks" if weeks >= 1 else f"{days:.1f} days" if days >= 1 else f"{_amount(days * 24)} hours"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def summary_sheet(report: Mapping[str, Any]) -> Sheet:
    """Return what each configuration and rule set caught, missed and raised falsely, side by side."""
    truth = report["truth"]
    judged: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        (truth, lambda one: str(one["truths"])),
        ("caught", lambda one: str(one["caught"])),
        (f"of these before the {truth[:-1]}", lambda one: str(one["before_the_ticket"])),
        (f"the middle alert against its {truth[:-1]}", lambda one: _delay(one["against_ticket_p50_s"])),
        ("missed", lambda one: str(one["missed"])),
        ("false alarms: alerts that nothing explains", lambda one: str(one["false"])),
    ]
    sent: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("pages a week", lambda one: number(one["sent_a_week"]["all"]["page"])),
        ("tickets a week", lambda one: number(one["sent_a_week"]["all"]["ticket"])),
    ]
    hours: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("GPU-hours lost by all that was wrong", lambda one: number(one["gpu_hours"]["lost"], ",.0f")),
        ("of these saved, had each alert been acted on", lambda one: number(one["gpu_hours"]["saved"], ",.0f")),
    ]
    subjects = report["subjects"]
    rows = [Row([name, *(of(one) if one["known"] else "unknown" for one in subjects)]) for name, of in judged]
    rows += [Row([name, *(of(one) for one in subjects)]) for name, of in sent]
    rows += [Row([name, *(of(one) if one["known"] else "unknown" for one in subjects)]) for name, of in hours]
    return Sheet("Would we have caught it?", ["", *(one["name"] for one in subjects)], rows, _notes(report))


def _notes(report: Mapping[str, Any]) -> list[str]:
    notes = []
    if not all(one["known"] for one in report["subjects"]):
        notes.append("What really happened is not known: give --incidents, or recordings with labels.")
    if report["tickets_of_other_times"]:
        count = report["tickets_of_other_times"]
        notes.append(f"opened at a time that this history does not have, and left out: {count} of the tickets")
    for what, words in (
        ("unclear", "whose words name no fault of ours, with no alert at their place: neither caught nor missed"),
        ("outside", "that name no machine of the cluster, or are set apart by hand"),
        ("by_time_and_host_alone", "caught by time and host alone: look at them, and correct them in matches.csv"),
    ):
        counts = {one["name"]: one[what] for one in report["subjects"] if one[what]}
        if counts:
            notes.append(f"{words}: {', '.join(f'{count} ({name})' for name, count in counts.items())}")
    for one in report["subjects"]:
        if one["gpu_hours"]["of_unknown_cost"]:
            notes.append(f"{one['name']}: what {one['gpu_hours']['of_unknown_cost']} troubles cost is not known.")
        if one["alerts_apart"]:
            notes.append(f"{one['name']}: {one['alerts_apart']} alerts are informative or name no machine: left out.")
    return notes


def _delay(seconds: float | None) -> str:
    if seconds is None:
        return ""
    size = abs(seconds)
    text = f"{size:.0f} s" if size < 120 else f"{size / 60:.0f} min" if size < 7200 else f"{size / 3600:.1f} h"
    return f"{'-' if seconds < 0 else '+'}{text}"


def teams_sheet(report: Mapping[str, Any]) -> Sheet:
    """Return pages and tickets a week by team."""
    teams = sorted(
        {team for one in report["subjects"] for team in one["sent_a_week"]}, key=lambda team: (team == "all", team)
    )
    nothing = {"page": 0.0, "ticket": 0.0}
    rows = [
        Row(
            [team, *(_both(one["sent_a_week"].get(team, nothing)) for one in report["subjects"])],
            "total" if team == "all" else "",
        )
        for team in teams
    ]
    note = "Grouped as alert-rules/alertmanager.yaml does it: by job, rack and fault."
    return Sheet(
        "Pages and tickets a week, by team", ["team", *(one["name"] for one in report["subjects"])], rows, [note]
    )


def _both(counts: Mapping[str, float]) -> str:
    return f"{counts['page']:.3g} / {counts['ticket']:.3g}"


def policy_sheet(report: Mapping[str, Any]) -> Sheet:
    """Return what acting on pages would have cost and saved."""
    rows = []
    for one in report["subjects"]:
        base = next((p["lost_to_faults"] for p in one["policies"] if p["policy"] == "none"), None)
        for p in one["policies"]:
            lost = p["lost_to_faults"] + p["lost_to_drains"]
            cells = (p["lost_to_faults"], p["lost_to_drains"], lost, None if base is None else base - lost)
            drains = (str(p[name]) for name in ("drains", "false_drains", "without_spare"))
            name = f"{one['name']}, {p['policy']}"
            rows.append(Row([name, *drains, *(number(cell, ",.0f") for cell in cells)]))
    titles = ["", "drains", "for nothing", "no spare", "by faults", "by drains", "GPU-h lost", "saved"]
    assumed = ", ".join(f"{name} {value:g}" for name, value in report["assumptions"].items())
    return Sheet("Acting on pages", titles, rows, [f"Assumed: {assumed}."])


def offender_sheet(report: Mapping[str, Any]) -> Sheet:
    """Return the machines that came back."""
    rows = [
        Row([one["name"], who["machine"], str(who["days"]), str(who["notices"]), ", ".join(who["faults"])])
        for one in report["subjects"]
        for who in one["offenders"]
    ]
    notes = [] if rows else ["None: no machine had alerts on more than one day."]
    return Sheet("Repeat offenders", ["", "machine", "days", "alerts", "faults"], rows, notes, frozenset({0, 1, 4}))


def match_sheet(one: Mapping[str, Any]) -> Sheet:
    """Return every label or ticket of a subject with the alert that answered for it."""
    rows = [
        Row([*_match_cells(match), match["words"][:160]], "short" if match["verdict"] == "missed" else "")
        for match in one["matches"][:_MOST]
    ]
    titles = ["ticket", "at", "place", "fault", "verdict", "matched by", "alert", "against", "words"]
    return Sheet(f"{one['name']}: each one, and what answered", titles, rows, _cut(one["matches"]), frozenset(range(9)))


def _match_cells(match: Mapping[str, Any]) -> list[str]:
    alert = match["alert"]
    words = "" if alert is None else f"{alert['detector']}: {words_of(alert['entity'])}, {alert['at']}"
    place = ",".join(f"{key}={value}" for key, value in match["entity"].items())
    verdict = [match[name] for name in ("verdict", "how")]
    return [match["ticket"], match["at"], place, match["fault"], *verdict, words, _delay(match["against_s"])]


def false_alarm_sheet(one: Mapping[str, Any]) -> Sheet:
    """Return the alerts that nothing explains."""
    alerts = one["cried_wolf"]
    rows = [Row([a["at"], a["severity"], a["fault"], words_of(a["entity"]), a["summary"]]) for a in alerts[:_MOST]]
    titles = ["at", "severity", "fault", "entity", "its words"]
    notes = _cut(alerts) or ([] if alerts else ["Nothing."])
    return Sheet(f"{one['name']}: false alarms", titles, rows, notes, frozenset(range(5)))


def _cut(rows: Sequence[Any]) -> list[str]:
    return [f"The first {_MOST} of {len(rows)}; the JSON has all."] if len(rows) > _MOST else []


def assumption_sheet(report: Mapping[str, Any]) -> Sheet:
    """Return by what the figures were come to."""
    rows = [Row([name, f"{value:g}"]) for name, value in report["assumptions"].items()]
    return Sheet("Assumptions", ["", "value"], rows, report["notes"])


def matches_csv(report: Mapping[str, Any]) -> str:
    """Return every match as a line; what is written into the column `correct` holds the next time."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(MATCH_COLUMNS)
    for one in report["subjects"]:
        for match in one["matches"]:
            ticket, at, place, fault, verdict, how, alert, _ = _match_cells(match)
            against = "" if match["against_s"] is None else f"{match['against_s']:.3f}"
            rows.writerow([one["name"], ticket, at, place, fault, verdict, how, alert, against, match["words"], ""])
    return text.getvalue()
