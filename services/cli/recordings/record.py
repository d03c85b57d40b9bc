"""`hindcast record`: this machine's GPUs into a recording, for people without an exporter."""

import socket
from typing import Annotated

import typer

from services.cli.recordings.named import NewDir


def record(
    out: NewDir,
    seconds: Annotated[float | None, typer.Option("--for", min=1, help="seconds; else until Ctrl-C")] = None,
    hz: Annotated[float, typer.Option(min=1, max=10, help="readings a second")] = 1.0,
    node: Annotated[str | None, typer.Option(help="the node's name; else this host's")] = None,
    cluster: Annotated[str, typer.Option(help="the cluster's name")] = "local",
    title: Annotated[str, typer.Option(help="what this is a recording of")] = "",
    summary: Annotated[str, typer.Option(help="what an on-call engineer reads first")] = "",
) -> None:
    """Record this machine's GPUs through NVML until the time is over or Ctrl-C; both leave a complete recording."""
    from rich.console import Console

    from services.cli.recordings.commands import recording_name
    from services.kit.service import stop_on_signals
    from services.record.nvml import Nvml
    from services.record.recorder import Plan, Recorded
    from services.record.recorder import record as run

    recording_name(out)
    plan = Plan(node or socket.gethostname(), hz, seconds, title, summary, cluster)
    with Nvml() as sensors, Console(stderr=True).status(f"recording {len(sensors.gpus)} GPUs") as status:

        def progress(done: Recorded) -> None:
            status.update(f"recording {len(sensors.gpus)} GPUs: {done.ticks} readings, {done.missed} missed")

        done = run(sensors, out, plan, stop_on_signals(), progress=progress)
    typer.echo(f"{out}: {done.ticks} readings of each GPU, {done.missed} missed, {done.xids} XID errors")
