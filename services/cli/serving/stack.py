"""`hindcast stack` and `hindcast doctor`: the real servers on this machine."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.stack.state import Running


commands = typer.Typer(
    name="stack", help="Kafka, Prometheus, Alertmanager and Thanos as child processes.", no_args_is_help=True
)


@commands.command()
def build() -> None:
    """Fetch and build the servers into the user's cache; nothing is done where they are there."""
    from services.stack.build import ensure
    from services.stack.settings import load_settings

    for name, folder in ensure(load_settings().cache_dir).items():
        typer.echo(f"{name:13} {folder}")


@commands.command()
def up() -> None:
    """Start the servers and hindcast's services, and leave them running."""
    from services.stack import detached
    from services.stack.build import ensure
    from services.stack.progress import Board
    from services.stack.settings import load_settings

    settings = load_settings()
    ensure(settings.cache_dir)
    with Board("starting", ()) as board:
        running = detached.up(settings, board.update)
    _show_addresses(running.addresses)
    typer.echo(f"\nlogs: {settings.state_dir / 'logs'}\nend it with: hindcast stack down")


@commands.command()
def down() -> None:
    """End the stack that `up` started."""
    from services.stack.detached import down as end
    from services.stack.settings import load_settings

    state_dir = load_settings().state_dir
    typer.echo("the stack has ended" if end(state_dir) else f"no stack runs in {state_dir}")


@commands.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Say which processes run; exit 1 where there is no stack or one of its processes has died."""
    running = _running()
    alive = {name: process.alive() for name, process in running.processes.items()}
    if as_json:
        processes = {n: {"pid": p.pid, "running": alive[n]} for n, p in running.processes.items()}
        typer.echo(json.dumps({"processes": processes, "deaths": dict(running.deaths)}, indent=2))
    else:
        for name, process in running.processes.items():
            typer.echo(f"{name:16} {'running' if alive[name] else 'not running':12} pid {process.pid}")
        for death in running.deaths.values():
            typer.echo(f"\n{death}", err=True)
    if running.deaths:
        raise typer.Exit(1)


@commands.command()
def addresses(as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Say where the servers are reached."""
    running = _running()
    if as_json:
        typer.echo(json.dumps(dict(running.addresses), indent=2))
    else:
        _show_addresses(running.addresses)


def doctor() -> None:
    """Say what this machine lacks and how to get it; exit 1 where the real servers cannot be built or run natively."""
    from services.stack.doctor import can_run_native, examine, mode
    from services.stack.settings import load_settings

    settings = load_settings()
    findings = examine(settings)
    for finding in findings:
        typer.echo(f"{finding.verdict:9} {finding.subject:8} {finding.detail}")
        if finding.remedy and finding.verdict != "ok":
            typer.echo(f"{'':18} get it: {finding.remedy}")
    ways = {
        "native": "on the native stack: the real servers as child processes",
        "docker": "on the embedded engine, without servers; with Docker, `docker compose up` brings up all of them",
        "embedded": "on the embedded engine, without servers: the detectors, but no Kafka, Prometheus or Alertmanager",
    }
    typer.echo(f"\nmake demo runs {ways[mode(findings)]}")
    if not can_run_native(findings):
        raise typer.Exit(1)


def _running() -> "Running":
    from services.kit.errors import UserError
    from services.stack import state
    from services.stack.settings import load_settings

    state_dir = load_settings().state_dir
    running = state.read(state_dir)
    if running is None:
        raise UserError(f"no stack runs in {state_dir}", remedy="start one: hindcast stack up", exit_code=1)
    return running


def _show_addresses(found: "Mapping[str, object]") -> None:
    for name, address in found.items():
        if isinstance(address, dict):
            for service, url in address.items():
                typer.echo(f"{service:18} {url}")
        else:
            typer.echo(f"{name:18} {address}")
