"""Settings of the API: HINDCAST_API_* in the environment."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from services.kit.folders import state_dir
from services.kit.listening import Listening, Port
from services.kit.secret import Address, Secret
from services.kit.tls import Authorities


class SourceSettings(BaseModel):
    """A server that can be captured from: its address, and how it is asked, as of `hindcast capture`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Address
    bearer_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Authorities = None
    tenant: str | None = None


def _by_url(given: object) -> object:
    return {"url": given} if isinstance(given, str) else given


class ApiSettings(Listening):
    """Where it listens, what it keeps and where, who may ask, and how much it takes."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_API_", extra="forbid")

    port: Port = 8490
    data_dir: Path = Field(default_factory=lambda: state_dir("api"))
    """Recordings that were imported (in `recordings/`) and the state (`api.sqlite`)."""
    library: tuple[Path, ...] = ()
    """Folders of recordings, or recordings, that are shown too and never changed."""
    replay_url: Address = "http://127.0.0.1:8480"
    """Where the replay service is reached."""
    replay_token: Secret = None
    """An operator's token for the replay service, where it asks for one."""
    replay_ca_file: Authorities = None
    """The authority of the replay service's certificate, PEM; the system's if not given."""
    alertmanager_url: Address = "http://127.0.0.1:9093"
    """Asked for the alerts of replays that are followed."""
    sources: dict[str, Annotated[SourceSettings, BeforeValidator(_by_url)]] = Field(default_factory=dict)
    """Where recordings can be captured from, a Prometheus or Thanos Query by name, as JSON: its address, or an object
    of `url`, `bearer_file`, `user`, `password_file`, `ca_file` and `tenant`. No other address is asked."""
    upload_bytes: Annotated[int, Field(ge=1)] = 2 * 1024**3
    """The largest upload, as it is sent."""
    unpacked_bytes: Annotated[int, Field(ge=1)] = 16 * 1024**3
    """The largest upload once it is unpacked."""
    rows: Annotated[int, Field(ge=1)] = 1_000_000_000
    """How many rows an upload may have: columns that repeat take hardly any place in a file."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Runs at a time, each in a process of its own."""
    task_workers: Annotated[int, Field(ge=1, le=16)] = 1
    """Tasks (postmortems, scores, rules, backtests, captures, imports, samples) at a time, each a process."""
    waiting: Annotated[int, Field(ge=1)] = 200
    """How many runs may wait."""
    console_dir: Path = Path(__file__).resolve().parent / "static"
    """The console as it was built; where it is not there, the API is served alone."""
    viewers: Annotated[int, Field(ge=1)] = 200
    """Browsers that follow runs and replays at a time."""
