"""`hindcast live`: the detectors on a running cluster's Prometheus, read only."""

import re
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.kit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from services.api.live.live_run import LiveRun
    from services.live.follower import Closing
    from services.live.jobs import Listed
    from services.live.maintenance import Nodes
    from services.live.slurmrestd import Credentials
    from services.live.start import Run
    from services.notify.settings import NotifySettings

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_S = 31 * 86_400


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(live)


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
    import time

    from detectors.heard import DAY_MS
    from services.detect.choices import load_choices, load_incident_config
    from services.kit.service import stop_on_signals
    from services.kit.times import wall_ms
    from services.live.api_server import entrance
    from services.live.conditions import NodeConditions
    from services.live.feed import Detection
    from services.live.follower import Follower, Watcher
    from services.live.slurmrestd import Credentials
    from services.live.start import Asked, prepare
    from services.live.terminal import FindingsFile, Terminal
    from services.recording.importers.parts.query_api import Access, QueryApi
    from services.recording.model import Topology
    from services.recording.reader import topology_in

    lookback_ms = round(_seconds(lookback) * 1000)
    lateness_ms = None if lateness is None else round(lateness * 1000)
    asked = Asked(cluster, lookback_ms, lateness_ms, state, _notify(alertmanager))
    known = topology_in(topology) if topology is not None else Topology()
    if slurm and kubernetes is not None:
        raise UserError("--slurm and --kubernetes both list the jobs", remedy="leave out one of them", exit_code=2)
    if node_conditions and kubernetes is None:
        raise UserError("--node-conditions writes into Kubernetes", remedy="give --kubernetes as well", exit_code=2)
    credentials = Credentials(slurm_user, slurm_token_file, slurm_ca_file)
    listed, nodes = _scheduler(slurm or [], credentials, kubernetes, kubernetes_token_file, kubernetes_ca_file)
    forget_ms = round(forget_after_days * DAY_MS)
    incidents = load_incident_config(config)
    detection = Detection(load_choices(config, calibration), incidents, known, listed, nodes, forget_ms)
    access = Access(prometheus, token_file, user, password_file, ca_file, tenant, certificate_file, key_file, retries=1)
    with QueryApi(access) as api, ExitStack() as stack:
        run = prepare(api, asked, detection, wall_ms=wall_ms, monotonic=time.monotonic)
        if run.alerts is not None:
            stack.callback(run.alerts.close)
        stop = stop_on_signals()
        terminal = Terminal(run, typer.echo, alertmanager)
        watchers: list[Watcher] = [terminal, *([FindingsFile(findings)] if findings is not None else [])]
        if node_conditions and kubernetes is not None:
            door = entrance(kubernetes, kubernetes_token_file, kubernetes_ca_file)
            watchers.append(NodeConditions(door, run.origin, wall_ms, run.open_lines if run.goes_on else None))
        terminal.begin()
        if listed is not None:
            _compare_names({node for job in listed() for node in job.nodes}, run)
        closings: Callable[[], Iterable[Closing]] = tuple
        if port is not None:
            shown = stack.enter_context(_shown(run, port, state))
            watchers.append(shown)
            closings = shown.closings
        Follower(run, watchers, wall_ms=wall_ms, closings=closings).run(stop, every)
        terminal.end()


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


def _compare_names(nodes: set[str], run: "Run") -> None:
    """Say so where the scheduler calls no node as the exporters do: its jobs would be nowhere."""
    known = {node.name for node in run.feed.topology.nodes}
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
        raise UserError(
            f"--lookback {text!r} is no duration that can be used",
            remedy="write a duration from 1m to 31d, such as 1d or 6h",
            exit_code=2,
        )
    return seconds
