"""A stretch of what a Prometheus holds, as a recording that is only kept while it is worked on."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from services.recording.importers.parts.series.query_api import Access

Url = Annotated[str | None, typer.Option(help="in place of a recording: a Prometheus, or a Thanos Query")]
Cluster = Annotated[str | None, typer.Option(help="with --url: only series with this label cluster")]
BearerFile = Annotated[Path | None, typer.Option(help="with --url: file with the bearer token")]
User = Annotated[str | None, typer.Option(help="with --url: user name for basic authentication")]
PasswordFile = Annotated[Path | None, typer.Option(help="with --url: file with that user's password")]
CaFile = Annotated[Path | None, typer.Option(help="with --url: certificates (PEM) to check the server's by")]
Tenant = Annotated[str | None, typer.Option(help="with --url: sent as THANOS-TENANT and X-Scope-OrgID")]


@contextmanager
def captured(access: "Access", hours: float, cluster: str | None) -> Iterator[Path]:
    """Capture the last hours (as `hindcast capture` does) and yield the recording; UserError as there."""
    from services.cli.recordings.commands import progress_bar
    from services.recording.importers.prometheus import capture

    end = datetime.now(UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory(prefix="hindcast-captured-") as folder:
        out = Path(folder) / "captured"
        with progress_bar(f"capturing {hours:g} h") as progress:
            begin = end - timedelta(hours=hours)
            capture(out, access, begin.isoformat(), end.isoformat(), cluster=cluster, progress=progress)
        yield out
