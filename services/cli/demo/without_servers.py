"""The demo where the real servers cannot be had: the same detectors on the same incident, in this process."""

from rich.console import Console

from detectors.registry import choose
from services.cli.demo import incident
from services.cli.detection.run import run_and_show
from services.recording.reader import Recording
from services.stack.doctor import Mode

_WHY = {
    "native": "",
    "docker": (
        "This machine lacks the toolchains for the real servers, but has Docker. For the whole of it:\n"
        "  docker compose up --detach --wait\n"
        "  hindcast replay start RECORDING --speed 60 --wait\n"
    ),
    "embedded": "This machine has neither the toolchains for the real servers nor a Docker engine.",
}


def run(mode: Mode) -> None:
    """Run the embedded engine on the incident and say what was left out; `mode` is what the machine could do."""
    console = Console()
    if _WHY[mode]:
        console.print(_WHY[mode])
    run_and_show(Recording.open(incident.prepare().recording), choose())
    console.print(
        "\n[bold]Left out:[/bold] Kafka, Prometheus, Thanos, Alertmanager and the webhook: no samples were stored and "
        "no alert was sent. The findings above are the ones they would have carried.\n"
        "`make doctor` says what this machine lacks for the whole of it."
    )
