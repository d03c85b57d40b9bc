"""Which entity a series is of, by the labels of the usual exporters, and the topology that they add up to."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from services.recording.importers.parts.schedulers.pod_labels import NODE_LABELS, is_exporters, job_of
from services.recording.importers.parts.series.known_series import Reading, naming_labels, reading_of
from services.recording.model import Gpu, Mount, Nic, Node, Switch, Topology

Labels = Mapping[str, str]
Key = tuple[str | int, ...]
"""An entity: the stream's key columns without those that are read as values (`unit` stands beside a sensor)."""

_DEVICE = re.compile(r"nvidia(\d+)")
_PORT = re.compile(r":\d+$")
_MODELS = ("modelName", "model_name", "card_series", "card_model")
"""NVIDIA's and AMD's labels with what a GPU is called."""
_OF_AN_INSTANCE = ("DCGM_FI_PROF_", "DCGM_FI_DEV_FB_")
"""Fields that a MIG instance has for itself; the others it repeats from its GPU.

An instance's are columns of their own, with its number: ``DCGM_FI_DEV_FB_USED_MIG3``.
"""
_SERIES_MOST = 1_000_000
"""Series remembered, some 2 GB; beyond it all is forgotten and learnt again: a live cluster's jobs make new ones."""
FALLBACK = "__node__"
"""A label for the node that a series is of where its own labels name none."""


def instance_host(labels: Labels) -> str:
    """Return the host of the exporter that was scraped, without its port; empty where no label says it.

    What a Prometheus scrapes of another, or of a gateway that others push to, has that one's address as its instance.
    """
    return _PORT.sub("", labels.get("exported_instance") or labels.get("instance", "")).strip("[]")


class _NameTakenError(Exception):
    """A node has the name of a switch that was met before it, or a switch that of a node."""


@dataclass(frozen=True)
class Place:
    """Where a series belongs: the entity, and what its samples are."""

    reading: Reading
    key: Key
    job: str | None = None
    """The batch job or pod that the exporter says uses the GPU."""
    part: bool = False
    """Whether it uses an instance of the GPU (MIG), and others may use the rest."""


@dataclass
class _Machine:
    model: str | None = None
    gpus: dict[int, dict[str, str]] = field(default_factory=dict)
    nics: set[str] = field(default_factory=set)


class Census:
    """Counts the machines by the labels of their series.

    `hosts` gives a node's name by the host part of ``instance``, or by the exporter's pod; `node` is the name of those
    series that name none.
    """

    def __init__(self, hosts: Mapping[str, str] | None = None, node: str | None = None) -> None:
        self._hosts = dict(hosts or {})
        self._node = node
        self._machines: dict[str, _Machine] = {}
        self._switches: set[str] = set()
        self._mounts: set[str] = set()
        self._managed: set[str] = set()
        self._sensors: dict[tuple[str, str, str], str] = {}
        self._gpu_nodes: dict[str, str] = {}
        self.called_by_pods: set[str] = set()
        """Nodes that no label names: they have the name of the exporter's pod."""
        self._known: dict[frozenset[tuple[str, str]], Place | str] = {}

    def meet(self, hosts: Mapping[str, str]) -> None:
        """Learn node names by host; series of a host that is called otherwise now are looked at again."""
        if any(self._hosts.get(host) != name for host, name in hosts.items()):
            self._hosts |= hosts
            self._known.clear()

    def place(self, metric: str, labels: Labels) -> Place | str:
        """Return where a series belongs, or in words why nowhere."""
        identity = frozenset((*labels.items(), ("__name__", metric)))
        found = self._known.get(identity)
        if found is None:
            if len(self._known) >= _SERIES_MOST:
                self._known.clear()
            found = self._known[identity] = self.look(metric, labels)
        return found

    def look(self, metric: str, labels: Labels) -> Place | str:
        """Return the same as `place`, for one who remembers it."""
        try:
            return self._look(metric, labels)
        except _NameTakenError:
            return "one name is that of a node and of a switch: it stays what it was first"

    def _look(self, metric: str, labels: Labels) -> Place | str:
        reading = reading_of(metric, naming_labels(metric, labels))
        if reading is None:
            return "the metric has no place in a recording"
        made: Key | str = {
            "dcgm": self._gpu,
            "nic": self._nic,
            "switch": self._port,
            "bmc": self._sensor,
            "steps": _rank,
            "storage": self._mount,
        }[reading.stream](reading, labels)
        if isinstance(made, str):
            return made
        if reading.stream == "steps" and made[2]:
            self._machine(str(made[2]))
        if reading.stream != "dcgm":
            return Place(reading, made, labels.get("hpc_job") or None)
        instance = labels.get("GPU_I_ID", "")
        if instance and reading.column.startswith(_OF_AN_INSTANCE):
            reading = replace(reading, column=f"{reading.column}_MIG{instance}")
        return Place(reading, made, job_of(labels), bool(instance))

    def host(self, labels: Labels) -> str | None:
        """Return the name of the node that a series is of, None where its labels do not say it."""
        named = labels.get("Hostname") or labels.get("hostname")
        if named and not is_exporters(named, labels):
            return named
        for label in (*NODE_LABELS, FALLBACK):
            if labels.get(label):
                return labels[label]
        if named in self._hosts:
            return self._hosts[named]
        host = instance_host(labels)
        return (self._hosts.get(host, host) or None) if host else self._node

    def notes(self) -> list[str]:
        """Return what was assumed of the machines."""
        pods = ", ".join(sorted(self.called_by_pods)[:3])
        return (
            [f"no label names the node of {pods}: it is called by the exporter's pod (--node names it)"] if pods else []
        )

    @property
    def size(self) -> tuple[int, ...]:
        """Return how many machines and parts of them were seen: it grows with what `topology` says."""
        machines = self._machines.values()
        gpus, nics = sum(len(one.gpus) for one in machines), sum(len(one.nics) for one in machines)
        return len(machines), gpus, nics, len(self._switches), len(self._mounts), len(self._managed)

    @property
    def held(self) -> int:
        """Return how much is remembered of machines, series aside."""
        return sum(self.size) + len(self._sensors) + len(self._gpu_nodes) + len(self.called_by_pods)

    def keep(self, entities: AbstractSet[tuple[str, Key]]) -> None:
        """Forget all machines, and parts of them, of which none of these entities (stream, key) is."""
        names = {key[2] if stream == "steps" else key[0] for stream, key in entities}
        self._machines = {name: machine for name, machine in self._machines.items() if name in names}
        for name, machine in self._machines.items():
            machine.nics = {nic for nic in machine.nics if ("nic", (name, nic)) in entities}
        uuids = {gpu.get("uuid") for machine in self._machines.values() for gpu in machine.gpus.values()}
        self._gpu_nodes = {uuid: node for uuid, node in self._gpu_nodes.items() if uuid in uuids}
        self._switches &= names
        self._managed &= names
        self.called_by_pods &= names
        self._mounts &= {key[1] for stream, key in entities if stream == "storage"}
        # A sensor's number counts for those of the same name too: "Temp" is the first of "Temp #4".
        sensors = {(key[0], str(key[1]).rpartition(" #")[0], key[2]) for stream, key in entities if stream == "bmc"}
        self._sensors = {
            sensor: number
            for sensor, number in self._sensors.items()
            if sensor in sensors or ("bmc", sensor) in entities
        }

    def forget(self, gone: AbstractSet[str]) -> None:
        """Forget machines and mounts by name; their series are looked at again if they come back."""
        self._machines = {name: machine for name, machine in self._machines.items() if name not in gone}
        self._gpu_nodes = {uuid: node for uuid, node in self._gpu_nodes.items() if node not in gone}
        self._sensors = {sensor: number for sensor, number in self._sensors.items() if sensor[0] not in gone}
        self._hosts = {host: name for host, name in self._hosts.items() if name not in gone}
        for names in (self._switches, self._managed, self._mounts, self.called_by_pods):
            names.difference_update(gone)
        self._known.clear()

    def topology(self) -> Topology:
        """Return the machines seen so far."""
        managed = {name: _Machine() for name in self._managed - self._switches}
        return Topology(
            nodes=[_node(name, machine) for name, machine in sorted((managed | self._machines).items())],
            switches=[Switch(name=name) for name in sorted(self._switches)],
            mounts=[Mount(mount=name) for name in sorted(self._mounts)],
        )

    def _machine(self, node: str) -> _Machine:
        if node in self._switches:
            raise _NameTakenError
        return self._machines.setdefault(node, _Machine())

    def _gpu(self, _reading: Reading, labels: Labels) -> Key | str:
        if any(labels.get(name) for name in ("nvlink", "nvswitch", "cpu", "cpucore")):
            return "a series of one link, switch chip or CPU: a recording holds a GPU's sums"
        if labels.get("GPU_I_ID") and not re.fullmatch(r"\d{1,2}", labels["GPU_I_ID"]):
            return "the labels number no MIG instance"
        if labels.get("gpu_partition_id", "0") not in {"0", "NA"}:
            return "a series of a partition of a GPU: a recording holds whole GPUs"
        uuid = next((labels[name] for name in ("UUID", "gpu_uuid", "uuid") if labels.get(name)), "")
        # An exporter that names its pod only: a pod started anew has the same GPUs as the one before.
        direct = {name: value for name, value in labels.items() if name != FALLBACK}
        # A file may be named by its number and not by its node: a GPU is where it was before.
        node = self.host(direct) or self._gpu_nodes.get(uuid) or self.host(labels)
        if not node:
            node = labels.get("Hostname") or labels.get("hostname")
            if not node:
                return "the labels name no node"
            self.called_by_pods.add(node)
        if uuid:
            self._gpu_nodes.setdefault(uuid, node)
        device = _DEVICE.fullmatch(labels.get("device", ""))
        number = labels.get("gpu") or labels.get("gpu_id") or (device[1] if device else "")
        if not (number.isascii() and number.isdigit() and int(number) < 256):
            return "the labels number no GPU"
        machine = self._machine(node)
        facts = machine.gpus.setdefault(int(number), {})
        for fact, value in (("uuid", uuid), ("pci_bus_id", labels.get("pci_bus_id"))):
            if value:
                facts.setdefault(fact, value)
        machine.model = machine.model or next((labels[name] for name in _MODELS if labels.get(name)), None)
        return node, int(number)

    def _nic(self, _reading: Reading, labels: Labels) -> Key | str:
        node, device = self.host(labels), labels.get("device", "")
        if not node or not device:
            return "the labels name no node and device"
        port = labels.get("port", "1")
        nic = device if port == "1" else f"{device}:{port}"
        self._machine(node).nics.add(nic)
        return node, nic

    def _port(self, _reading: Reading, labels: Labels) -> Key | str:
        switch = labels.get("switch") or self.host(labels)
        port = labels.get("device") or labels.get("interface") or ""
        if not switch or not port:
            return "the labels name no switch and port"
        if switch in self._machines:
            raise _NameTakenError
        self._switches.add(switch)
        return switch, port

    def _sensor(self, reading: Reading, labels: Labels) -> Key | str:
        node, name = self.host(labels), reading.sensor or labels.get("name") or labels.get("id", "")
        if not node or not name:
            return "the labels name no node and sensor"
        self._managed.add(node)
        number = labels.get("id", "")
        # Several sensors of one board may share a name; the number then distinguishes them.
        first = self._sensors.setdefault((node, name, reading.unit), number)
        return node, name if number == first else f"{name} #{number}", reading.unit

    def _mount(self, _reading: Reading, labels: Labels) -> Key | str:
        node, mount = labels.get("node") or self.host(labels), labels.get("mount", "")
        if not node or not mount:
            return "the labels name no node and mount"
        self._machine(node)
        self._mounts.add(mount)
        return node, mount


def _rank(_reading: Reading, labels: Labels) -> Key | str:
    job, rank = labels.get("job_id", ""), labels.get("rank", "-1")
    if not job or not re.fullmatch(r"-1|[0-9]{1,9}", rank):
        return "the labels name no job and rank"
    node = labels.get("node", "")
    if (rank == "-1") == bool(node):
        return "a rank without a node"
    return job, int(rank), node


def _node(name: str, machine: _Machine) -> Node:
    gpus = [Gpu.model_validate({"gpu": number, **facts}) for number, facts in sorted(machine.gpus.items())]
    facts: dict[str, object] = {"name": name}
    if machine.model:
        facts["gpu_model"] = machine.model
    if gpus:
        facts["gpus"] = gpus
    if machine.nics:
        facts["nics"] = [Nic(nic=nic) for nic in sorted(machine.nics)]
    return Node.model_validate(facts)
