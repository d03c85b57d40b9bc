"""A cluster profile: what the machines are, in numbers, and the topology that follows from it."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.kit.errors import UserError
from services.recording.model import Gpu, Link, Mount, Nic, Node, Switch, Topology
from services.recording.reader import describe


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
    first_pci_buses: list[str]


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
    nics: int
    nic_gbps: float


class ClusterProfile(Strict):
    """A cluster of equal machines in racks and pods behind a leaf-spine network."""

    name: str
    nodes: int = Field(gt=0)
    node_name: str
    nodes_per_rack: int = Field(gt=0)
    racks_per_pod: int = Field(gt=0)
    spines: int = Field(ge=0)
    mount: str
    mount_kind: str
    gpu: GpuProfile
    node: NodeProfile
    collector_interval_s: float = 5.0
    bmc_interval_s: float = 60.0
    missing_scrapes: float = Field(default=0.001, ge=0, lt=1)
    repeated_scrapes: float = Field(default=0.004, ge=0, lt=1)

    @cached_property
    def node_names(self) -> list[str]:
        """Node names in order; node ``i`` has the GPUs ``i * gpus`` to ``(i + 1) * gpus - 1`` of the cluster."""
        return [self.node_name.format(number) for number in range(1, self.nodes + 1)]

    @property
    def gpu_count(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.node.gpus

    def node_index(self, name: str) -> int:
        """Return a node's place in `node_names`; UserError if there is none of that name."""
        try:
            return self.node_names.index(name)
        except ValueError:
            raise UserError(
                f"profile {self.name}: has no node {name!r}",
                remedy=f"nodes are {self.node_names[0]} to {self.node_names[-1]}",
                exit_code=2,
            ) from None

    def topology(self) -> Topology:
        """Return the machines and their cables: port i of a node goes to leaf i of its rack, leaves to all spines."""
        nodes: list[Node] = []
        switches: list[Switch] = []
        links: list[Link] = []
        for index, name in enumerate(self.node_names):
            rack_number = index // self.nodes_per_rack + 1
            rack, pod = f"r{rack_number:02d}", f"su{(rack_number - 1) // self.racks_per_pod + 1}"
            leaves = [f"tor-{rack_number:02d}{'abcdefgh'[port]}" for port in range(self.node.nics)]
            if index % self.nodes_per_rack == 0:
                for leaf in leaves:
                    switches.append(Switch(name=leaf, role="leaf", pod=pod))
                    for spine in range(1, self.spines + 1):
                        a, b = f"{leaf}:Ethernet{192 + 8 * spine}", f"spine-{spine}:Ethernet{8 * len(links)}"
                        links.append(Link(a=a, b=b, gbps=self.node.nic_gbps))
            nodes.append(
                Node(
                    name=name,
                    rack=rack,
                    pod=pod,
                    gpu_model=self.gpu.model,
                    power_feeds=[f"pdu-a-{rack}", f"pdu-b-{rack}"],
                    gpus=[self._gpu(name, gpu) for gpu in range(self.node.gpus)],
                    nics=[
                        Nic(
                            nic=f"mlx5_{port}",
                            switch=leaf,
                            port=f"Ethernet{8 * (index % self.nodes_per_rack + 1)}",
                            gbps=self.node.nic_gbps,
                        )
                        for port, leaf in enumerate(leaves)
                    ],
                )
            )
        switches.extend(Switch(name=f"spine-{spine}", role="spine") for spine in range(1, self.spines + 1))
        return Topology(
            nodes=nodes, switches=switches, links=links, mounts=[Mount(mount=self.mount, kind=self.mount_kind)]
        )

    def _gpu(self, node: str, gpu: int) -> Gpu:
        digest = hashlib.sha256(f"{self.name}/{node}/{gpu}".encode()).hexdigest()
        uuid = "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
        buses = self.gpu.first_pci_buses
        return Gpu(
            gpu=gpu,
            uuid=f"GPU-{uuid}",
            pci_bus_id=f"00000000:{buses[gpu % len(buses)]}:00.0",
            pcie_gen=self.gpu.pcie_gen,
            pcie_width=self.gpu.pcie_width,
            power_limit_w=self.gpu.power_limit_w,
        )


def load_yaml(path: Path, kind: Literal["profile", "scenario"]) -> object:
    """Return a YAML file's content; UserError where it is missing or no YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such {kind}", remedy="`hindcast list` shows the scenarios", exit_code=2) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not YAML: {' '.join(str(error).split())}", remedy="correct the file", exit_code=2
        ) from error


def load_profile(path: Path) -> ClusterProfile:
    """Read a cluster profile; UserError names the file and every field that is wrong."""
    try:
        return ClusterProfile.model_validate(load_yaml(path, "profile"))
    except ValidationError as error:
        raise UserError(f"{path}: {describe(error)}", remedy="correct the profile", exit_code=2) from error
