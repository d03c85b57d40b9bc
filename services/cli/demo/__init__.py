"""`hindcast demo`: one incident through the real servers, and what happened."""

import typer


def demo(
    speed: float = typer.Option(60.0, min=1, max=1000, help="Times real time."),
    embedded: bool = typer.Option(False, "--embedded", help="Only the detectors, in this process: no servers."),
) -> None:
    """Replay the Vela power-brake incident through the real servers and show what happened."""
    from services.cli.demo import native, without_servers
    from services.stack.doctor import demo_mode

    mode = demo_mode()
    if embedded or mode != "native":
        without_servers.run(mode)
    else:
        native.run(speed)
