"""How each signal is shown."""

from dataclasses import dataclass

from detectors.contract import Kind
from detectors.faults import faults


@dataclass(frozen=True)
class Signal:
    """A column of a stream (a regular expression where names vary); shown as ``scale`` times its value.

    A counter is shown as its growth a second.
    """

    stream: Kind
    column: str
    title: str
    unit: str
    scale: float = 1.0
    counter: bool = False


CLOCK = Signal("dcgm", "DCGM_FI_DEV_SM_CLOCK", "SM clock", "MHz")
POWER = Signal("dcgm", "DCGM_FI_DEV_POWER_USAGE", "GPU power", "W")
TEMPERATURE = Signal("dcgm", "DCGM_FI_DEV_GPU_TEMP", "GPU temperature", "°C")
MEMORY_TEMPERATURE = Signal("dcgm", "DCGM_FI_DEV_MEMORY_TEMP", "HBM temperature", "°C")
UTILISATION = Signal("dcgm", "DCGM_FI_DEV_GPU_UTIL", "GPU utilisation", "%")
TENSOR = Signal("dcgm", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor cores active", "share")
GENERATION = Signal("dcgm", "DCGM_FI_DEV_PCIE_LINK_GEN", "PCIe link generation", "")
LANES = Signal("dcgm", "DCGM_FI_DEV_PCIE_LINK_WIDTH", "PCIe lanes", "")
FROM_HOST = Signal("dcgm", "DCGM_FI_PROF_PCIE_RX_BYTES", "PCIe, from the host", "GB/s", 1e-9)
TO_HOST = Signal("dcgm", "DCGM_FI_PROF_PCIE_TX_BYTES", "PCIe, to the host", "GB/s", 1e-9)
REPLAYS = Signal("dcgm", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe replays", "a minute", 60.0, counter=True)
NVLINK = Signal("dcgm", "DCGM_FI_PROF_NVLINK_TX_BYTES", "NVLink, sent", "GB/s", 1e-9)
NVLINK_ERRORS = Signal(
    "dcgm", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLink CRC errors", "a second", counter=True
)
NVLINK_REPLAYS = Signal(
    "dcgm", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink replays", "a second", counter=True
)
SINGLE_BIT = Signal("dcgm", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "corrected memory errors", "a minute", 60.0, counter=True)
DOUBLE_BIT = Signal("dcgm", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "uncorrected memory errors", "so far")
REMAPPED = Signal("dcgm", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows remapped", "so far")
STEP = Signal("steps", "step_time_s", "step time", "s")
COMPUTE = Signal("steps", "compute_s", "computing in a step", "s")
WAITING = Signal("steps", "comm_wait_s", "waiting for others in a step", "s")
DATA = Signal("steps", "data_wait_s", "waiting for data in a step", "s")
LOSS = Signal("steps", "loss", "loss", "")
GRADIENT = Signal("steps", "grad_norm", "gradient norm", "")
SENT = Signal("nic", "port_xmit_data", "sent by the port", "Gbit/s", 32e-9, counter=True)
RECEIVED = Signal("nic", "port_rcv_data", "received by the port", "Gbit/s", 32e-9, counter=True)
SYMBOLS = Signal("nic", "symbol_error", "symbol errors", "a second", counter=True)
LINK = Signal("nic", "state", "link up", "1 or 0")
DISORDER = Signal("nic", "out_of_sequence", "packets out of order", "a second", counter=True)
PORT_OUT = Signal("switch", "SAI_PORT_STAT_IF_OUT_OCTETS", "sent by the port", "Gbit/s", 8e-9, counter=True)
PORT_IN = Signal("switch", "SAI_PORT_STAT_IF_IN_OCTETS", "received by the port", "Gbit/s", 8e-9, counter=True)
PAUSED = Signal("switch", r"SAI_PORT_STAT_PFC_\d_RX_PKTS", "PFC pauses received", "a second", counter=True)
PAUSES = Signal("switch", r"SAI_PORT_STAT_PFC_\d_TX_PKTS", "PFC pauses sent", "a second", counter=True)
MARKED = Signal("switch", "SAI_PORT_STAT_ECN_MARKED_PACKETS", "packets marked by ECN", "a second", counter=True)
DROPPED = Signal("switch", "SAI_PORT_STAT_IF_OUT_DISCARDS", "packets dropped", "a second", counter=True)
WAITS = Signal("switch", "port_xmit_wait", "ticks with data waiting to be sent", "a second", counter=True)
UNCORRECTABLE = Signal(
    "switch", "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES", "frames that FEC lost", "a second", counter=True
)
OPERATING = Signal("switch", "oper_up", "port up", "1 or 0")
READ_LATENCY = Signal("storage", "read_latency_ms", "read latency", "ms")
WRITE_LATENCY = Signal("storage", "write_latency_ms", "write latency", "ms")
QUEUE = Signal("storage", "waiters", "processes waiting", "")

_BY_COLUMN = {
    f"{signal.stream}.{signal.column}": signal for signal in tuple(globals().values()) if isinstance(signal, Signal)
}


def signals_of(fault: str) -> tuple[Signal, ...]:
    """Return the signals that show a fault, as its detector's faults.yaml names them."""
    return tuple(_BY_COLUMN[column] for column in faults()[fault].signals)
