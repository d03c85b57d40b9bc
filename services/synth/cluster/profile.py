"""A cluster profile: what the machines are, in numbers, and the topology that follows from it."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.kit.documents import read_yaml
from services.kit.errors import UsageError
from services.recording.model import Gpu, Link, Mount, Nic, Node, Switch, Topology
from services.recording.reader import describe
from services.synth.cluster.fabric import Fabric, fabric_of
from services.synth.cluster.worlds import Conditions, draw


class Strict(BaseModel):
    """A part of a profile or scenario: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class GpuProfile(Strict):
    """One GPU model. Watts, MHz, MiB, kelvin per watt, seconds."""

    model: str
    power_limit_w: float
    idle_w: float = Field(description="no process on the GPU")
    resident_w: float = Field(description="a process holds the GPU at full clocks and computes nothing")
    collective_w: float = Field(description="all it does is wait in a collective")
    training_w: float = Field(description="what dense training would draw at full clocks, were there no limit")
    power_spread: float = Field(description="relative standard deviation between GPUs of a kind")
    sm_clock_mhz: float
    sm_clock_idle_mhz: float
    sm_clock_step_mhz: float
    knee_mhz: float = Field(description="below this clock the voltage falls no further")
    knee_voltage: float = Field(description="voltage there, relative to that at full clock")
    mem_clock_mhz: float
    fb_total_mib: int
    fb_reserved_mib: int
    pcie_gen: int
    pcie_width: int
    kelvin_per_w: float
    hbm_kelvin_per_w: float
    thermal_time_constant_s: float
    hbm_time_constant_s: float
    first_pci_buses: list[str] = Field(description="of a node's GPUs: bus, or domain:bus where it is not domain 0")
    max_op_c: float = Field(default=85.0, description="the driver starts to lower clocks here (DCGM's MAX_OP_TEMP)")
    slowdown_c: float = Field(default=89.0, description="the hardware halves clocks here")
    hbm_max_op_c: float = 95.0
    pcie_idle_gen: int | None = Field(default=None, description="a link with no process trains down to this")
    nvlinks: int = Field(default=12, ge=0, description="links of one GPU; 0: PCIe only")
    nvlink_gb_s_per_link: float = Field(default=25.8, gt=0, description="of one link and direction")
    nvlink_gen: int = Field(default=4, ge=1, description="from 5 on DCGM counts recoveries in a field of their own")

    def pci_address(self, gpu: int) -> str:
        """Return domain, bus and device of a node's GPU, as the kernel writes them."""
        bus = self.first_pci_buses[gpu % len(self.first_pci_buses)]
        return f"{bus if ':' in bus else f'0000:{bus}'}:00"


class NodeProfile(Strict):
    """One machine: how many GPUs, what the rest of it draws, how it is fed and cooled."""

    gpus: int = Field(gt=0)
    host_idle_w: float
    host_busy_w: float
    fans: int
    fan_idle_rpm: float
    fan_full_rpm: float
    fan_full_w: float
    psu_efficiency: float
    inlet_c: float
    brake_delay_s: float = Field(description="from a lost feed to the firmware's power brake")
    nics: int = Field(default=0, ge=0, description="ports into the network that `network` describes")
    nic_gbps: float = Field(default=100.0, gt=0, description="of one such port")
    nic_pci_buses: list[str] = Field(default_factory=lambda: ["0c", "2a", "41", "58", "86", "a5", "bd", "d5"])


class NetworkProfile(Strict):
    """The network that jobs' collectives go over. Port `i` of a node hangs on leaf `i` of the node's group of leaves.

    So a rail-optimised network has as many leaves in a group as nodes have ports, and a pair of top-of-rack switches
    is a group of two leaves with the rack's nodes. Every leaf has `links_per_spine` cables to every spine.
    """

    fabric: Literal["roce", "infiniband", "ethernet"] = Field(
        default="roce", description="which counters there are: PFC, ECN and CNPs; credits (xmit_wait); neither"
    )
    nodes_per_leaf: int | None = Field(default=None, gt=0, description="nodes of a group of leaves; else a rack's")
    leaves_per_group: int | None = Field(default=None, gt=0, description="else one for every port of a node")
    spines: int = Field(default=0, ge=0, description="0: one group of leaves holds all nodes, and nothing is above it")
    links_per_spine: int = Field(default=1, gt=0)
    uplink_gbps: float | None = Field(default=None, gt=0, description="else as fast as a node's port")
    routing: Literal["ecmp", "static", "adaptive"] = "ecmp"
    routing_efficiency: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of the uplinks' bandwidth that collectives get, else as routing does",
    )
    usual_load: float = Field(default=0.45, gt=0, le=1, description="of a node's port, while a job steps")
    pfc: bool = Field(default=True, description="RoCE: priority 3 is lossless, full queues pause the sender")
    ecn: bool = Field(default=True, description="RoCE: queues mark packets before they are full")
    carries_storage: bool = Field(default=False, description="the file system is reached over this network too")
    storage_servers: int = Field(default=0, ge=0, description="machines of the file system on this network")
    storage_server_name: str = "ss{:02d}"
    storage_server_nics: int = Field(default=1, gt=0)
    storage_nic_gbps: float = Field(default=100.0, gt=0)
    storage_leaves: int = Field(default=0, ge=0, description="leaves of the servers' own; 0: they hang on the nodes'")
    nic_name: str = "mlx5_{}"
    leaf_name: str = Field(default="leaf-{group}-{plane}", description="of group, plane (numbers from 1), letter")
    spine_name: str = "spine-{}"
    port_prefix: str = "Ethernet"
    port_first: int = Field(default=0, ge=0, description="number of a switch's first port")
    port_step: int = Field(default=8, gt=0, description="numbers from one port to the next: SONiC counts lanes")
    nic_interval_s: float = Field(default=15.0, gt=0)
    switch_interval_s: float = Field(default=30.0, gt=0)

    def port_name(self, seat: int) -> str:
        """Return the name of a switch's port by its place, from 0."""
        return f"{self.port_prefix}{self.port_first + self.port_step * seat}"


class MountProfile(Strict):
    """A file system as its clients see it. GB/s of all clients together (of one node, where it is local), ms."""

    mount: str
    kind: str
    read_gb_s: float = Field(gt=0)
    write_gb_s: float = Field(gt=0)
    read_latency_ms: float = Field(default=1.2, gt=0, description="of one request, unloaded")
    write_latency_ms: float = Field(default=1.8, gt=0)
    servers: int = Field(default=8, gt=0, description="object servers that files are spread over")
    contention: float = Field(default=0.03, ge=0, description="relative deviation of what a job gets, step to step")
    settle_steps: int = Field(default=0, ge=0, description="steps until its caches hold what a job reads again")
    cold_factor: float = Field(default=1.0, ge=1, description="so much longer a read takes at a job's first steps")
    local: bool = Field(default=False, description="every node has its own: a burst buffer")
    drains_to: str | None = Field(default=None, description="what is written here is copied on to that mount")
    drain_gb_s: float = Field(default=0.5, gt=0, description="of one node")

    def scaled(self, ratio: float) -> "MountProfile":
        """Return the file system of a cluster so many times as large."""
        shared = 1.0 if self.local else ratio
        return self.model_copy(update={"read_gb_s": self.read_gb_s * shared, "write_gb_s": self.write_gb_s * shared})


_READ_GB_S, _WRITE_GB_S = 0.42, 0.16
"""Of a node, where a profile has no more than a mount's name: Vela's 40 and 15 GB/s, 96 nodes (2407.05467, 2.1.3)."""


class ClusterProfile(Strict):
    """A cluster of equal machines in racks and pods behind a leaf-spine network."""

    name: str
    nodes: int = Field(gt=0)
    fewest_nodes: int = Field(default=1, gt=0, description="a scale makes it no smaller: its story is its proportions")
    node_name: str
    nodes_per_rack: int = Field(gt=0)
    racks_per_pod: int = Field(gt=0)
    nvlink_domain_nodes: int = Field(default=1, gt=0, description="nodes whose GPUs share one NVLink fabric")
    pdus_per_rack: int = Field(default=2, gt=0, description="every node hangs on all of its rack's")
    mount: str
    mount_kind: str
    storage: list[MountProfile] = Field(default_factory=list, description="if there is more to say of mounts")
    scheduler: Literal["slurm", "lsf"] = "slurm"
    gpu: GpuProfile
    node: NodeProfile
    network: NetworkProfile | None = Field(default=None, description="none: no network telemetry is made")
    collector_interval_s: float = Field(default=5.0, gt=0, le=300)
    bmc_interval_s: float = 60.0
    storage_interval_s: float = Field(default=15.0, gt=0, le=300)
    missing_scrapes: float = Field(default=0.001, ge=0, lt=1)
    repeated_scrapes: float = Field(default=0.004, ge=0, lt=1)
    noise: float = Field(default=1.0, ge=0, le=10, description="times the usual scatter of readings and of steps")

    world: int | None = Field(default=None, description="the world it is in (--world), which sets much of the above")

    @property
    def conditions(self) -> Conditions:
        """What its world has and others have not."""
        return draw(self.world)

    @cached_property
    def node_names(self) -> list[str]:
        """Node names in order; node ``i`` has the GPUs ``i * gpus`` to ``(i + 1) * gpus - 1`` of the cluster."""
        return [self.node_name.format(number) for number in range(1, self.nodes + 1)]

    @property
    def gpu_count(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.node.gpus

    @cached_property
    def mounts(self) -> list[MountProfile]:
        """The file systems; the first is the one that jobs use if they do not say which."""
        if self.storage:
            return self.storage
        read, write = _READ_GB_S * self.nodes, _WRITE_GB_S * self.nodes
        return [MountProfile(mount=self.mount, kind=self.mount_kind, read_gb_s=read, write_gb_s=write)]

    def mount_of(self, path: str | None) -> MountProfile:
        """Return a file system by its mount, the first for None; UserError if there is none such."""
        for mount in self.mounts:
            if path in {None, mount.mount}:
                return mount
        there = ", ".join(mount.mount for mount in self.mounts)
        raise UsageError(f"profile {self.name}: has no mount {path!r}", remedy=f"mounts are {there}")

    @cached_property
    def fabric(self) -> Fabric | None:
        """The wiring of its network, None where it has none."""
        return fabric_of(self)

    def node_index(self, name: str) -> int:
        """Return a node's place in `node_names`; UserError if there is none of that name."""
        try:
            return self.node_names.index(name)
        except ValueError:
            raise UsageError(
                f"profile {self.name}: has no node {name!r}",
                remedy=f"nodes are {self.node_names[0]} to {self.node_names[-1]}",
            ) from None

    def topology(self) -> Topology:
        """Return the machines and their cables; storage servers are nodes without GPUs."""
        fabric = self.fabric
        nodes: list[Node] = []
        for index, name in enumerate(self.node_names):
            rack_number = index // self.nodes_per_rack + 1
            rack, pod = f"r{rack_number:02d}", f"su{(rack_number - 1) // self.racks_per_pod + 1}"
            feeds = [f"pdu-{letter}-{rack}" for letter in "abcdefgh"[: self.pdus_per_rack]]
            nodes.append(
                Node(
                    name=name,
                    rack=rack,
                    pod=pod,
                    gpu_model=self.gpu.model,
                    power_feeds=feeds,
                    gpus=[self._gpu(name, gpu) for gpu in range(self.node.gpus)],
                    nics=[] if fabric is None else _nics(fabric, index),
                )
            )
        switches: list[Switch] = []
        links: list[Link] = []
        if fabric is not None:
            servers = range(self.nodes, len(fabric.machines))
            nodes += [Node(name=fabric.machines[one], rack="storage", nics=_nics(fabric, one)) for one in servers]
            switches = [Switch(name=leaf.name, role="leaf", pod=leaf.pod) for leaf in fabric.leaves]
            switches += [Switch(name=spine, role="spine") for spine in fabric.spines]
            for cable in range(fabric.hosts, fabric.cables):
                a, b = (f"{end['switch']}:{end['port']}" for end in fabric.ends(cable))
                links.append(Link(a=a, b=b, gbps=fabric.up_gbps))
        mounts = [Mount(mount=mount.mount, kind=mount.kind) for mount in self.mounts]
        return Topology(nodes=nodes, switches=switches, links=links, mounts=mounts)

    def _gpu(self, node: str, gpu: int) -> Gpu:
        digest = hashlib.sha256(f"{self.name}/{node}/{gpu}".encode()).hexdigest()
        uuid = "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
        return Gpu(
            gpu=gpu,
            uuid=f"GPU-{uuid}",
            pci_bus_id=f"0000{self.gpu.pci_address(gpu)}.0",
            pcie_gen=self.gpu.pcie_gen,
            pcie_width=self.gpu.pcie_width,
            power_limit_w=self.gpu.power_limit_w,
        )


def _nics(fabric: Fabric, machine: int) -> list[Nic]:
    cables = np.flatnonzero(fabric.host_machine == machine)
    return [
        Nic(
            nic=fabric.nic(int(fabric.host_number[cable])),
            switch=fabric.leaves[int(fabric.host_leaf[cable])].name,
            port=fabric.host_port[cable],
            gbps=float(fabric.host_gbps[cable]),
        )
        for cable in cables
    ]


def load_yaml(path: Path, kind: Literal["profile", "scenario", "training preset"]) -> object:
    """Return a YAML file's content; UserError where it is missing or no YAML."""
    try:
        return read_yaml(path)
    except FileNotFoundError:
        remedy = "`hindcast list` shows the scenarios" if kind == "scenario" else f"give the path of a {kind}'s file"
        raise UsageError(f"{path}: no such {kind}", remedy=remedy) from None


def load_profile(path: Path) -> ClusterProfile:
    """Read a cluster profile; UserError names the file and every field that is wrong."""
    try:
        return ClusterProfile.model_validate(load_yaml(path, "profile"))
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error)}", remedy="correct the profile") from error
