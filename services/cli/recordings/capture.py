"""`hindcast capture`: another name for `hindcast import prometheus`."""

from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("capture", cls=_Capture)(capture)


def capture() -> None:
    """Capture a stretch of time from a running Prometheus or Thanos (same as `import prometheus`)."""


class _Capture(TyperCommand):
    """Takes its options from the importer, which is loaded when it is asked for."""

    @cached_property
    def _real(self) -> TyperCommand:
        from services.cli.recordings.imports import command_of
        from services.recording.importers.prometheus import convert

        made = typer.Typer(add_completion=False)
        made.command(help=self.help)(command_of("prometheus", convert))
        command = typer.main.get_command(made)
        assert isinstance(command, TyperCommand)  # noqa: S101 - an app of one command is that command
        return command

    @property
    def params(self) -> Any:
        """Return the options, as help and completion show them."""
        return self._real.params

    @params.setter
    def params(self, _none: Any) -> None:
        """Take no notice of the empty list that `capture` has."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self._real.make_context(info_name, args, parent=parent, **extra)
