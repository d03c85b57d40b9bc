"""The servers of hindcast, described once: what runs, in which order, with which flags, files and ports.

recording -> Kafka -> Prometheus -> sidecar --+--> bucket -> store, compact
                  `-> Receive (per tenant) ---+
Query asks the sidecar, Receive and the store.      Prometheus and notify -> Alertmanager -> webhook
"""

import base64
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from services.kit.errors import UserError
from services.kit.replays import REMOVED_MARK
from services.stack import configs
from services.stack.addresses import Addresses
from services.stack.health import Health, HttpHealth, KafkaHealth, QueryHealth
from services.stack.ports import LOOPBACK, PortBook
from services.stack.settings import ENV_PREFIX, StackSettings
from services.stack.spec import ProcessSpec
from services.stack.toolchain import JAVA, look_for

# Raw for 30 days, 5-minute resolution to 90, 1-hour to 365: the retention of the Blue Vela report.
RETENTION = {"raw": "30d", "5m": "90d", "1h": "365d"}
_PORTS = (
    "kafka_port", "kafka_controller_port", "prometheus_port", "alertmanager_port", "sidecar_http_port",
    "sidecar_grpc_port", "receive_write_port", "receive_http_port", "receive_grpc_port", "store_http_port",
    "store_grpc_port", "query_http_port", "query_grpc_port", "compact_http_port",
)  # fmt: skip


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
    # Query looks for its stores when it starts and then every five seconds.
    "query": ("sidecar", "receive", "store"),
    "compact": (),
}


_PURGE = Path(__file__).with_name("purge.py")


def binaries_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the built servers (recipes.RECIPES) the named processes need."""
    return tuple(dict.fromkeys(name if name in {"kafka", "prometheus", "alertmanager"} else "thanos" for name in names))


def describe(settings: StackSettings, state_dir: Path, binaries: Mapping[str, Path], book: PortBook) -> Topology:
    """Describe the stack that keeps its state in `state_dir`. Raises UserError where a chosen port is in use."""
    chosen = {name: getattr(settings, name) for name in _PORTS}
    # The chosen ports first, lest a free one be handed out that a later setting asks for.
    taken = {n: book.take(p, setting=f"{ENV_PREFIX}{n.upper()}") for n, p in chosen.items() if p}
    port = {name: taken.get(name) or book.take() for name in _PORTS}
    capnproto_port = book.take()
    at = {name: f"{LOOPBACK}:{number}" for name, number in port.items()}
    url = {name: f"http://{address}" for name, address in at.items()}

    conf, data = state_dir / "config", state_dir / "data"
    bucket = data / "bucket"
    thanos = str(binaries.get("thanos", Path()) / "thanos")
    object_store = f"--objstore.config-file={conf / 'bucket.yml'}"

    def run_thanos(name: str, *flags: str, health: Health | None = None) -> ProcessSpec:
        listen = [f"--{kind}-address={at[key]}" for kind in ("http", "grpc") if (key := f"{name}_{kind}_port") in at]
        return ProcessSpec(
            name,
            (thanos, name, *listen, *flags),
            health or ready(f"{name}_http_port"),
            after=SERVERS[name],
            ports=tuple(port[key] for key in _PORTS if key.startswith(f"{name}_")),
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
        ),
        ready("alertmanager_port"),
        cwd=conf,  # a relative `url_file` is looked for there
        ports=(port["alertmanager_port"],),
    )
    prometheus = ProcessSpec(
        "prometheus",
        (
            str(binaries.get("prometheus", Path()) / "prometheus"),
            f"--config.file={conf / 'prometheus.yml'}",
            f"--storage.tsdb.path={data / 'prometheus'}",
            f"--storage.tsdb.retention.time={settings.prometheus_retention}",
            # Equal, so that Prometheus compacts nothing that the sidecar may be uploading.
            f"--storage.tsdb.min-block-duration={settings.block_duration}",
            f"--storage.tsdb.max-block-duration={settings.block_duration}",
            f"--web.listen-address={at['prometheus_port']}",
            "--web.enable-remote-write-receiver",
            "--web.enable-lifecycle",  # rules are reloaded by a request
            "--web.enable-admin-api",  # a replay is removed by deleting its series
        ),
        ready("prometheus_port"),
        ports=(port["prometheus_port"],),
    )
    sidecar = run_thanos(
        "sidecar",
        f"--tsdb.path={data / 'prometheus'}",
        f"--prometheus.url={url['prometheus_port']}",
        object_store,
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
        "--chunk-pool-size=256MB",
        object_store,
    )
    query = run_thanos(
        "query",
        *(f"--endpoint={at[f'{name}_grpc_port']}" for name in SERVERS["query"]),
        "--query.replica-label=replica",
        "--query.auto-downsampling",
        health=QueryHealth(url["query_http_port"], stores=len(SERVERS["query"])),
    )
    compact = run_thanos(
        "compact",
        "--wait",
        f"--data-dir={data / 'compact'}",
        "--compact.enable-vertical-compaction",
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
        conf / "prometheus.yml": configs.prometheus(
            alertmanager=at["alertmanager_port"],
            out_of_order_window=settings.out_of_order_window,
            rule_files=[path.absolute() for path in settings.rule_files],
        ),
        conf / "alertmanager.yml": _alertmanager_config(settings),
        conf / "bucket.yml": configs.object_store(bucket),
        conf / "compact-selector.yml": configs.compact_selector(),
    }
    if webhook is not None:
        files[conf / configs.WEBHOOK_URL_FILE] = str(webhook)
    return Topology(
        processes=(kafka, alertmanager, prometheus, sidecar, receive, store, query, compact),
        files=files,
        folders=(bucket, *(data / name for name in ("kafka", "prometheus", "alertmanager", "receive"))),
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
            bucket=str(bucket),
        ),
    )


def _alertmanager_config(settings: StackSettings) -> str:
    path = settings.alertmanager_config
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{ENV_PREFIX}ALERTMANAGER_CONFIG names {path}, which cannot be read: {error.strerror}",
            remedy="correct the path, or unset it for the configuration that comes with hindcast",
            exit_code=2,
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
