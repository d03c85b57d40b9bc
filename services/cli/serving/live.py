"""`hindcast live`: the detectors on a running cluster's Prometheus, read only."""

import re
import tempfile
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from services.api.live.live_run import LiveRun
    from services.live.api_server import Entrance
    from services.live.feed import Detection
    from services.live.follower import Closing
    from services.live.jobs import Listed
    from services.live.maintenance import Nodes
    from services.live.poll_loop import Watcher
    from services.live.slurmrestd import Credentials
    from services.live.start import Asked, Run
    from services.live.stretches import Stretches
    from services.notify.settings import NotifySettings
    from services.recording.importers.parts.series.query_api import QueryApi

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_S = 31 * 86_400


def live(
    prometheus: Annotated[
        str,
        typer.Option(
            "--prometheus",
            "--url",
            help="a Prometheus, Thanos Query or VictoriaMetrics: http://HOST:9090",
            show_default=False,
        ),
    ],
    token_file: Annotated[
        Path | None, typer.Option("--token-file", "--bearer-file", help="file with the bearer token to read with")
    ] = None,
    user: Annotated[str | None, typer.Option(help="user name for basic authentication")] = None,
    password_file: Annotated[Path | None, typer.Option(help="file with that user's password")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="certificates (PEM) to check the server's by")] = None,
    certificate_file: Annotated[
        Path | None, typer.Option(help="a client's certificate (PEM), where the server asks for one")
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="that certificate's private key (PEM)")] = None,
    tenant: Annotated[str | None, typer.Option(help="sent as THANOS-TENANT and X-Scope-OrgID")] = None,
    cluster: Annotated[str | None, typer.Option(help="its name, and which where series have a label cluster")] = None,
    kafka: Annotated[
        str | None,
        typer.Option(help="send all to services.detect by this Kafka, HOST:PORT, instead of detecting here"),
    ] = None,
    alertmanager: Annotated[
        str | None, typer.Option(help="send alerts there; without it nobody is alerted, and what would be is shown")
    ] = None,
    lookback: Annotated[str, typer.Option(help="how much of the past to read first, such as 1d or 6h")] = "1d",
    every: Annotated[float, typer.Option(min=1, max=300, help="seconds between two looks")] = 15.0,
    lateness: Annotated[
        float | None, typer.Option(min=0, max=600, help="seconds behind the clock at least; as seen if not given")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="a folder for what a restart goes on from")] = None,
    forget_after_days: Annotated[
        float, typer.Option(min=0.01, help="forget a machine of which no series came for so long")
    ] = 7.0,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            help="slurmrestd's URL, or a command that prints jobs or nodes ('squeue --json'); may be repeated"
        ),
    ] = None,
    slurm_user: Annotated[
        str | None, typer.Option(help="the user named to slurmrestd, where that is not the token's own")
    ] = None,
    slurm_token_file: Annotated[
        Path | None, typer.Option(help="file with a token for slurmrestd, as `scontrol token` makes them")
    ] = None,
    slurm_ca_file: Annotated[Path | None, typer.Option(help="certificates (PEM) to check slurmrestd's by")] = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(
            help="an API server to read pods and nodes from: a URL, kubeconfig[:CONTEXT], or in-cluster for a pod"
        ),
    ] = None,
    kubernetes_token_file: Annotated[
        Path | None, typer.Option(help="file with the bearer token of an account that may list pods and nodes")
    ] = None,
    kubernetes_ca_file: Annotated[
        Path | None, typer.Option(help="certificates (PEM) to check the API server's by")
    ] = None,
    node_conditions: Annotated[
        bool,
        typer.Option("--node-conditions", help="write what is open on a node into its conditions, by --kubernetes"),
    ] = False,
    topology: Annotated[
        Path | None, typer.Option(help="a topology.json: racks and cables, which no series has")
    ] = None,
    findings: Annotated[Path | None, typer.Option(help="append findings there, one JSON object a line")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="serve the console and the API there; 0: any free one")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="a detectors.yaml: what differs from the defaults")] = None,
    calibration: Annotated[Path | None, typer.Option(help="what `hindcast calibrate` wrote")] = None,
) -> None:
    """Watch a live cluster through its Prometheus: read only, nothing is installed or changed there.

    Machines and jobs come from the labels of the exporters' series.
    """
    from detectors.engine.heard import DAY_MS
    from services.live.api_server import entrance
    from services.live.slurmrestd import Credentials
    from services.live.start import Asked
    from services.live.stretches import Site
    from services.recording.importers.parts.series.query_api import Access, QueryApi
    from services.recording.model import Topology
    from services.recording.reader import topology_in

    detects_here = {
        "--alertmanager": alertmanager,
        "--findings": findings,
        "--port": port,
        "--node-conditions": node_conditions or None,
        "--config": config,
        "--calibration": calibration,
    }
    if kafka is not None:
        _refuse_beside_kafka([name for name, given in detects_here.items() if given is not None])
    lookback_ms = round(_seconds(lookback) * 1000)
    lateness_ms = None if lateness is None else round(lateness * 1000)
    notify = _notify(alertmanager)
    known = topology_in(topology) if topology is not None else Topology()
    if slurm and kubernetes is not None:
        raise UsageError("--slurm and --kubernetes both list the jobs", remedy="leave out one of them")
    if node_conditions and kubernetes is None:
        raise UsageError("--node-conditions writes into Kubernetes", remedy="give --kubernetes as well")
    credentials = Credentials(slurm_user, slurm_token_file, slurm_ca_file)
    listed, nodes = _scheduler(slurm or [], credentials, kubernetes, kubernetes_token_file, kubernetes_ca_file)
    site = Site(known, listed, nodes, round(forget_after_days * DAY_MS))
    asked = Asked(cluster, lookback_ms, lateness_ms, state, notify, site)
    access = Access(prometheus, token_file, user, password_file, ca_file, tenant, certificate_file, key_file, retries=1)
    with QueryApi(access) as api:
        typer.echo(f"asking {access.address} ...", err=True)
        if kafka is not None:
            _send(api, asked, kafka, every)
            return
        door = None
        if node_conditions and kubernetes is not None:
            door = entrance(kubernetes, kubernetes_token_file, kubernetes_ca_file)
        _detect(api, asked, _detection(config, calibration), every, alertmanager, findings, port, door)


def _detection(config: Path | None, calibration: Path | None) -> "Detection":
    from services.detect.choices import load_choices, load_incident_config
    from services.live.feed import Detection

    return Detection(load_choices(config, calibration), load_incident_config(config))


def _detect(
    api: "QueryApi",
    asked: "Asked",
    detection: "Detection",
    every_s: float,
    alertmanager: str | None,
    findings: Path | None,
    port: int | None,
    door: "Entrance | None",
) -> None:
    """Detect until SIGTERM or SIGINT; `door`: the API server whose nodes' conditions are written."""
    import time

    from services.kit.service import stop_on_signals
    from services.kit.times import wall_ms
    from services.live.conditions import NodeConditions
    from services.live.follower import Follower
    from services.live.start import prepare
    from services.live.terminal import FindingsFile, Terminal

    with ExitStack() as stack:
        run = prepare(api, asked, detection, wall_ms=wall_ms, monotonic=time.monotonic)
        if run.alerts is not None:
            stack.callback(run.alerts.close)
        stop = stop_on_signals()
        terminal = Terminal(run, typer.echo, alertmanager)
        watchers: list[Watcher] = [terminal, *([FindingsFile(findings)] if findings is not None else [])]
        if door is not None:
            watchers.append(NodeConditions(door, run.origin, wall_ms, run.open_lines if run.goes_on else None))
        terminal.begin_run()
        if asked.site.listed is not None:
            _compare_names(asked.site.listed, run.feed)
        closings: Callable[[], Iterable[Closing]] = tuple
        if port is not None:
            shown = stack.enter_context(_shown(run, port, asked.state))
            watchers.append(shown)
            closings = shown.closings
        Follower(run, watchers, wall_ms=wall_ms, closings=closings).run(stop, every_s)
        terminal.end(kept=asked.state is not None)


def _refuse_beside_kafka(given: "Sequence[str]") -> None:
    if given:
        raise UsageError(
            f"--kafka leaves detection and alerts to the services there: without {', '.join(given)}",
            remedy="leave out what is named; services.detect and services.notify have settings of their own",
        )


def _send(api: "QueryApi", asked: "Asked", bootstrap: str, every_s: float) -> None:
    """Feed Kafka until SIGTERM or SIGINT."""
    from services.kit.kafka import KafkaSettings
    from services.kit.service import stop_on_signals
    from services.kit.settings import load
    from services.kit.times import to_the_second, wall_ms
    from services.live.kafka_feed import prepare
    from services.live.poll_loop import PollLoop
    from services.live.terminal import Progress

    sending = prepare(api, asked, load(KafkaSettings, bootstrap=bootstrap), wall_ms=wall_ms)
    with closing(sending.outlet):
        stop = stop_on_signals()
        progress = Progress(sending.feed, typer.echo, sending.until)
        since = to_the_second(sending.feed.at)
        words = f"to Kafka at {bootstrap}, "
        if sending.goes_on:
            words += f"going on from {since}"
        elif asked.state is not None:
            words += f"what happened since {since} first"
        else:
            words += f"what happened since {since} first; without --state a restart reads the lookback again"
        progress.begin(sending.cluster, words)
        if asked.site.listed is not None:
            _compare_names(asked.site.listed, sending.feed)
        PollLoop(sending.feed, [progress], wall_ms=wall_ms).run(stop, every_s)
        progress.end(kept=asked.state is not None)


def _scheduler(
    slurm: "Sequence[str]",
    credentials: "Credentials",
    kubernetes: str | None,
    token_file: Path | None,
    ca_file: Path | None,
) -> "tuple[Listed | None, Nodes]":
    """Return who lists the jobs, where somebody does, and who the nodes."""
    import time

    from services.kit.times import wall_ms
    from services.live.api_server import entrance
    from services.live.kubernetes import Kubernetes
    from services.live.polled import Polled
    from services.live.slurm import Slurm, command_source
    from services.live.slurmrestd import Slurmrestd, is_address

    if slurm:
        sources = [Slurmrestd(one, credentials).documents if is_address(one) else command_source(one) for one in slurm]
        ask = Slurm(sources, wall_ms).ask
    elif kubernetes is not None:
        ask = Kubernetes(entrance(kubernetes, token_file, ca_file)).ask
    else:
        return None, dict
    server = Polled(ask, time.monotonic)
    return (lambda: server.latest().jobs) if server.latest().lists_jobs else None, lambda: server.latest().nodes


def _compare_names(listed: "Listed", feed: "Stretches") -> None:
    """Say so where the scheduler calls no node as the exporters do: its jobs would be nowhere."""
    nodes, known = {node for job in listed() for node in job.nodes}, {node.name for node in feed.topology.nodes}
    if nodes and not nodes & known:
        some, others = (", ".join(sorted(names)[:3]) for names in (nodes, known))
        typer.echo(f"no node of the jobs ({some}) has series ({others}): jobs count where the names are the same")


@contextmanager
def _shown(run: "Run", port: int, state: Path | None) -> "Iterator[LiveRun]":
    """Serve the console while the block lasts; what it keeps lies in the state's folder, or goes with it."""
    from services.api.served import shown
    from services.api.settings import ApiSettings
    from services.kit.settings import load

    with tempfile.TemporaryDirectory(prefix="hindcast-live-") as folder:
        settings = load(ApiSettings, port=port, data_dir=(state or Path(folder)) / "api")
        with shown(settings, run) as (live_run, address):
            typer.echo(f"console and API: {address}")
            yield live_run


def _notify(url: str | None) -> "NotifySettings | None":
    from services.kit.settings import load
    from services.notify.settings import NotifySettings

    return None if url is None else load(NotifySettings, alertmanager_url=url)


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 60 <= seconds <= _LONGEST_S:
        raise UsageError(
            f"--lookback {text!r} is no duration that can be used",
            remedy="write a duration from 1m to 31d, such as 1d or 6h",
        )
    return seconds
