"""`hindcast api`: recordings, runs and replays over HTTP, and the console."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.kit.errors import UsageError

if TYPE_CHECKING:
    from services.api.settings import ApiSettings
    from services.kit.kafka import KafkaSettings


def api(
    host: Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1 if not given.")] = None,
    port: Annotated[int | None, typer.Option(help="8490 if not given; 0: any free one.")] = None,
    library: Annotated[
        list[Path] | None,
        typer.Option(help="A folder of recordings, or a recording, to show; those made here if none is given."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where imported recordings and runs are kept.")] = None,
    tokens_file: Annotated[Path | None, typer.Option(help="Who may ask; needed beyond loopback.")] = None,
) -> None:
    """Serve the API, and the console where it is built, until it is interrupted."""
    from services.api.__main__ import serve
    from services.api.settings import ApiSettings
    from services.kit.folders import cache_dir
    from services.kit.kafka import KafkaSettings
    from services.kit.service import run
    from services.kit.settings import load
    from services.synth.small import FOLDER

    given = {"host": host, "port": port, "library": library, "data_dir": data_dir, "tokens_file": tokens_file}
    settings = load(ApiSettings, **{name: value for name, value in given.items() if value is not None})
    if (absent := next((path for path in library or () if not path.exists()), None)) is not None:
        remedy = "name a folder of recordings, or a recording, that is there"
        raise UsageError(f"--library {absent}: no such folder", remedy=remedy)
    if not settings.library:  # what was made here comes before the small one of that name
        settings = settings.model_copy(update={"library": (FOLDER, cache_dir("recordings"))})
    settings, kafka = beside_the_stack(settings, load(KafkaSettings))
    run("api", lambda: serve(settings, kafka))


def beside_the_stack(settings: "ApiSettings", kafka: "KafkaSettings") -> "tuple[ApiSettings, KafkaSettings]":
    """Return settings where the servers that nobody named are those of a running stack, if there is one."""
    from services.stack import state
    from services.stack.addresses import Addresses
    from services.stack.settings import load_settings

    running = state.read(load_settings().state_dir)
    if running is None:
        return settings, kafka
    at = Addresses.from_dict(running.addresses)
    found = {"replay_url": at.services.get("replay"), "alertmanager_url": at.alertmanager}
    wanted: dict[str, Any] = {name: url for name, url in found.items() if url and name not in settings.model_fields_set}
    if "sources" not in settings.model_fields_set:
        wanted["sources"] = {"stack": at.thanos_query}
    if "bootstrap" not in kafka.model_fields_set:
        kafka = kafka.model_copy(update={"bootstrap": at.kafka})
    return settings.model_copy(update=wanted), kafka
