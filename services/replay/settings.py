"""Settings of the replay service: HINDCAST_REPLAY_* in the environment."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from services.kit.folders import state_dir
from services.kit.listening import Listening, Port, is_loopback
from services.kit.secret import Address, Secret
from services.kit.tls import Connecting


class ReplaySettings(Listening):
    """Where the control API listens, what it may read, and what it keeps."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_REPLAY_", extra="forbid")

    port: Port = 8480
    state_dir: Path = Field(default_factory=lambda: state_dir("replay"))
    """One small file a replay: what is needed to go on after a crash."""
    recordings: Annotated[tuple[Path, ...], Field(validate_default=True)] = ()
    """Folders that recordings may lie in. Without any, and bound to loopback, every recording may be replayed."""
    receive_data: Path | None = None
    """Where Thanos Receive keeps its tenants, if that is on this machine: `rm` marks the replay's tenant there, and the
    stack deletes what is marked before it starts Receive next."""
    in_flight_bytes: Annotated[int, Field(ge=1024 * 1024)] = 32 * 1024 * 1024
    """What may be on its way to the broker at a time, by replay."""
    warm_s: Annotated[float, Field(ge=0)] = 600.0
    """Event time before the target of a seek that is sent first, so that detectors are warm."""

    @field_validator("recordings")
    @classmethod
    def _folders_needed(cls, folders: tuple[Path, ...], info: ValidationInfo) -> tuple[Path, ...]:
        if not folders and not is_loopback(info.data.get("host", "")):
            raise ValueError("beyond a loopback address, name the folders that may be read")
        return folders


class ControlSettings(Connecting):
    """How the control API is reached: HINDCAST_REPLAY_URL, and HINDCAST_REPLAY_TOKEN where it asks for a token."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_REPLAY_", extra="forbid")
    url: Address | None = None
    """Where the replay service is reached; the native stack's own if not given."""
    token: Secret = None
    """An operator's token, where the replay service asks for one."""
