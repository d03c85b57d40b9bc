"""How many samples a Prometheus or Thanos holds, by query: never by head counters, which count what was lost too."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from services.kit.errors import ServerError
from services.kit.series import table


@dataclass(frozen=True)
class Held:
    """What one metric name holds of a replay: samples, and the sum of their values as a checksum."""

    samples: int
    total: float


def held(url: str, *, replay: str, start_ms: int, end_ms: int) -> dict[str, Held]:
    """Return by metric name what the server at `url` holds of `replay` from `start_ms` to `end_ms`, both included.

    Times are as landed (recording time plus shift). One query a metric name: a server that evaluates whole
    recordings at once would exceed its sample limit.
    """
    with httpx.Client(base_url=url, timeout=120) as client:
        names = _query_names(client, replay, start_ms, end_ms)
        found = {}
        # A range is open at its left end: one millisecond more takes the first sample in.
        reach = f"[{end_ms - start_ms + 1}ms]"
        for name in names:
            selector = f'{{__name__="{name}",{_of(replay)}}}{reach}'
            samples = _scalar(client, f"sum(count_over_time({selector}))", end_ms)
            found[name] = Held(int(samples), _scalar(client, f"sum(sum_over_time({selector}))", end_ms))
        return found


def differences(got: Mapping[str, Held], want: Mapping[str, Held]) -> list[str]:
    """Return a line for each metric that has not as many samples as it should, or another sum of values; no `up`."""
    wrong = []
    for name in sorted({*got, *want} - {"up"}):
        is_held, due = got.get(name, Held(0, 0.0)), want.get(name, Held(0, 0.0))
        same = math.isclose(is_held.total, due.total, rel_tol=1e-9, abs_tol=1e-6)
        if is_held.samples != due.samples or not (same or (math.isnan(is_held.total) and math.isnan(due.total))):
            wrong.append(
                f"{name}: {is_held.samples:,} samples (sum {is_held.total}), not {due.samples:,} ({due.total})"
            )
    return wrong


def samples_held(url: str, *, replay: str, start_ms: int, end_ms: int) -> int:
    """Return how many samples of the recording itself the server holds: all of `held` but `up`."""
    by_name = held(url, replay=replay, start_ms=start_ms, end_ms=end_ms)
    return sum(entry.samples for name, entry in by_name.items() if name != "up")


def _of(replay: str) -> str:
    """Return what selects a replay's series, and not what the replay service reports of it to whom watches hindcast."""
    return f'replay="{replay}",job!="hindcast"'


def _query_names(client: httpx.Client, replay: str, start_ms: int, end_ms: int) -> list[str]:
    answer = client.get(
        "/api/v1/label/__name__/values",
        params={"match[]": f"{{{_of(replay)}}}", "start": start_ms / 1000, "end": end_ms / 1000},
    )
    # What findings leave is no telemetry: nobody has sent it.
    ours = {table().findings.active, table().findings.started}
    return [str(name) for name in _data(answer) if name not in ours]


def _scalar(client: httpx.Client, query: str, at_ms: int) -> float:
    answer = client.post("/api/v1/query", data={"query": query, "time": f"{at_ms / 1000:.3f}"})
    result = _data(answer)["result"]
    return float(result[0]["value"][1]) if result else 0.0


def _data(answer: httpx.Response) -> Any:
    if answer.is_error:
        raise ServerError(f"{answer.request.url.host} answers {answer.status_code}: {answer.text[:300]}")
    return answer.json()["data"]
