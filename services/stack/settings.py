"""Settings of the native stack: HINDCAST_STACK_* in the environment."""

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, HttpUrl, SecretStr, TypeAdapter, ValidationError
from pydantic_settings import SettingsConfigDict

from services.kit import folders
from services.kit.errors import UsageError
from services.kit.secret import Secret, secrets_among
from services.kit.settings import Settings, load
from services.kit.shipped import shipped

ENV_PREFIX = "HINDCAST_STACK_"
_ALERT_RULES = shipped("alert-rules")

Port = Annotated[int, Field(ge=0, le=65535, description="Its port on 127.0.0.1; 0: any free one.")]
# What Prometheus, Thanos and Alertmanager accept as a duration of one unit.
Duration = Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m|h|d|w|y)$")]
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}


def seconds(duration: Duration) -> float:
    """Return a duration's length in seconds."""
    number, unit = re.findall(r"[0-9]+|[a-z]+", duration)
    return int(number) * _UNITS_S[unit]


def default_cache_dir() -> Path:
    """Where built servers are kept: `$XDG_CACHE_HOME/hindcast/servers`."""
    return folders.cache_dir("servers")


def default_state_dir() -> Path:
    """Where a stack keeps data, configuration and logs: `$XDG_STATE_HOME/hindcast/stack`."""
    return folders.state_dir("stack")


def _is_url(given: SecretStr | None) -> SecretStr | None:
    try:
        TypeAdapter(HttpUrl | None).validate_python(given and given.get_secret_value())
    except ValidationError:
        raise ValueError("is no http address") from None
    return given


class StackSettings(Settings):
    """What can be chosen about the native stack. Every port is on 127.0.0.1; 0 lets the system choose."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    cache_dir: Path = Field(default_factory=default_cache_dir)
    """Where the built servers are kept."""
    state_dir: Path = Field(default_factory=default_state_dir)
    """Where the stack keeps data, configuration and logs."""

    kafka_port: Port = 0
    kafka_controller_port: Port = 0
    prometheus_port: Port = 0
    alertmanager_port: Port = 0
    sidecar_http_port: Port = 0
    sidecar_grpc_port: Port = 0
    receive_write_port: Port = 0
    receive_http_port: Port = 0
    receive_grpc_port: Port = 0
    store_http_port: Port = 0
    store_grpc_port: Port = 0
    query_http_port: Port = 0
    query_grpc_port: Port = 0
    compact_http_port: Port = 0
    prometheus_monitor_port: Port = 0
    sidecar_monitor_http_port: Port = 0
    sidecar_monitor_grpc_port: Port = 0
    prometheus_1_port: Port = 0
    sidecar_1_http_port: Port = 0
    sidecar_1_grpc_port: Port = 0

    kafka_heap: Annotated[str, Field(pattern=r"^[0-9]+[mg]$")] = "512m"
    """Maximum heap of the broker. 512m carries the demo and the tests (about 350 MB resident)."""
    out_of_order_window: Duration = "12h"
    """How far behind the newest sample Prometheus and Receive still accept one: room for a second replay."""
    prometheus_retention: Duration = "30d"
    """How long Prometheus keeps samples."""
    prometheus_pair: bool = False
    """A second Prometheus that is written the same samples and evaluates the same rules: either may be away."""
    block_duration: Duration = "2h"
    """Length of the blocks of Prometheus and Receive. 2h in operation; tests that want a block sooner make it
    shorter."""
    rule_files: tuple[Path, ...] = Field(
        default_factory=lambda: tuple(sorted((_ALERT_RULES / "detectors").glob("*.yaml"))),
    )
    """Rule files that Prometheus evaluates at wall time: those of the detectors, which look at live series only."""
    monitor_rule_files: tuple[Path, ...] = (_ALERT_RULES / "pipeline.yaml",)
    """Rule files about hindcast itself, evaluated by the Prometheus that watches it."""
    monitor_token_file: Path | None = None
    """A file with a viewer's token, for the Prometheus that watches hindcast: where the services are given tokens
    files."""
    alertmanager_config: Path = _ALERT_RULES / "alertmanager.yaml"
    """The Alertmanager configuration, used as it is."""
    webhook_url: Annotated[Secret, AfterValidator(_is_url)] = None
    """Where alerts of replays are delivered; without one they are kept in Alertmanager and sent nowhere."""
    log_bytes: Annotated[int, Field(ge=1)] = 50_000_000
    """A process' log that is longer is begun anew; what it had is kept beside it, as NAME.log.1."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 180.0
    """How long a process may take from start to healthy: seconds, but minutes on two cores with a load of twenty."""


def load_settings(**given: object) -> StackSettings:
    """Return the settings from the environment, with `given` on top.

    Raises UserError (exit code 2) naming every wrong value, and every HINDCAST_STACK_* variable that is not a setting:
    pydantic-settings ignores those, and a misspelt port would go unnoticed.
    """
    names = [*StackSettings.model_fields, *(f"{name}_file" for name in secrets_among(StackSettings.model_fields))]
    known = {f"{ENV_PREFIX}{name}".upper() for name in names}
    unknown = sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
    if unknown:
        raise UsageError(
            f"unknown setting(s) in the environment: {', '.join(unknown)}",
            remedy=f"the settings are {', '.join(sorted(known))}",
        )
    return load(StackSettings, **given)
