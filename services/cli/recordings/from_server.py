"""A stretch of what a Prometheus holds, as a recording that is only kept while it is worked on."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option(help="in place of a recording: a Prometheus, or a Thanos Query")]
Cluster = Annotated[str | None, typer.Option(help="with --url: only series with this label cluster")]
BearerFile = Annotated[Path | None, typer.Option(help="with --url: file with the bearer token")]
User = Annotated[str | None, typer.Option(help="with --url: user name for basic authentication")]
PasswordFile = Annotated[Path | None, typer.Option(help="with --url: file with that user's password")]
CaFile = Annotated[Path | None, typer.Option(help="with --url: certificates (PEM) to check the server's by")]
Tenant = Annotated[str | None, typer.Option(help="with --url: sent as THANOS-TENANT and X-Scope-OrgID")]


@contextmanager
def captured(
    url: str,
    hours: float,
    *,
    cluster: str | None,
    bearer_file: Path | None,
    user: str | None,
    password_file: Path | None,
    ca_file: Path | None,
    tenant: str | None,
) -> Iterator[Path]:
    """Capture the last hours (as `hindcast capture` does) and yield the recording; UserError as there."""
    from services.cli.recordings.commands import progress_bar
    from services.recording.importers.prometheus import convert

    end = datetime.now(UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory(prefix="hindcast-captured-") as folder:
        out = Path(folder) / "captured"
        with progress_bar(f"capturing {hours:g} h") as progress:
            convert(
                out,
                url=url,
                from_=(end - timedelta(hours=hours)).isoformat(),
                to=end.isoformat(),
                cluster=cluster,
                bearer_file=bearer_file,
                user=user,
                password_file=password_file,
                ca_file=ca_file,
                tenant=tenant,
                progress=progress,
            )
        yield out
