"""docs/reference/commands.md: every command with its arguments and options, as `--help` has them."""

from collections.abc import Iterator
from typing import Any

import typer.main

from services.cli.reference.tables import code, page, table

_ABOUT = """\
Every command prints the same by `--help`. `hindcast --install-completion` makes your shell (bash, zsh, fish)
complete commands and options. Exit codes: 0 done; 1 done, and the answer is no (a recording that is not valid, a
rule that did not hold); 2 wrong arguments, settings or files; 3 a server that does not answer; 130 interrupted."""


def commands() -> str:
    """Return the page."""
    return page("Commands", _ABOUT, *(_one(words, command) for words, command in all_commands()))


def all_commands() -> list[tuple[str, Any]]:
    """Return every command that `--help` shows, by its words."""
    from services.cli.main import app

    return list(_below("hindcast", typer.main.get_command(app)))


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield a command, or what a group holds; typer's commands have no type that can be named."""
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    for word in command.list_commands(None):
        below = command.get_command(None, word)
        if not below.hidden:
            yield from _below(f"{words} {word}", below)


def _one(words: str, command: Any) -> str:
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    usage = " ".join((words, *(_usage(one) for one in shown if one.param_type_name == "argument")))
    paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    text = f"## {words}\n\n```text\n{usage}\n```\n\n" + "\n\n".join(paragraphs) + "\n"
    rows = [_row(one) for one in shown]
    return text + ("\n" + table(("argument or option", "default", "what it is"), rows) if rows else "")


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _row(parameter: Any) -> tuple[str, str, str]:
    default = parameter.default
    plain = default is None or default in (False, "", ()) or callable(default)
    names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = code(parameter.name.upper())
    shown = "needed" if parameter.required else "" if plain else code(default)
    return names, shown, getattr(parameter, "help", None) or ""
