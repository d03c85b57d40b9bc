"""The documents of a recording: manifest, topology, events, jobs, labels. Unknown keys are kept in all of them."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.kit.printable import Printable
from services.recording.instants import InstantMs


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class Cluster(_Document):
    """The machines a recording is of; ``gpu_model`` is a comma-separated list where there are several."""

    name: str
    nodes: int
    gpus: int
    gpu_model: str


class StreamInfo(_Document):
    """One stream file: how often it is sampled (None where it is not periodic), its rows and its content hash (None
    where whoever wrote it gave none).
    """

    interval_s: float | None = None
    rows: int = Field(ge=0)
    sha256: str | None = None


class FileInfo(_Document):
    """One file that is not a stream, and its content hash, or None."""

    sha256: str | None = None


class Manifest(_Document):
    """recording.yaml. ``start`` and ``end`` are milliseconds since the epoch, both included."""

    format: str
    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: Printable
    summary: Printable
    origin: Literal["synthetic", "captured", "imported"]
    source: dict[str, Any] = {}
    seed: int | None = None
    start: InstantMs
    end: InstantMs
    cluster: Cluster
    streams: dict[str, StreamInfo] = {}
    files: dict[str, FileInfo] = {}


class Gpu(_Document):
    """A GPU as it should be: link generation and width, power limit in watts."""

    gpu: int
    uuid: str | None = None
    pci_bus_id: str | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    power_limit_w: float | None = None


class Nic(_Document):
    """A network port of a node and where its cable goes."""

    nic: str
    switch: str | None = None
    port: str | None = None
    gbps: float | None = None


class Node(_Document):
    """A machine with GPUs."""

    name: str
    rack: str | None = None
    pod: str | None = None
    gpu_model: str | None = None
    power_feeds: list[str] = []
    gpus: list[Gpu] = []
    nics: list[Nic] = []


class Switch(_Document):
    """A network switch."""

    name: str
    role: str | None = None
    pod: str | None = None


class Link(_Document):
    """A cable between two switch ports, each written ``switch:port``."""

    a: str
    b: str
    gbps: float | None = None


class Mount(_Document):
    """A file system as the nodes see it."""

    mount: str
    kind: str | None = None


class Topology(_Document):
    """topology.json: the machines and how they are wired."""

    nodes: list[Node] = []
    switches: list[Switch] = []
    links: list[Link] = []
    mounts: list[Mount] = []


class Event(_Document):
    """One log record; ``timestamp`` is when it was received, by the collector's clock."""

    timestamp: InstantMs
    source: Literal["kernel", "sel", "fabricmanager", "scheduler", "job"]
    node: str | None = None
    job_id: str | None = None
    rank: int | None = None
    severity: Literal["info", "warning", "error", "critical"]
    message: Printable


class Job(_Document):
    """One job; ``end`` is None while it runs. ``gpus`` is given only where the job has part of a node."""

    job_id: str
    name: Printable = ""
    user: Printable = ""
    nodes: list[str]
    gpus_per_node: int | None = None
    submit: InstantMs | None = None
    start: InstantMs
    end: InstantMs | None = None
    state: str
    ranks: dict[str, Any] | None = None
    gpus: dict[str, list[int]] | None = None


class Label(_Document):
    """One truth about the recording: a fault, or (``distractor``) a stretch that looks wrong and is not."""

    id: str
    fault: str
    entity: dict[str, str | int]
    onset: InstantMs
    end: InstantMs
    within_s: float = Field(ge=0)
    also: list[dict[str, str | int]] = []
    job_id: str | None = None
    cause: str | None = None
    note: Printable | None = None
    incident: str | None = None
    root: bool | None = None
    impact: dict[str, int | float] | None = None
    optional: bool | None = None
    distractor: bool | None = None


def words_of(entity: Mapping[str, Any]) -> str:
    """Return an entity in words."""
    return " ".join(f"{key}={value}" for key, value in entity.items())
