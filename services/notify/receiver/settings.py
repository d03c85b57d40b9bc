"""Settings of the webhook receiver: HINDCAST_RECEIVER_* in the environment."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.kit.folders import state_dir
from services.kit.settings import Settings


class ReceiverSettings(Settings):
    """Where the receiver listens, and where it keeps what it gets."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_RECEIVER_", extra="forbid")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 9099
    state_dir: Path = Field(default_factory=lambda: state_dir("receiver"))
