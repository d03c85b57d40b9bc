"""All dashboards, and the files they are committed as."""

from collections.abc import Callable
from pathlib import Path

from services.dashboards.board import TITLES
from services.dashboards.executive import executive
from services.dashboards.fabric import fabric
from services.dashboards.fleet import fleet
from services.dashboards.incident import incident
from services.dashboards.job import job
from services.dashboards.model import Dashboard
from services.dashboards.node import node_and_gpu
from services.dashboards.pipeline import pipeline
from services.dashboards.power import power
from services.dashboards.replays import replays

_BUILD: dict[str, Callable[[], Dashboard]] = {
    "fleet": fleet,
    "incident": incident,
    "node": node_and_gpu,
    "job": job,
    "fabric": fabric,
    "power": power,
    "replay": replays,
    "pipeline": pipeline,
    "executive": executive,
}
NAMES = tuple(TITLES)
# Grafana's folders: on-call and researchers, those who run hindcast, those who pay.
FOLDERS = {"replay": "hindcast", "pipeline": "hindcast", "executive": "reports"}


def dashboard(name: str) -> Dashboard:
    """Return the dashboard `name`, one of `NAMES`."""
    return _BUILD[name]()


def documents() -> dict[Path, str]:
    """Return the dashboards' files, relative to the folder of dashboards, with their text."""
    return {Path(FOLDERS.get(name, "clusters")) / f"{name}.json": dashboard(name).to_json() for name in NAMES}
