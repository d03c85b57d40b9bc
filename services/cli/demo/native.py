"""The demo on the real servers, as child processes of this one."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.live import Live

from services.cli.demo import incident, report
from services.cli.demo.clock import read_clock
from services.cli.demo.incident import Incident
from services.cli.pipeline import DETECT_GROUP, Pipeline, sink_group
from services.cli.stored_samples import samples_held
from services.kit import topics
from services.kit.errors import ServerError, UserError
from services.kit.kafka import KafkaSettings
from services.kit.times import format_time, parse_time
from services.kit.wait import T, until
from services.stack import state
from services.stack.addresses import Addresses
from services.stack.build import ensure
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from services.stack.settings import load_settings

_LOOK_S = 0.5
_PLAIN_EVERY_S = 5.0  # a line of progress where the output is no terminal
_SETTLE_S = 300.0  # a machine that is busy sends at speed, and lands and detects what it can


def run(speed: float) -> None:
    """Run the demo: on the stack that is up, or else on one of its own that ends with it."""
    console = Console()
    with ThreadPoolExecutor(1) as pool:  # the recording is made while the servers start
        making = pool.submit(incident.prepare)
        running = state.read(load_settings().state_dir)
        if running is not None:
            _show(console, Addresses.from_dict(dict(running.addresses)), making.result(), speed)
            return
        with incident.scratch() as folder, _own_stack(console, Path(folder)) as stack:
            _show(console, stack.addresses, making.result(), speed, check=stack.check)
            if sys.stdin.isatty() and sys.stdout.isatty():
                console.input("\nThe stack is still running: look around. [bold]Enter ends it.[/bold] ")


@contextmanager
def _own_stack(console: Console, folder: Path) -> Iterator[Stack]:
    ensure(load_settings().cache_dir)  # with its own progress: the first time takes minutes
    began = time.monotonic()
    with console.status("starting Kafka, Prometheus, Alertmanager, Thanos and the hindcast services"):
        stack = Stack.start(folder, services=services)
    console.print(f"{len(stack.processes)} processes are healthy after {time.monotonic() - began:.1f} s")
    with stack:
        yield stack


def _show(
    console: Console, addresses: Addresses, shown: Incident, speed: float, check: Callable[[], None] = lambda: None
) -> None:
    pipeline = Pipeline(KafkaSettings(bootstrap=addresses.kafka), addresses.services)
    counters = _Counters.now(addresses)
    status = pipeline.start_replay(
        str(shown.recording),
        speed=speed,
        **{"from": format_time(shown.start_ms), "to": format_time(shown.end_ms)},
    )
    name, unit = status["name"], f"{status['cluster']}/{status['name']}"
    minutes = (shown.end_ms - shown.start_ms) / 60_000
    console.print(f"replaying {minutes:.0f} minutes at {speed:g} times real time as {unit}; by event time:")
    first_alert = _Seen(lambda: _first_alert(addresses.alertmanager, name))
    with _Progress(console, pipeline, counters, name, check, first_alert.look) as progress:
        progress.until(progress.ended, "the replay to end", timeout_s=math.inf)
        what = "what was sent to land and the alert's resolve to be delivered"
        hooks = progress.until(lambda: _resolved(pipeline.webhooks(name)), what)
        groups = (sink_group("prometheus"), DETECT_GROUP)
        progress.until(lambda: pipeline.caught_up(*groups), what)
    console.print(progress.line)

    status = pipeline.status(name)
    clock = read_clock(pipeline, unit)
    mine = (record for record in pipeline.records(topics.FINDINGS) if record.key.startswith(f"{unit}/".encode()))
    finding = min(mine, key=lambda record: record.timestamp)
    console.print()
    alert = first_alert.value
    moments = report.timeline(shown.root, clock, finding, alert, hooks)
    report.show_timeline(console, shown.root, moments)
    report.show_webhook(console, hooks[0]["body"])
    console.print()
    window = {"start_ms": shown.start_ms + status["shift_ms"], "end_ms": shown.end_ms + status["shift_ms"]}
    servers = {"Prometheus": addresses.prometheus, "Thanos Query": addresses.thanos_query}
    held = {label: samples_held(url, replay=name, **window) for label, url in servers.items()}
    equal = report.show_samples(console, sum(status["samples"].values()), held)
    _show_addresses(console, addresses)
    if not equal:
        raise UserError(
            "samples sent and samples held differ", remedy="look at the dead-letter topic and the sink's log"
        )


class _Seen:
    """The first true value that a look gives."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self.value: Any = None

    def look(self) -> None:
        if not self.value:
            self.value = self._look()


@dataclass(frozen=True)
class _Counters:
    """What the services have counted before this replay, which is not this replay's."""

    addresses: Addresses
    landed_before: float
    found_before: float

    @classmethod
    def now(cls, addresses: Addresses) -> "_Counters":
        nothing = cls(addresses, 0.0, 0.0)
        return cls(addresses, nothing.landed(), nothing.found())

    def landed(self) -> float:
        """Return the recording's samples that Prometheus has taken; `up` and staleness markers are not among them."""
        url = self.addresses.services["sink-prometheus"]
        written, made = (_metric(url, f"hindcast_sink_samples_{word}_total") for word in ("written", "made"))
        return max(0.0, written - made - self.landed_before)

    def found(self) -> float:
        """Return the findings made."""
        return _metric(self.addresses.services["detect"], "hindcast_detect_findings_total") - self.found_before


class _Progress:
    """A line on how far a replay and what follows it have come: one that changes, or one every few seconds."""

    def __init__(
        self, console: Console, pipeline: Pipeline, counters: _Counters, name: str, *looks: Callable[[], object]
    ) -> None:
        self._console = console
        self._pipeline = pipeline
        self._counters = counters
        self._name = name
        self._looks = looks
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._printed_s = 0.0
        self._state = ""
        self.line = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def until(self, done: Callable[[], T | None], what: str, timeout_s: float = _SETTLE_S) -> T:
        """Show how things stand until `done` returns something true, and return that; UserError where that fails."""

        def look() -> T | None:
            self._look()
            return done()

        return until(look, timeout_s=timeout_s, what=what, interval_s=_LOOK_S)

    def ended(self) -> bool:
        """Return whether the replay has sent everything."""
        return self._state == "ended"

    def _look(self) -> None:
        for look in self._looks:
            look()
        status = self._pipeline.status(self._name)
        self._state = status["state"]
        if self._state not in ("running", "paused", "ended"):
            raise ServerError(f"the replay ended as {self._state}: {status['error']}")
        self.line = _progress(status, self._counters)
        if self._console.is_terminal:
            self._live.update(self.line, refresh=True)
        elif time.monotonic() - self._printed_s >= _PLAIN_EVERY_S:
            self._printed_s = time.monotonic()
            self._console.print(self.line)


def _progress(status: dict[str, Any], counters: _Counters) -> str:
    return (
        f"{status['event_time'][:19]}Z  sent {sum(status['samples'].values()):>9,}  "
        f"landed {counters.landed():>9,.0f}  findings {counters.found():.0f}  lag {status['lag_s']:.1f} s"
    )


def _metric(url: str, name: str) -> float:
    try:
        text = httpx.get(f"{url}/metrics", timeout=60).text
    except httpx.TransportError as error:
        raise ServerError(
            f"the service at {url} does not answer any more: {type(error).__name__}",
            remedy="`make up` keeps the logs of the processes: try the replay there, and read them",
        ) from error
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def _first_alert(alertmanager: str, name: str) -> dict[str, Any] | None:
    """Return the replay's first alert with when Alertmanager took it; it is re-sent, so only an early look shows it."""
    alerts = httpx.get(f"{alertmanager}/api/v2/alerts", params={"filter": f'replay="{name}"'}, timeout=60).json()
    first = min(alerts, key=lambda alert: str(alert["updatedAt"]), default=None)
    return first and {**first, "sent_ms": parse_time(first["updatedAt"])}


def _resolved(hooks: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    return hooks if any(hook["body"]["status"] == "resolved" for hook in hooks) else None


def _show_addresses(console: Console, addresses: Addresses) -> None:
    console.print("\n[bold]Where to look[/bold]")
    places = {
        "Thanos Query (graphs over everything)": addresses.thanos_query,
        "Alertmanager": addresses.alertmanager,
        "Prometheus API": addresses.prometheus,
        "replay control": f"{addresses.services['replay']}/docs",
        "webhooks received": f"{addresses.services['receiver']}/received",
        "Kafka": addresses.kafka,
    }
    for what, where in places.items():
        console.print(f"  {what:<40} {where}", highlight=False)
