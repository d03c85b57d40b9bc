"""Settings of detect: HINDCAST_DETECT_* in the environment."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.kit.settings import Settings

Seconds = Annotated[float, Field(gt=0)]


class DetectSettings(Settings):
    """What is detected, and where state survives a crash."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_DETECT_", extra="forbid")

    state_dir: Path
    """A directory that survives the process; instances that take over from each other must share it."""
    config: Path | None = None
    """A detectors.yaml; without it every detector runs with its defaults."""
    instance: str | None = None
    """A name that stays the same over restarts: Kafka then gives this instance its partitions back at once, and a
    crash costs no session timeout. Each instance needs its own."""
    snapshot_interval_s: Seconds = 5.0
    """How often state is written: what came since is read again after a crash."""
    idle_timeout_s: Seconds = 10.0
    """A stream of a feed without watermarks that is silent for so long no longer holds the others back."""
    lateness_s: Annotated[float, Field(ge=0)] = 2.0
    """How far behind the latest reading of a stream others may still come, in a feed without watermarks."""
    waiting_bytes: Annotated[int, Field(ge=1)] = 16 * 1024 * 1024
    """Rows that came before those of other streams for the same time wait in memory. While they take more than this,
    only the streams that they wait for are read on, as long as Kafka has more of these."""
    forget_after_days: Annotated[float, Field(gt=0)] = 7.0
    """After so many days of event time without anything of a machine that the topology does not name, and that no job
    runs on, it is forgotten: what was open on it is resolved, and if it comes back it is a new one. Seven days are a
    policy: one that is away for a weekend, or for a repair of some days, is the same."""
