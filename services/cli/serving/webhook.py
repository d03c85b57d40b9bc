"""`hindcast webhook`: try a webhook receiver before the night it is needed."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    group = typer.Typer(help="Receivers of alerts.", no_args_is_help=True)
    app.add_typer(group, name="webhook")

    @group.command()
    def test(
        url: str = typer.Argument(help="Where Alertmanager would post, e.g. http://127.0.0.1:9099/webhook"),
    ) -> None:
        """Post a notification as Alertmanager would (version 4, marked as a test) and print the answer."""
        from services.notify.sample import post_sample

        typer.echo(post_sample(url))
