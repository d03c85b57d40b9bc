"""What the demo shows at its end: timeline, webhook, samples, addresses."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from services.cli.demo.clock import EventClock
from services.kit.findings import finding_in
from services.kit.times import format_time, parse_time
from services.recording.model import Label


@dataclass(frozen=True)
class Moment:
    """One line of the timeline: event time is recording time, wall time is the broker's or the receiver's clock."""

    what: str
    event_ms: int
    wall_ms: int


def timeline(
    root: Label, clock: EventClock, finding: Any, alert: Mapping[str, Any] | None, hooks: list[Any]
) -> list[Moment]:
    """Return onset, first finding, alert sent, webhook received, and the resolve, in the order in which they came.

    `finding` is the Kafka record of the first finding of the root cause, `alert` the alert as Alertmanager first took
    it (None where it was over before anyone looked), `hooks` what the webhook receiver got.
    """
    moments = [
        Moment("fault onset", root.onset, clock.wall_at(root.onset)),
        Moment("first finding", finding_in(finding.value).detected_at, finding.timestamp),
    ]
    if alert:
        moments.append(Moment("alert sent", clock.event_at(alert["sent_ms"]), alert["sent_ms"]))
    for hook in hooks:
        word = {"firing": "webhook received", "resolved": "resolve received"}[hook["body"]["status"]]
        wall_ms = parse_time(hook["received_at"])
        moments.append(Moment(word, clock.event_at(wall_ms), wall_ms))
    return moments


def show_timeline(console: Console, root: Label, moments: list[Moment]) -> None:
    """Print the timeline, each moment with its distance from the onset in both times."""
    table = Table(title=f"Timeline of {format_time(root.onset)[:10]}", title_justify="left")
    for column in ("what", "event time", "after onset", "wall time", "after onset"):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for moment in moments:
        table.add_row(
            moment.what,
            format_time(moment.event_ms)[11:],
            f"{(moment.event_ms - root.onset) / 1000:+.1f} s",
            format_time(moment.wall_ms)[11:],
            f"{(moment.wall_ms - moments[0].wall_ms) / 1000:+.2f} s",
        )
    console.print(table)


def show_samples(console: Console, sent: int, held: Mapping[str, int]) -> bool:
    """Print what was sent and what each server holds by query; return whether all agree."""
    table = Table(title="Samples", title_justify="left")
    table.add_column("where")
    table.add_column("samples", justify="right")
    table.add_column("")
    table.add_row("sent by the replay", f"{sent:,}", "")
    for server, samples in held.items():
        table.add_row(f"held by {server}, by query", f"{samples:,}", "equal" if samples == sent else "DIFFERS")
    console.print(table)
    return all(samples == sent for samples in held.values())


def show_webhook(console: Console, body: Mapping[str, Any]) -> None:
    """Print a webhook's body as it came."""
    console.print("\n[bold]The webhook, as received[/bold]")
    console.print_json(json.dumps(body))
