"""What Grafana would ask: variables filled in, queries sent to Prometheus or Thanos, answers with their duration."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from services.dashboards.model import Annotation, Dashboard, QueryPanel, Target, Variable
from services.kit.errors import ServerError

Floats = NDArray[np.float64]
SCRAPE_S = 30
"""The data source's scrape interval (provisioning/datasources): dcgm-exporter collects every 30 s."""
POINTS = 240
Values = Mapping[str, str]


@dataclass(frozen=True)
class Window:
    """A time range in epoch milliseconds, both ends included."""

    start_ms: int
    end_ms: int

    @property
    def seconds(self) -> int:
        """Return its length."""
        return max(1, (self.end_ms - self.start_ms) // 1000)

    def step_s(self, points: int = POINTS) -> int:
        """Return the step at which about so many points fit."""
        return max(1, round(self.seconds / points))


@dataclass(frozen=True)
class Series:
    """One series of an answer: labels, `times` (n,) in epoch seconds, `values` (n,)."""

    labels: Mapping[str, str]
    times: Floats
    values: Floats


@dataclass(frozen=True)
class Answer:
    """What a query gave, and how long the server took."""

    panel: QueryPanel
    target: Target
    series: tuple[Series, ...]
    seconds: float


class Source:
    """A Prometheus or Thanos Query, asked as Grafana asks it."""

    def __init__(self, url: str, window: Window) -> None:
        self._client = httpx.Client(base_url=url, timeout=60)
        self.url = url
        self.window = window

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def values(self, dashboard: Dashboard, chosen: Values) -> dict[str, str]:
        """Return what each variable stands for in a query: as `chosen`, or as on opening the dashboard."""
        found: dict[str, str] = {}
        known = {variable.name for variable in dashboard.templating.list}
        for variable in dashboard.templating.list:
            if variable.name in chosen:
                found[variable.name] = _escaped(variable, chosen[variable.name])
            elif variable.include_all and variable.all_value is not None:
                found[variable.name] = variable.all_value
            else:
                options = self.options(variable, found)
                found[variable.name] = _alternatives(options) if variable.include_all else _first(variable, options)
        unknown = sorted(set(chosen) - known)
        return found | {name: re.escape(chosen[name]) for name in unknown}

    def options(self, variable: Variable, values: Values) -> list[str]:
        """Return a variable's options, in its order."""
        query = self.filled(variable.query.query, values, self.window.step_s())
        if variable.query.qry_type == 3:
            raw = [_line(entry["metric"]) for entry in self._instant(query.removeprefix("query_result(")[:-1])]
        else:
            inner = query.removeprefix("label_values(").removesuffix(")")
            selector, _, label = inner.rpartition(",")
            span = {"start": self.window.start_ms / 1000, "end": self.window.end_ms / 1000}
            path = f"/api/v1/label/{label.strip()}/values"
            raw = [str(one) for one in self._ask("GET", path, {"match[]": selector, **span})]
        if variable.regex:
            matches = (re.search(variable.regex.strip("/"), one) for one in raw)
            raw = [match.group(1) for match in matches if match]
        return sorted(set(raw)) if variable.sort else list(dict.fromkeys(raw))

    def filled(self, expression: str, values: Values, step_s: int) -> str:
        """Return a query with all variables filled in, Grafana's own and the dashboard's."""
        own = {
            "__range_s": str(self.window.seconds),
            "__range": f"{self.window.seconds}s",
            "__interval": f"{step_s}s",
            "__rate_interval": f"{max(step_s + SCRAPE_S, 4 * SCRAPE_S)}s",
        }
        known = {**own, **values}

        def fill(match: re.Match[str]) -> str:
            return known.get(match[1], match[0])

        return re.sub(r"\$(\w+)", fill, expression)

    def answer(self, panel: QueryPanel, target: Target, values: Values) -> Answer:
        """Ask a panel's query. Raises UserError with the server's words where it refuses."""
        step_s = self.window.step_s(panel.max_data_points or POINTS)
        query = self.filled(target.expr, values, step_s)
        began = time.perf_counter()
        found = self._instant(query) if target.instant else self._range(query, step_s)
        taken_s = time.perf_counter() - began
        return Answer(panel, target, tuple(_series(entry) for entry in found), taken_s)

    def answers(self, dashboard: Dashboard, values: Values) -> tuple[Answer, ...]:
        """Ask every query of every panel. Raises UserError as `answer` does."""
        return tuple(self.answer(panel, target, values) for panel, target in dashboard.queries())

    def marks(self, annotation: Annotation, values: Values) -> list[Series]:
        """Ask an annotation's query."""
        step_s = self.window.step_s()
        return self.ask_range(self.filled(annotation.expr, values, step_s), step_s)

    def ask_range(self, query: str, step_s: int) -> list[Series]:
        """Ask a query as it stands, over the window."""
        return [_series(entry) for entry in self._range(query, step_s)]

    def _instant(self, query: str) -> list[dict[str, Any]]:
        body = {"query": query, "time": self.window.end_ms / 1000}
        return list(self._ask("POST", "/api/v1/query", body)["result"])

    def _range(self, query: str, step_s: int) -> list[dict[str, Any]]:
        span = {"start": self.window.start_ms / 1000, "end": self.window.end_ms / 1000, "step": step_s}
        return list(self._ask("POST", "/api/v1/query_range", {"query": query, **span})["result"])

    def _ask(self, method: str, path: str, sent: Mapping[str, Any]) -> Any:
        try:
            answer = self._client.request(
                method, path, params=sent if method == "GET" else None, data=sent if method == "POST" else None
            )
        except httpx.TransportError as error:
            raise ServerError(
                f"nothing answers at {self.url}: {type(error).__name__}",
                remedy="give --url of a Prometheus or Thanos Query that runs (hindcast stack up shows one)",
            ) from error
        if answer.is_error:
            raise ServerError(
                f"{self.url}{path} answers {answer.status_code}: {answer.text[:500]}\nto {sent.get('query', '')}"
            )
        return answer.json()["data"]


def legend(target: Target, labels: Mapping[str, str]) -> str:
    """Return a line's name."""
    if target.legend_format == "__auto":
        return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name != "__name__")
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), target.legend_format).strip()


def _alternatives(options: list[str]) -> str:
    escaped = [re.escape(option) for option in options]
    return f"({'|'.join(escaped)})" if len(escaped) != 1 else escaped[0]


def _escaped(variable: Variable, value: str) -> str:
    return value if variable.literal else re.escape(value)


def _first(variable: Variable, options: list[str]) -> str:
    return _escaped(variable, options[0]) if options else ""


def _line(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _series(entry: Mapping[str, Any]) -> Series:
    points = entry["values"] if "values" in entry else [entry["value"]]
    return Series(
        labels=entry["metric"],
        times=np.array([point[0] for point in points], np.float64),
        values=np.array([float(point[1]) for point in points], np.float64),
    )
