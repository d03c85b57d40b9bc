"""Which of hindcast's own services run on a stack, and how each is started."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.stack.addresses import Addresses
from services.stack.health import HttpHealth
from services.stack.ports import LOOPBACK, PortBook
from services.stack.spec import ProcessSpec


@dataclass(frozen=True)
class ServiceContext:
    """What a service's settings are made from."""

    addresses: Addresses
    # A folder for what services keep; it outlives a restart of the stack.
    data_dir: Path
    # `take()` gives a free port.
    ports: PortBook
    # Configures where Alertmanager delivers the alerts of replays.
    set_webhook: Callable[[str], None]


Services = Callable[[ServiceContext], Sequence[ProcessSpec]]


def python_service(
    name: str,
    module: str,
    *,
    port: int,
    env: Mapping[str, str],
    after: tuple[str, ...] = ("kafka",),
) -> ProcessSpec:
    """Describe `python -m module` with `env`, healthy when `/healthz` on loopback `port` answers 200.

    `port` is the one that `env` has it listen on, by whatever setting it has for that.
    """
    url = f"http://{LOOPBACK}:{port}"
    health = HttpHealth(f"{url}/healthz")
    return ProcessSpec(name, (sys.executable, "-m", module), health, env=env, after=after, ports=(port,), url=url)


def python_task(name: str, module: str, *arguments: str, env: Mapping[str, str]) -> ProcessSpec:
    """Describe `python -m module arguments`, to be run to its end before what names it in its `after` is started."""
    return ProcessSpec(name, (sys.executable, "-m", module, *arguments), env=env, after=("kafka",), once=True)


def services(context: ServiceContext) -> list[ProcessSpec]:
    """Return hindcast's services for the stack at `context.addresses`, in an order in which they can be started."""
    at, data = context.addresses, context.data_dir
    kafka = {"HINDCAST_KAFKA_BOOTSTRAP": at.kafka}
    port = {name: context.ports.take() for name in _OWN}

    def service(name: str, module: str, env: dict[str, str], *after: str) -> ProcessSpec:
        status = {"HINDCAST_STATUS_PORT": str(port[name])}
        return python_service(name, module, port=port[name], env=kafka | status | env, after=("topics", *after))

    context.set_webhook(f"http://{LOOPBACK}:{port['receiver']}/webhook")
    receive_data = str(context.data_dir.parent / "data" / "receive")
    replay = {
        "HINDCAST_REPLAY_PORT": str(port["replay"]),
        "HINDCAST_REPLAY_STATE_DIR": str(data / "replay"),
        "HINDCAST_REPLAY_RECEIVE_DATA": receive_data,
    }
    # By names of their own detect and the sinks are known again after a crash, and wait for no session to time out.
    detect = {"HINDCAST_DETECT_STATE_DIR": str(data / "detect"), "HINDCAST_DETECT_INSTANCE": "detect"}
    receiver = {"HINDCAST_RECEIVER_PORT": str(port["receiver"]), "HINDCAST_RECEIVER_STATE_DIR": str(data / "receiver")}
    prometheis = {"prometheus": _sink("prometheus", at.prometheus_write)}
    if at.prometheus_1:
        prometheis["prometheus-1"] = _sink("prometheus", at.prometheus_1_write) | {"HINDCAST_SINK_REPLICA": "1"}
    return [
        python_task("topics", "services.cli", "topics", "create", env=kafka),
        python_service("receiver", "services.notify.receiver", port=port["receiver"], env=receiver, after=()),
        *(service(f"sink-{name}", "services.sink", env, name) for name, env in prometheis.items()),
        service("sink-receive", "services.sink", _sink("receive", at.thanos_write) | _RECEIVE, "receive"),
        service("detect", "services.detect", detect),
        service("notify", "services.notify", {"HINDCAST_NOTIFY_ALERTMANAGER_URL": at.alertmanager}, "alertmanager"),
        service("replay", "services.replay", replay),
    ]


_OWN = ("receiver", "sink-prometheus", "sink-prometheus-1", "sink-receive", "detect", "notify", "replay")
_RECEIVE = {"HINDCAST_SINK_PROTOCOL": "v1", "HINDCAST_SINK_TENANT_HEADER": "THANOS-TENANT"}


def _sink(target: str, url: str) -> dict[str, str]:
    return {"HINDCAST_SINK_TARGET": target, "HINDCAST_SINK_URL": url, "HINDCAST_SINK_INSTANCE": "sink"}
