"""`hindcast webhook`: try a webhook receiver before the night it is needed."""

from typing import Annotated

import typer

commands = typer.Typer(name="webhook", help="Receivers of alerts.", no_args_is_help=True)


@commands.command("test")
def post(
    url: Annotated[str, typer.Argument(help="Where Alertmanager would post, e.g. http://127.0.0.1:9099/webhook")],
) -> None:
    """Post a notification as Alertmanager would (version 4, marked as a test) and print the answer."""
    from services.notify.sample import post_sample

    typer.echo(post_sample(url))
