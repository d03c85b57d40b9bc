"""Settings of the API: HINDCAST_API_* in the environment."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.kit.folders import state_dir
from services.kit.listening import Listening, Port
from services.kit.secret import Address, Secret
from services.kit.tls import Authorities


class ApiSettings(Listening):
    """Where it listens, what it keeps and where, who may ask, and how much it takes."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_API_", extra="forbid")

    port: Port = 8490
    # Recordings that were imported (in `recordings/`) and the state (`api.sqlite`).
    data_dir: Path = Field(default_factory=lambda: state_dir("api"))
    # Folders of recordings, or recordings, that are shown too and never changed.
    library: tuple[Path, ...] = ()
    # The control API of the replay service; an operator's token for it, and whose certificate it has, where need be.
    replay_url: Address = "http://127.0.0.1:8480"
    replay_token: Secret = None
    replay_ca_file: Authorities = None
    # Asked which alerts it was sent, of replays that are followed; Kafka's settings are HINDCAST_KAFKA_*.
    alertmanager_url: Address = "http://127.0.0.1:9093"
    # Where recordings can be captured from: a Prometheus or Thanos Query by name, as JSON. No other address is asked.
    sources: dict[str, Address] = Field(default_factory=dict)
    # What an upload may be: as it comes, unpacked, and in rows (columns that repeat hardly take place in a file).
    upload_bytes: Annotated[int, Field(ge=1)] = 2 * 1024**3
    unpacked_bytes: Annotated[int, Field(ge=1)] = 16 * 1024**3
    rows: Annotated[int, Field(ge=1)] = 1_000_000_000
    # Runs at a time, each in a process of its own, and how many may wait.
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    # Postmortems, scores, captures and imports at a time, each in a process of its own.
    task_workers: Annotated[int, Field(ge=1, le=16)] = 1
    waiting: Annotated[int, Field(ge=1)] = 200
    # The console as it was built; where it is not there, the API is served alone.
    console_dir: Path = Path(__file__).resolve().parent / "static"
    # Browsers that follow runs and replays at a time.
    viewers: Annotated[int, Field(ge=1)] = 200
