"""Settings of the webhook receiver: HINDCAST_RECEIVER_* in the environment."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.kit.folders import state_dir
from services.kit.listening import Listening, Port


class ReceiverSettings(Listening):
    """Where the receiver listens, and where it keeps what it gets."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_RECEIVER_", extra="forbid")
    port: Port = 9099
    state_dir: Path = Field(default_factory=lambda: state_dir("receiver"))
    """Where it keeps what it received."""
