"""What a recorder reads: the GPUs of this machine, each reading under the name and in the unit of its DCGM field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.recording.model import Gpu


@dataclass(frozen=True)
class Xid:
    """An XID error as the driver reports it: which GPU, and the code."""

    gpu: int
    code: int


class Sensors(Protocol):
    """The GPUs of one machine."""

    model: str
    """Their name, as ``NVIDIA H100 80GB HBM3``; of several models a comma-separated list."""
    driver: str

    @property
    def gpus(self) -> Sequence[Gpu]:
        """What each GPU should be: for the topology."""
        ...

    def read(self) -> Sequence[Mapping[str, float]]:
        """Return one reading of every GPU, by DCGM field; what a GPU does not support is left out."""
        ...

    def xids(self) -> Sequence[Xid]:
        """Return the XID errors since the last call."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...
