"""`hindcast`: one command for everything; each group of commands lives in a module of its own."""

import importlib
import sys
from typing import Annotated

import typer

from services import __version__
from services.kit.errors import UserError
from services.kit.processes import end_in_order


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hindcast {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="hindcast",
    help="Replay GPU-cluster telemetry through the real observability stack, and see what your detectors would say.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

COMMANDS = (
    "recordings.commands",
    "recordings.sharing",
    "recordings.degrade",
    "recordings.diff",
    "recordings.imports",
    "recordings.capture",
    "recordings.record",
    "detection.run",
    "detection.coverage",
    "detection.calibrate",
    "detection.backtest",
    "detection.score",
    "detection.rules",
    "detection.postmortem",
    "detection.fit",
    "detection.tune",
    "serving.replay",
    "serving.exporters",
    "serving.live",
    "detection.config",
    "serving.api",
    "serving.token",
    "serving.backup",
    "serving.topics",
    "serving.stack",
    "demo",
    "serving.webhook",
    "serving.dashboards",
    "generated.generate",
)


@app.callback()
def hindcast(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Take what stands before the command."""


for _name in COMMANDS:
    importlib.import_module(f"services.cli.{_name}").register(app)


def main() -> None:
    """Run the command line; a UserError is printed plainly and its exit code kept."""
    end_in_order()
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"hindcast: {error}\n")
        raise SystemExit(error.exit_code) from None
