"""`hindcast dashboards`: Grafana's dashboards without a Grafana: listed, and drawn from live query results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.kit.errors import ServerError, UsageError

if TYPE_CHECKING:
    from services.dashboards.live import Window

commands = typer.Typer(name="dashboards", help="Grafana's dashboards: list them, draw them.", no_args_is_help=True)


@commands.command("list")
def list_dashboards() -> None:
    """List the dashboards with what each is for."""
    from rich.console import Console
    from rich.table import Table

    from services.dashboards.catalogue import NAMES, dashboard

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "panels", "what for"):
        table.add_column(column)
    for name in NAMES:
        board = dashboard(name)
        panels = sum(panel.type != "row" for panel in board.panels)
        table.add_row(name, str(panels), board.description)
    Console(highlight=False).print(table)


@commands.command("render")
def render_dashboards(
    names: Annotated[list[str] | None, typer.Argument(help="Which; all if none is named.")] = None,
    url: Annotated[str | None, typer.Option(help="A Prometheus or Thanos Query; that of the running stack.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="RFC 3339, or -2h; one hour before --to.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="RFC 3339, -5m, or now, which it is.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for NAME.png.")] = Path("dashboards-rendered"),
    var: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a variable, such as node=v041.")] = None,
    dpi: Annotated[int, typer.Option(help="Dots an inch.", min=30, max=300)] = 80,
) -> None:
    """Run every panel's queries and draw the dashboards as PNG; says which panels have no data."""
    from services.dashboards.catalogue import NAMES

    unknown = sorted(set(names or ()) - set(NAMES))
    if unknown:
        raise UsageError(f"no dashboard {', '.join(unknown)}", remedy=f"there are {', '.join(NAMES)}")
    chosen = dict(_pair(one) for one in var or ())
    window = _window(since, until)
    try:
        from services.dashboards.render import render
    except ModuleNotFoundError as error:
        raise UsageError(
            f"drawing needs {error.name}, which is not installed", remedy="install it: pip install matplotlib"
        ) from error
    for one in render(list(names or NAMES), url or _url(), window, out, chosen, dpi=dpi):
        slowest = max(answer.seconds for answer in one.answers)
        empty = f"; no data: {', '.join(one.empty)}" if one.empty else ""
        typer.echo(f"{one.path}  {len(one.answers)} queries, slowest {1000 * slowest:.0f} ms{empty}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--var {text}: not NAME=VALUE", remedy="write it like --var node=v041")
    return name, value


def _url() -> str:
    from services.stack import state
    from services.stack.addresses import Addresses
    from services.stack.settings import load_settings

    running = state.read(load_settings().state_dir)
    if running is None:
        raise ServerError("no stack is running", remedy="start one (hindcast stack up), or give --url")
    return Addresses.from_dict(dict(running.addresses)).thanos_query


def _window(since: str | None, until: str | None) -> "Window":
    from services.dashboards.live import Window
    from services.kit.times import wall_ms
    from services.recording.instants import resolve_past

    now = wall_ms()
    try:
        end_ms = resolve_past(until or "now", now)
        start_ms = resolve_past(since, now) if since else end_ms - 3_600_000
    except ValueError as error:
        raise UsageError(str(error), remedy="write 2024-04-01T08:00:00Z, -2h or now") from None
    if start_ms >= end_ms:
        raise UsageError("--from is not before --to", remedy="give a range that holds the replay")
    return Window(start_ms, end_ms)
