"""`hindcast token`: who may ask the services of hindcast, and in which role."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def token(
    name: Annotated[str, typer.Argument(help="Whose it is.", show_default=False)],
    role: Annotated[
        Literal["viewer", "operator", "sender", "proxy"],
        typer.Option(help="A viewer may look only, a sender send only; a proxy names those it asks for."),
    ] = "viewer",
    tokens_file: Annotated[Path | None, typer.Option(help="Add its line to this file.")] = None,
    secret_file: Annotated[Path | None, typer.Option(help="Write the token here; one that is here is kept.")] = None,
) -> None:
    """Make a token: print it, once, and the line that the tokens file is to have; or write both where they belong."""
    from services.kit.access import new_token, token_of

    secret, made = new_token(name, role)
    if secret_file is not None:
        if secret_file.exists():
            made = token_of(secret_file.read_text(encoding="utf-8").strip(), name, role)
        else:
            secret_file.touch(mode=0o600)
            secret_file.write_text(f"{secret}\n", encoding="utf-8")
    else:
        typer.echo(f"the token, shown only now:\n  {secret}")
    line = f"- {{name: {made.name!r}, role: {made.role}, sha256: '{made.sha256}'}}"
    if tokens_file is None:
        typer.echo("add to the file of tokens (HINDCAST_API_TOKENS_FILE, HINDCAST_REPLAY_TOKENS_FILE, ...):")
        typer.echo(line)
    elif not tokens_file.exists() or made.sha256 not in tokens_file.read_text(encoding="utf-8"):
        again = tokens_file.exists() and f"- {{name: {name!r}," in tokens_file.read_text(encoding="utf-8")
        with tokens_file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        if secret_file is None:
            typer.echo(f"{tokens_file}: {made.name} ({made.role}) added")
        if again:
            typer.echo(f"{tokens_file}: has a token of {name} already, which is still good: remove its line", err=True)
