"""`hindcast topics`: the explicit step that creates the Kafka topics."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from services.kit.kafka import KafkaSettings


commands = typer.Typer(
    name="topics",
    help="The Kafka topics, as declared in services/kit/topics.yaml, and what lies where in them.",
    no_args_is_help=True,
)


@commands.command()
def create() -> None:
    """Create the topics that are missing."""
    from services.kit.kafka import KafkaSettings
    from services.kit.settings import load
    from services.kit.topics import create as create_topics

    created = create_topics(_asked(load(KafkaSettings)))
    typer.echo(f"created: {', '.join(created)}" if created else "all topics are there")


@commands.command()
def units() -> None:
    """Say in which partition each cluster/replay lies."""
    from services.kit.kafka import KafkaSettings
    from services.kit.settings import load
    from services.kit.units import assigned

    for unit, partition in sorted(assigned(_asked(load(KafkaSettings))).items(), key=lambda item: (item[1], item[0])):
        typer.echo(f"{partition:4} {unit}")


def _asked(settings: "KafkaSettings") -> "KafkaSettings":
    """Return settings, and say whom they name: a broker that does not answer is waited for."""
    typer.echo(f"asking {settings.bootstrap} ...", err=True)
    return settings
