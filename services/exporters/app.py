"""The exporters of a recorded cluster over HTTP: each a path, as the recording's time goes by."""

import json
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.exporters.latest_rows import EXPORTERS, Jobs, Shown
from services.exporters.settings import ExportersSettings
from services.kit.errors import UsageError
from services.kit.middleware import Middleware
from services.recording.reader import Recording


@dataclass(frozen=True)
class Playhead:
    """Where in a recording's time it is: `speed` times as fast as the clock (seconds), from `start` (epoch ms) on."""

    start: int
    end: int
    speed: float
    clock: Callable[[], float]
    began_s: float

    def at(self) -> int:
        """Return the recording's time, epoch ms."""
        return self.start + round((self.clock() - self.began_s) * 1000 * self.speed)

    @property
    def lasts_s(self) -> float:
        """For how many seconds of the clock there is something to show."""
        return (self.end - self.start) / 1000 / self.speed


class Exporters(Protocol):
    """What is scraped."""

    def targets(self, address: str) -> list[dict[str, Any]]:
        """Return all targets as Prometheus' service discovery by HTTP or file has them; `address` is HOST:PORT."""
        ...

    def text(self, exporter: str, target: str) -> bytes | None:
        """Return what an exporter answers now, None where it does not; KeyError where there is no such exporter."""
        ...


class Fleet:
    """All exporters of a recording. UserError where it has no stream that an exporter gives."""

    def __init__(self, recording: Recording, playhead: Playhead, dcgm_fields: Collection[str] | None = None) -> None:
        self.cluster, self.playhead = recording.manifest.cluster.name, playhead
        jobs = Jobs(recording)
        self._shown = {
            EXPORTERS[stream]: Shown(recording, stream, jobs, playhead.start, dcgm_fields if stream == "dcgm" else None)
            for stream in recording.streams()
            if stream in EXPORTERS
        }
        self._lock = threading.Lock()
        if not self._shown:
            there = ", ".join(recording.streams()) or "no stream at all"
            remedy = f"give one with {', '.join(EXPORTERS)}"
            raise UsageError(f"{recording.path}: no exporter gives {there}", remedy=remedy)

    def targets(self, address: str) -> list[dict[str, Any]]:
        """Return all targets."""
        with self._lock:
            at = self.playhead.at()
            named = [(exporter, shown, shown.targets(at)) for exporter, shown in self._shown.items()]
        return [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": f"/{exporter}/{target}/metrics",
                    "instance": shown.instance(target),
                    "job": f"{exporter}-exporter",
                    "cluster": self.cluster,
                },
            }
            for exporter, shown, targets in named
            for target in targets
        ]

    def text(self, exporter: str, target: str) -> bytes | None:
        """Return what an exporter answers now."""
        with self._lock:
            shown = self._shown[exporter]
            found = None if self.playhead.at() > self.playhead.end else shown.metrics(target, self.playhead.at())
        if found is None:
            return None
        if exporter == "node":
            name = Metric("node_uname_info", "The node's name.", "gauge")
            name.add_sample("node_uname_info", {"nodename": target}, 1.0)
            found = [name, *found]
        return generate_latest(_Once(found))


@dataclass(frozen=True)
class _Once:
    """What the library takes metrics from."""

    metrics: list[Metric]

    def collect(self) -> list[Metric]:
        return self.metrics


def build(fleet: Exporters, settings: ExportersSettings) -> Starlette:
    """Return the application: ``/sd`` for Prometheus' http_sd_configs, and ``/EXPORTER/TARGET/metrics``."""

    def discovery(request: Request) -> Response:
        return JSONResponse(fleet.targets(request.url.netloc))

    def metrics(request: Request) -> Response:
        try:
            text = fleet.text(request.path_params["exporter"], request.path_params["target"])
        except KeyError:
            return PlainTextResponse("no such exporter; /sd lists them\n", 404)
        if text is None:
            return PlainTextResponse("at this time of the recording it does not answer\n", 503)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    app = Starlette(routes=[Route("/sd", discovery), Route("/{exporter}/{target}/metrics", metrics)])
    app.add_middleware(Middleware, settings=settings)
    return app


def discovery_file(fleet: Fleet, address: str) -> str:
    """Return the content of a file for Prometheus' file_sd_configs."""
    return json.dumps(fleet.targets(address.partition("//")[2]), indent=1) + "\n"
