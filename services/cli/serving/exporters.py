"""`hindcast exporters`: a recording as the exporters that it came from, for a Prometheus to scrape."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.written import write_file
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from services.exporters.app import Fleet
    from services.exporters.settings import ExportersSettings


def exporters(
    recording: Annotated[Path, typer.Argument(help="the recording's directory", show_default=False)],
    speed: Annotated[float, typer.Option(min=0.1, max=1000, help="times real time; rates grow with it")] = 1.0,
    from_: Annotated[str | None, typer.Option("--from", help="begin here: RFC 3339, or +HH:MM:SS")] = None,
    default_fields: Annotated[
        bool, typer.Option("--default-fields", help="of DCGM only what dcgm-exporter reports as it comes")
    ] = False,
    port: Annotated[int | None, typer.Option(help="9400 if not given; 0: any free one")] = None,
    host: Annotated[str | None, typer.Option(help="where to listen; 127.0.0.1 if not given")] = None,
    tokens_file: Annotated[Path | None, typer.Option(help="who may scrape; needed beyond loopback")] = None,
    sd_file: Annotated[Path | None, typer.Option(help="write the targets there, for file_sd_configs")] = None,
) -> None:
    """Serve a recording as dcgm-exporter, node_exporter, ipmi_exporter and sonic-exporter, to test your own alerts.

    It begins when the command does and ends with the recording. A node that was down does not answer.
    """
    import time

    from detectors.exporters import exporters as known
    from services.exporters.app import Fleet, Playhead
    from services.exporters.settings import ExportersSettings
    from services.kit.settings import load
    from services.recording.instants import resolve_instant
    from services.recording.reader import Recording

    given = {"port": port, "host": host, "tokens_file": tokens_file}
    settings = load(ExportersSettings, **{name: value for name, value in given.items() if value is not None})
    opened = Recording.open(recording)
    start, end = opened.manifest.start, opened.manifest.end
    try:
        start = start if from_ is None else resolve_instant(from_, start)
    except ValueError as error:
        raise UsageError(f"--from: {error}", remedy="write RFC 3339, or +HH:MM:SS") from error
    if not opened.manifest.start <= start < end:
        raise UsageError("--from lies outside the recording", remedy="`hindcast show` says its span")
    fleet = Fleet(
        opened,
        Playhead(start, end, speed, time.monotonic, time.monotonic()),
        known().dcgm_default if default_fields else None,
    )
    _serve(fleet, settings, sd_file)


def _serve(fleet: "Fleet", settings: "ExportersSettings", sd_file: Path | None) -> None:
    """Serve until the recording is over, or SIGTERM or SIGINT."""
    import threading

    from services.exporters.app import build, discovery_file
    from services.kit.service import stop_on_signals
    from services.kit.serving import Server

    stop = stop_on_signals()
    with settings.listen() as listening:
        address = settings.address(listening)
        if sd_file is not None:
            write_file(sd_file, discovery_file(fleet, address))
        typer.echo(f"{len(fleet.targets(address))} targets for {fleet.playhead.lasts_s:.0f} s; in prometheus.yml:")
        typer.echo(f"scrape_configs: [{{job_name: recorded, http_sd_configs: [{{url: {address}/sd}}]}}]")
        server = Server(build(fleet, settings), settings, stop)
        timer = threading.Timer(fleet.playhead.lasts_s, stop.set)
        timer.start()
        try:
            server.run(sockets=[listening])
        finally:
            timer.cancel()
    typer.echo("ended")
