"""Settings of the simulated exporters: HINDCAST_EXPORTERS_* in the environment."""

from pydantic_settings import SettingsConfigDict

from services.kit.listening import Listening, Port


class ExportersSettings(Listening):
    """Where all of them listen: each is a path."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_EXPORTERS_", extra="forbid")
    port: Port = 9400
