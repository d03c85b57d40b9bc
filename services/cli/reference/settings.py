"""docs/reference/settings.md: every setting of every service, from the classes that read the environment."""

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from services.cli.reference.tables import code, page, table
from services.kit.secret import secrets_among
from services.kit.settings import Settings

_ROOT = Path(__file__).resolve().parents[3]
_ABOUT = """\
A service reads its settings from the environment when it starts, and ends with exit code 2 and a line for each that
is wrong. Lists and tables are JSON. A setting of the type secret is also read from a file that the setting's name
with `_FILE` behind it names ([security](../security.md)). `hindcast api` and `hindcast live` take those of the API."""
_TITLES = {
    "HINDCAST_KAFKA_": "Kafka, for every service that speaks to it",
    "HINDCAST_REPLAY_": "Replay, and the commands that steer it",
    "HINDCAST_GATEWAY_": "Gateway",
    "HINDCAST_SINK_": "Sink",
    "HINDCAST_DETECT_": "Detect",
    "HINDCAST_NOTIFY_": "Notify",
    "HINDCAST_RECEIVER_": "Webhook receiver",
    "HINDCAST_STATUS_": "Health and metrics of sink, detect and notify",
    "HINDCAST_LOG_": "Logs, of every service",
    "HINDCAST_API_": "API and console",
    "HINDCAST_EXPORTERS_": "Exporters of a recording",
    "HINDCAST_STACK_": "The stack on one machine (`hindcast stack up`)",
}
OTHERS = {
    "HINDCAST_PROMETHEUS_TOKEN": "the token for the Prometheus that `live`, `capture`, `coverage` and `calibrate` ask",
    "HINDCAST_PROMETHEUS_PASSWORD": "the password that goes with `--user` of the same commands",
    "HINDCAST_KUBERNETES_TOKEN": "the token for the API server that `live --kubernetes` asks",
    "HINDCAST_DATA": "the folder of public telemetry that some tests and benchmarks read",
    "HINDCAST_LAW_EXAMPLES": "examples of each law and detector in the tests (20)",
    "HINDCAST_TEST_LIVE_RULES": "the rules of one detector that are tested at wall-clock speed",
    "HINDCAST_RECORDINGS": "docker compose: the folder of recordings",
    "HINDCAST_WEBHOOK_URL_FILE": "docker compose: a file with the address that alerts of replays go to",
    "HINDCAST_TOKENS_FILE": "docker compose: the tokens file of API and gateway",
    "HINDCAST_GRAFANA_PASSWORD_FILE": "docker compose: Grafana's password",
    "HINDCAST_KAFKA_VERSION": "docker compose: the version of Kafka's image",
    "XDG_STATE_HOME": "where state lies: `~/.local/state` if not given",
    "XDG_CACHE_HOME": "where built servers and recordings lie: `~/.cache` if not given",
}
"""Variables that belong to no service."""


def kinds() -> list[type[Settings]]:
    """Return every class of settings that reads the environment."""
    from services.api import settings as _api  # noqa: F401 - a class of settings is known once it is imported
    from services.detect import settings as _detect  # noqa: F401
    from services.exporters import settings as _exporters  # noqa: F401
    from services.gateway import settings as _gateway  # noqa: F401
    from services.kit import kafka as _kafka  # noqa: F401
    from services.kit import service as _service  # noqa: F401
    from services.notify import settings as _notify  # noqa: F401
    from services.notify.receiver import settings as _receiver  # noqa: F401
    from services.replay import settings as _replay  # noqa: F401
    from services.sink import settings as _sink  # noqa: F401
    from services.stack import settings as _stack  # noqa: F401

    return [kind for kind in _below(Settings) if kind.model_config.get("env_prefix")]


def _below(base: type[Settings]) -> Iterator[type[Settings]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)


def by_prefix() -> dict[str, dict[str, FieldInfo]]:
    """Return the settings by the beginning of their names, in the order of the page."""
    found: dict[str, dict[str, FieldInfo]] = {prefix: {} for prefix in _TITLES}
    for kind in kinds():
        found[kind.model_config["env_prefix"]] |= kind.model_fields
    return found


def settings() -> str:
    """Return the page."""
    parts = []
    for prefix, fields in by_prefix().items():
        rows = [
            (code(prefix + name.upper()), _type(name, field, fields), code(_default(field)), field.description or "")
            for name, field in fields.items()
        ]
        parts.append(f"## {_TITLES[prefix]}\n\n" + table(("setting", "type", "default", "what it is"), rows))
    others = table(("variable", "what it is"), [(code(name), what) for name, what in OTHERS.items()])
    return page("Settings", _ABOUT, *parts, f"## Others\n\n{others}")


def _type(name: str, field: FieldInfo, fields: Mapping[str, FieldInfo]) -> str:
    if name in secrets_among(fields):
        return "secret"
    wanted = _plain(field.annotation)
    return wanted + (", needed" if field.is_required() else "")


def _plain(annotation: Any) -> str:
    """Return a type in plain words."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain(get_args(annotation)[0])
    if origin is Literal:
        return ", ".join(code(value) for value in get_args(annotation))
    if origin in {Union, types.UnionType}:
        return _plain(next(part for part in get_args(annotation) if part is not type(None)))
    if origin is tuple:
        return f"list of {_plain(get_args(annotation)[0])}s"
    if origin is dict:
        return "table"
    words = {"int": "whole number", "float": "number", "bool": "true or false", "Path": "path", "HttpUrl": "address"}
    return words.get(annotation.__name__, "text")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value in (None, (), {}, ""):
        return ""
    if isinstance(value, tuple):
        shown = [_path(part) for part in value]
        folder = str(Path(shown[0]).parent)
        return shown[0] if len(shown) == 1 else f"{folder}/*{Path(shown[0]).suffix}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return _path(value) if isinstance(value, Path) else str(value)


def _path(path: Path) -> str:
    """Return a path as it is on every machine: of this repository, or of the user's folders."""
    if path.is_relative_to(_ROOT):
        return str(path.relative_to(_ROOT))
    at = path.parts.index("hindcast")
    home = "$XDG_CACHE_HOME" if path.parts[at + 1] == "servers" else "$XDG_STATE_HOME"
    return "/".join((home, *path.parts[at:]))
