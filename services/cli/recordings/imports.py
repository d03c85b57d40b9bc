"""`hindcast import NAME`: a command for every importer there is, made from its `convert`.

`hindcast import FOLDER` without a name is `hindcast import heap FOLDER`: what is in it is found out.
"""

import inspect
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from services.cli.recordings.named import NewDir

if TYPE_CHECKING:
    from services.recording.importers.contract import Report

_HEAP = "heap"


_HELP = """Convert what others recorded.

Give a folder, an archive or a file: each file is looked at, imported as what it is, and merged into one recording. Or
name the importer: it has options of its own.
"""


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    imports = typer.Typer(cls=_Importers, no_args_is_help=True, help=_HELP)
    imports.callback()(_nothing)
    app.add_typer(imports, name="import")


def _nothing() -> None:
    """Convert what others recorded."""


class _Importers(TyperGroup):
    """The importers, loaded when one is asked for: the rest of the program starts without them."""

    @cached_property
    def _loaded(self) -> TyperGroup:
        from services.recording.importers.registry import discover

        made = typer.Typer()
        made.callback()(_nothing)
        for name, (text, convert) in discover().items():
            made.command(name, help=text)(command_of(name, convert))
        group = typer.main.get_command(made)
        assert isinstance(group, TyperGroup)  # noqa: S101 - typer makes a group of what has a callback
        return group

    def list_commands(self, ctx: Any) -> list[str]:
        return self._loaded.list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._loaded.get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words begin with; one that names none, but files there are, is a heap."""
        if args and args[0] not in self.list_commands(ctx) and Path(args[0]).exists():
            args = [_HEAP, *args]
        return super().resolve_command(ctx, args)


def command_of(name: str, convert: "Callable[..., Report]") -> Callable[..., None]:
    """Return a function with the signature that typer makes the command from."""
    hints = get_type_hints(convert, include_extras=True)
    parameters = []
    for parameter in inspect.signature(convert).parameters.values():
        if parameter.name == "progress":
            continue
        hint = NewDir if parameter.name == "out" else hints[parameter.name]
        if parameter.name != "out":
            plain, words = get_args(hint)
            option = parameter.kind is parameter.KEYWORD_ONLY
            # A parameter that would be a word of Python (`from_`) loses its underscore.
            names = [f"--{parameter.name.removesuffix('_')}"] if parameter.name.endswith("_") else []
            hint = Annotated[plain, typer.Option(*names, help=words) if option else typer.Argument(help=words)]
        parameters.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))

    @wraps(convert)
    def run(**given: Any) -> None:
        from services.cli.recordings.commands import progress_bar, recording_name

        recording_name(given["out"])
        with progress_bar(f"importing {name}") as progress:
            report = convert(**given, progress=progress)
        typer.echo(f"{given['out']}: {report}")

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
