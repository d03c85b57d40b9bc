"""`hindcast backup`, `hindcast restore`: what hindcast keeps, in one file, and back where it was."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from services.kit.errors import UsageError


def backup(
    out: Annotated[Path, typer.Option(help="The file to write, a .tar.gz; must not exist yet.", show_default=False)],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders and files: the state of hindcast live, detectors.yaml, a calibration, a topology. "
            "Without any, what the API and the native stack's services keep.",
            show_default=False,
        ),
    ] = None,
    recordings: Annotated[bool, typer.Option("--recordings", help="Recordings that were imported, too.")] = False,
) -> None:
    """Write what hindcast keeps into one file; what runs may run on."""
    from services.kit.backups import write_backup

    chosen = [path.resolve() for path in paths] if paths else _kept_by_default()
    leave_out = () if recordings else ("recordings",)
    files = write_backup(out, chosen, leave_out=leave_out)
    typer.echo(f"{out}: {files} files of {', '.join(str(path) for path in chosen)}")


def restore(
    file: Annotated[Path, typer.Argument(help="What hindcast backup has written.", show_default=False)],
    into: Annotated[
        Path | None, typer.Option(help="A folder to put all of it into, by name, instead of where it was.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Move what is there now aside, to NAME.before-restore.")
    ] = False,
) -> None:
    """Put a backup back where it was; all of it is checked before anything is written."""
    from services.kit.backups import read_backup

    for path in read_backup(file, into=into and into.resolve(), replace=replace):
        typer.echo(f"restored {path}")


def _kept_by_default() -> Sequence[Path]:
    from services.api.settings import ApiSettings
    from services.kit.settings import load
    from services.stack.settings import load_settings

    places = (load(ApiSettings).data_dir, load_settings().state_dir / "services")
    found = [place.resolve() for place in places if place.is_dir()]
    if not found:
        raise UsageError(
            f"nothing is kept in {' or '.join(str(place) for place in places)}", remedy="name the folders to back up"
        )
    return found
