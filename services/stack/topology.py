"""The servers of hindcast, described once: what runs, in which order, with which flags, files and ports.

recording -> Kafka -> Prometheus -> sidecar --+--> bucket -> store, compact
                  `-> Receive (per tenant) ---+
Query asks the sidecars, Receive and the store.     Prometheus and notify -> Alertmanager -> webhook
A Prometheus of its own, with a sidecar, watches these servers and hindcast's services (services/stack/monitor.py).

Of Prometheus and its sidecar there may be a pair: the second differs in ports, folder and replica label only.
"""

import base64
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from services.kit.errors import UsageError
from services.kit.replays import REMOVED_MARK
from services.stack import configs, monitor
from services.stack.addresses import Addresses
from services.stack.health import Health, HttpHealth, KafkaHealth, QueryHealth
from services.stack.ports import LOOPBACK, PortBook
from services.stack.settings import ENV_PREFIX, StackSettings, seconds
from services.stack.spec import ProcessSpec
from services.stack.toolchain import JAVA, look_for

# Raw for 30 days, 5-minute resolution to 90, 1-hour to 365: the retention of the Blue Vela report.
RETENTION = {"raw": "30d", "5m": "90d", "1h": "365d"}
_PORTS = [name for name in StackSettings.model_fields if name.endswith("_port")]


@dataclass(frozen=True)
class Topology:
    """The processes of the stack in an order in which they can be started, and the files they read."""

    processes: tuple[ProcessSpec, ...]
    files: Mapping[Path, str]
    # Folders that must exist.
    folders: tuple[Path, ...]
    addresses: Addresses


# Each server, in the order of their description, and the servers that must be healthy before it starts.
SERVERS: Mapping[str, tuple[str, ...]] = {
    "kafka": (),
    "alertmanager": (),
    "prometheus": (),
    "sidecar": ("prometheus",),
    "receive": (),
    "store": (),
    monitor.NAME: (),
    "sidecar-monitor": (monitor.NAME,),
    # Query looks for its stores when it starts and then every five seconds.
    "query": ("sidecar", "receive", "store", "sidecar-monitor"),
    "compact": (),
}


# What a pair has beside them.
PAIR: Mapping[str, tuple[str, ...]] = {"prometheus-1": (), "sidecar-1": ("prometheus-1",)}

_PURGE = Path(__file__).with_name("purge.py")
_REACH = Path(__file__).with_name("reach.sh")


def binaries_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the built servers (recipes.RECIPES) the named processes need."""
    built = {"kafka", "alertmanager", "prometheus"}
    programs = (name.partition("-")[0] for name in names)
    return tuple(dict.fromkeys(program if program in built else "thanos" for program in programs))


def servers(settings: StackSettings) -> Mapping[str, tuple[str, ...]]:
    """Return the servers that the settings ask for, in the order of their description, and what each waits for."""
    if not settings.prometheus_pair:
        return SERVERS
    found: dict[str, tuple[str, ...]] = {}
    for name, after in SERVERS.items():
        if name == "receive":
            found.update(PAIR)
        found[name] = (*after, "sidecar-1") if name == "query" else after
    return found


def describe(settings: StackSettings, state_dir: Path, binaries: Mapping[str, Path], book: PortBook) -> Topology:
    """Describe the stack that keeps its state in `state_dir`. Raises UserError where a chosen port is in use."""
    after = servers(settings)
    names = [name for name in _PORTS if settings.prometheus_pair or "_1_" not in name]
    chosen = {name: getattr(settings, name) for name in names}
    # The chosen ports first, so that no free one is handed out that a later setting asks for.
    taken = {n: book.take(p, setting=f"{ENV_PREFIX}{n.upper()}") for n, p in chosen.items() if p}
    port = {name: taken.get(name) or book.take() for name in names}
    capnproto_port = book.take()
    at = {name: f"{LOOPBACK}:{number}" for name, number in port.items()}
    url = {name: f"http://{address}" for name, address in at.items()}

    conf, data = state_dir / "config", state_dir / "data"
    bucket = data / "bucket"
    thanos = str(binaries.get("thanos", Path()) / "thanos")
    object_store = f"--objstore.config-file={conf / 'bucket.yml'}"

    def run_thanos(name: str, *flags: str, health: Health | None = None) -> ProcessSpec:
        own = _word(name)
        listen = [f"--{kind}-address={at[key]}" for kind in ("http", "grpc") if (key := f"{own}_{kind}_port") in at]
        return ProcessSpec(
            name,
            (thanos, name.partition("-")[0], *listen, *flags),
            health or ready(f"{own}_http_port"),
            after=after[name],
            ports=tuple(port[key] for key in port if re.fullmatch(f"{own}_[a-z]+_port", key)),
        )

    def ready(name: str) -> Health:
        return HttpHealth(f"{url[name]}/-/ready")

    kafka = _kafka(settings, binaries.get("kafka", Path()), conf, data / "kafka", port)
    alertmanager = ProcessSpec(
        "alertmanager",
        (
            str(binaries.get("alertmanager", Path()) / "alertmanager"),
            f"--config.file={conf / 'alertmanager.yml'}",
            f"--storage.path={data / 'alertmanager'}",
            f"--web.listen-address={at['alertmanager_port']}",
            "--cluster.listen-address=",  # one instance: no gossip
            "--data.maintenance-interval=1s",  # what it has sent is on disk: one that was killed sends it once more
        ),
        ready("alertmanager_port"),
        cwd=conf,  # a relative `url_file` is looked for there
        ports=(port["alertmanager_port"],),
    )

    # Not at the end of the retention: it is to stay until there are older blocks than what may still come.
    reach_s = f"{0.9 * seconds(settings.prometheus_retention):.0f}"

    def prometheus(name: str, listens: str) -> ProcessSpec:
        built = binaries.get("prometheus", Path())
        return ProcessSpec(
            name,
            (
                str(built / "prometheus"),
                f"--config.file={conf / f'{name}.yml'}",
                f"--storage.tsdb.path={data / name}",
                f"--storage.tsdb.retention.time={settings.prometheus_retention}",
                # Equal, so that Prometheus compacts nothing that the sidecar may be uploading.
                f"--storage.tsdb.min-block-duration={settings.block_duration}",
                f"--storage.tsdb.max-block-duration={settings.block_duration}",
                f"--web.listen-address={at[listens]}",
                "--web.enable-remote-write-receiver",
            ),
            ready(listens),
            ports=(port[listens],),
            prepare=("sh", str(conf / _REACH.name), str(built / "promtool"), str(data / name), reach_s),
        )

    def sidecar(name: str, beside: str, listens: str) -> ProcessSpec:
        return run_thanos(name, f"--tsdb.path={data / beside}", f"--prometheus.url={url[listens]}", object_store)

    watched = [("prometheus", "sidecar", "prometheus_port")]
    if settings.prometheus_pair:
        watched.append(("prometheus-1", "sidecar-1", "prometheus_1_port"))
    stored = [
        spec
        for name, beside, listens in watched
        for spec in (prometheus(name, listens), sidecar(beside, name, listens))
    ]
    watching = monitor.process(
        binaries.get("prometheus", Path()) / "prometheus",
        conf / "monitor.yml",
        data / "monitor",
        port=port["prometheus_monitor_port"],
        address=at["prometheus_monitor_port"],
        health=ready("prometheus_monitor_port"),
    )
    # Without an object store: it uploads nothing.
    sidecar_monitor = run_thanos(
        "sidecar-monitor", f"--tsdb.path={data / 'monitor'}", f"--prometheus.url={url['prometheus_monitor_port']}"
    )
    receive = run_thanos(
        "receive",
        f"--remote-write.address={at['receive_write_port']}",
        # It listens there, on all interfaces, also when nothing is replicated.
        f"--receive.capnproto-address={LOOPBACK}:{capnproto_port}",
        f"--tsdb.path={data / 'receive'}",
        f"--tsdb.min-block-duration={settings.block_duration}",
        f"--tsdb.max-block-duration={settings.block_duration}",
        f"--tsdb.out-of-order.time-window={settings.out_of_order_window}",
        # None: it counts from now, and a tenant holds what a recording of any age has. It goes with its replay.
        "--tsdb.retention=0d",
        '--label=receive="hindcast"',
        object_store,
    )
    clean = (sys.executable, "-I", "-S", str(_PURGE), str(data / "receive"), str(bucket), REMOVED_MARK)
    receive = replace(receive, ports=(*receive.ports, capnproto_port), prepare=clean)
    store = run_thanos(
        "store",
        f"--data-dir={data / 'store'}",
        # The folder is cheap to list: a block that was just uploaded is seen within seconds, not 15 minutes.
        "--sync-block-duration=5s",
        # What Compact has put into another block is served from there at once. Both would differ by the replica
        # label, which Compact takes off, and at coarse resolutions Query would count them twice.
        "--ignore-deletion-marks-delay=0s",
        "--chunk-pool-size=256MB",
        object_store,
    )
    query = run_thanos(
        "query",
        *(f"--endpoint={at[f'{_word(name)}_grpc_port']}" for name in after["query"]),
        f"--query.replica-label={configs.REPLICA_LABEL}",
        # Both of a pair are sent samples of the same times: merged one by one. The default takes them for scrapers with
        # times of their own, and after a gap of one leaves out two intervals of the other.
        "--deduplication.func=chain",
        "--query.auto-downsampling",
        health=QueryHealth(url["query_http_port"], stores=len(after["query"])),
    )
    compact = run_thanos(
        "compact",
        "--wait",
        f"--data-dir={data / 'compact'}",
        "--compact.enable-vertical-compaction",
        # Both of a pair hold the same samples of the same times: kept once, each filling the other's gaps.
        f"--deduplication.replica-label={configs.REPLICA_LABEL}",
        f"--selector.relabel-config-file={conf / 'compact-selector.yml'}",
        *(f"--retention.resolution-{resolution}={kept}" for resolution, kept in RETENTION.items()),
        "--delete-delay=48h",
        object_store,
    )

    webhook = settings.webhook_url
    files = {
        conf / "server.properties": configs.kafka(
            port=port["kafka_port"], controller_port=port["kafka_controller_port"], data=data / "kafka"
        ),
        conf / "log4j2.properties": configs.KAFKA_LOGGING,
        **{
            conf / f"{name}.yml": configs.prometheus(
                alertmanager=at["alertmanager_port"],
                out_of_order_window=settings.out_of_order_window,
                rule_files=[path.absolute() for path in settings.rule_files],
                replica=replica,
            )
            for replica, (name, _, _) in enumerate(watched)
        },
        conf / "monitor.yml": monitor.config(
            alertmanager=at["alertmanager_port"],
            servers={name: _metrics_address(name, at) for name in after if name != "kafka"},
            services=conf / monitor.TARGETS_FILE,
            rule_files=[path.absolute() for path in settings.monitor_rule_files],
            credentials=settings.monitor_token_file and settings.monitor_token_file.absolute(),
        ),
        conf / "alertmanager.yml": _alertmanager_config(settings),
        conf / _REACH.name: _REACH.read_text(encoding="utf-8"),
        conf / "bucket.yml": configs.object_store(bucket),
        conf / "compact-selector.yml": configs.compact_selector(),
    }
    if webhook is not None:
        files[conf / configs.WEBHOOK_URL_FILE] = webhook.get_secret_value()
    return Topology(
        processes=(kafka, alertmanager, *stored, receive, store, watching, sidecar_monitor, query, compact),
        files=files,
        folders=(
            bucket,
            *(data / name for name in ("kafka", "alertmanager", "receive", "monitor", *(w[0] for w in watched))),
        ),
        addresses=Addresses(
            kafka=at["kafka_port"],
            prometheus=url["prometheus_port"],
            alertmanager=url["alertmanager_port"],
            thanos_query=url["query_http_port"],
            receive_write=url["receive_write_port"],
            receive=url["receive_http_port"],
            sidecar=url["sidecar_http_port"],
            store=url["store_http_port"],
            compact=url["compact_http_port"],
            store_grpc=at["store_grpc_port"],
            monitor=url["prometheus_monitor_port"],
            bucket=str(bucket),
            prometheus_1=url.get("prometheus_1_port", ""),
            sidecar_1=url.get("sidecar_1_http_port", ""),
        ),
    )


def _word(name: str) -> str:
    """Return a server's name as the names of settings have it."""
    return name.replace("-", "_")


def _metrics_address(name: str, at: Mapping[str, str]) -> str:
    """Return where a server serves its /metrics; Kafka has none."""
    word = _word(name)
    return at.get(f"{word}_http_port") or at[f"{word}_port"]


def _alertmanager_config(settings: StackSettings) -> str:
    path = settings.alertmanager_config
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{ENV_PREFIX}ALERTMANAGER_CONFIG names {path}, which cannot be read: {error.strerror}",
            remedy="correct the path, or unset it for the configuration that comes with hindcast",
        ) from error


def _kafka(settings: StackSettings, jars: Path, conf: Path, data: Path, port: Mapping[str, int]) -> ProcessSpec:
    properties = str(conf / "server.properties")
    java = (
        look_for(JAVA).path or "java",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-Dlog4j2.disable.jmx=true",
        f"-Dlog4j2.configurationFile={conf / 'log4j2.properties'}",
        "-cp",
        f"{jars}/*",
    )
    return ProcessSpec(
        "kafka",
        (java[0], f"-Xmx{settings.kafka_heap}", "-XX:+ExitOnOutOfMemoryError", *java[1:], "kafka.Kafka", properties),
        KafkaHealth(port["kafka_port"]),
        ports=(port["kafka_port"], port["kafka_controller_port"]),
        # Only the first compiler: formatting lasts a second.
        prepare=(
            java[0], "-XX:TieredStopAtLevel=1", *java[1:],
            "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", properties,
        ),
        prepared_by=data / "meta.properties",
    )  # fmt: skip


def _cluster_id() -> str:
    """Return a new id as Kafka writes them: 22 characters of URL-safe base64, not beginning like a flag."""
    return "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
