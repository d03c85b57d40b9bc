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

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("recordings.commands",),
    ("recordings.sharing", "merge", "anonymise"),
    ("recordings.degrade",),
    ("recordings.diff", "diff"),
    ("recordings.imports",),
    ("recordings.capture",),
    ("recordings.record", "record"),
    ("detection.run", "run"),
    ("detection.coverage", "coverage"),
    ("detection.calibrate", "calibrate"),
    ("detection.backtest", "backtest"),
    ("detection.score", "score", "compare"),
    ("detection.rules", "rules"),
    ("detection.postmortem", "postmortem"),
    ("detection.fit", "fit", "novelty"),
    ("detection.tune", "tune"),
    ("serving.replay",),
    ("serving.exporters", "exporters"),
    ("serving.live", "live"),
    ("detection.config",),
    ("serving.api", "api"),
    ("serving.token", "token"),
    ("serving.backup", "backup", "restore"),
    ("serving.topics",),
    ("serving.stack", "doctor"),
    ("demo", "demo"),
    ("serving.webhook",),
    ("serving.dashboards",),
    ("generated.generate",),
)
"""Each module, with the functions that are its commands; a group of commands is its `commands`."""


@app.callback()
def hindcast(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Take what stands before the command."""


for _name, *_functions in COMMANDS:
    _module = importlib.import_module(f"services.cli.{_name}")
    for _function in _functions:
        app.command()(getattr(_module, _function))
    if hasattr(_module, "commands"):
        app.add_typer(_module.commands)
    elif not _functions:
        _module.register(app)


def main() -> None:
    """Run the command line; a UserError is printed plainly and its exit code kept."""
    end_in_order()
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"hindcast: {error}\n")
        raise SystemExit(error.exit_code) from None
