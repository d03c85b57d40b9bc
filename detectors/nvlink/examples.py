"""Tapes for the laws and the tests: NVLinks that fail, and what only looks like it."""

from collections.abc import Mapping, Sequence

import numpy as np

from detectors.contract import FloatArray, LogRecord
from detectors.laws import Examples, Fault
from detectors.tapes.gpus import START, Cluster, bus, instant, kernel, name, xid_line
from detectors.tapes.tape import Tape

XID = "DCGM_FI_DEV_XID_ERRORS"
CRC, DATA = "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"
REPLAY = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"
RECOVERY = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
SENT, RECEIVED = "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"
UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
CLUSTER = Cluster(nodes=2, gpus=4)
LONG = Cluster(nodes=4, gpus=4, minutes=18, interval_s=10)
WIDE = Cluster(nodes=8, gpus=4, minutes=12)
"""Enough GPUs for long enough to know what is usual here."""

Columns = dict[str, FloatArray]


def links(cluster: Cluster = CLUSTER, pauses: Sequence[tuple[float, float]] = ()) -> Columns:
    """Return what healthy links report under a job whose last stage sends half as much; all rest in pauses."""
    chance = cluster.chance("links")
    count = cluster.nodes * cluster.gpus
    shape = (cluster.ticks, count)
    columns = {field: cluster.steady(0) for field in (XID, CRC, DATA, REPLAY, RECOVERY)}
    columns[CRC] += np.floor(chance.exponential(20, count)) + np.cumsum(chance.random(shape) < 2e-3, axis=0)
    columns[REPLAY] += np.where(np.arange(count) == 1, 4, 0)
    columns[XID] += np.where(np.arange(count) == 6, 74, 0)
    share = np.where(cluster.node == cluster.nodes - 1, 0.5, 1.0)
    traffic = 80e9 * share * (1 + 0.02 * chance.normal(size=shape))
    working = np.ones(shape, bool)
    for begin_s, end_s in pauses:
        working &= (cluster.at_s < begin_s) | (cluster.at_s >= end_s)
    columns[SENT], columns[RECEIVED] = np.where(working, traffic, 1e6), np.where(working, 0.97 * traffic, 1e6)
    columns[UTILISATION] = np.where(working, 98.0, 0.0)
    return columns


def counting(
    cluster: Cluster,
    columns: Mapping[str, FloatArray],
    field: str,
    place: int,
    span_s: tuple[float, float],
    rate: float,
) -> Columns:
    """Return the columns with errors at a rate (errors/s) on one GPU."""
    at_s = cluster.at_s[:, place]
    on = (at_s >= span_s[0]) & (at_s < span_s[1])
    changed = {name_: column.copy() for name_, column in columns.items()}
    errors = cluster.chance(field).poisson(rate * cluster.interval_s, cluster.ticks)
    changed[field][:, place] += np.cumsum(np.where(on, errors, 0))
    return changed


def weakened(
    cluster: Cluster, columns: Mapping[str, FloatArray], places: Sequence[int], span_s: tuple[float, float], left: float
) -> Columns:
    """Return the columns with a part of the traffic left on some GPUs."""
    changed = {name_: column.copy() for name_, column in columns.items()}
    for place in places:
        on = (cluster.at_s[:, place] >= span_s[0]) & (cluster.at_s[:, place] < span_s[1])
        for field in (SENT, RECEIVED):
            changed[field][on, place] *= left
    return changed


def link_down(at_s: float, node: int, gpu: int) -> list[LogRecord]:
    """Return the driver's line about a link that failed, and what the program saw."""
    text = "NVLink: fatal error detected on link 6(0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    return [xid_line(at_s, node, gpu, 74, text), xid_line(at_s + 0.4, node, (gpu + 1) % 4, 45, "Ch 00000008")]


def switch_fatal(at_s: float, node: int) -> list[LogRecord]:
    """Return the lines of a node whose NVSwitch fails, and of its GPUs."""
    message = (
        "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33"
    )
    return [
        kernel(at_s, node, "nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 33 LTSSM fault up"),
        LogRecord(int(instant(at_s + 0.3)), "fabricmanager", f"[ERROR] [tid 841] {message}", "error", name(node)),
        *(
            xid_line(at_s + 0.5 + 0.1 * gpu, node, gpu, 74, "NVLink: fatal error detected on link 3")
            for gpu in range(4)
        ),
    ]


def _errors() -> Tape:
    columns = counting(CLUSTER, links(), CRC, 2, (150, 300), 250.0)
    return CLUSTER.tape(counting(CLUSTER, columns, REPLAY, 2, (150, 300), 1.5))


def _slow_errors() -> Tape:
    return WIDE.tape(counting(WIDE, links(WIDE), CRC, 5, (420, 9999), 4.0))


def _stated() -> Tape:
    columns = links()
    columns[XID][CLUSTER.at_s[:, 3] >= 200, 3] = 74
    return CLUSTER.tape(columns, logs=link_down(200, 0, 3))


def _switch() -> Tape:
    columns = links()
    for place in range(4, 8):
        columns = counting(CLUSTER, columns, CRC, place, (180, 400), 180.0)
        columns[XID][CLUSTER.at_s[:, place] >= 181, place] = 74
    return CLUSTER.tape(columns, logs=switch_fatal(180, 1))


def _bandwidth() -> Tape:
    return LONG.tape(weakened(LONG, links(LONG, pauses=[(200, 231)]), [1], (600, 9999), 0.4))


def _no_fault_of_the_links() -> Tape:
    """Lose a GPU and its partners' links with it, count two replays months apart, and log what is not fatal."""
    columns = links()
    columns[REPLAY][:, 5] += CLUSTER.at_s[:, 5] > 50
    columns = counting(CLUSTER, columns, RECOVERY, 1, (200, 215), 0.6)
    columns[CRC][:, 7] += np.where(CLUSTER.at_s[:, 7] > 333, 30, 0)
    gone = (CLUSTER.at_s >= 200) & (np.arange(8) == 0)
    lines = [
        xid_line(200.2, 0, 1, 74, "NVLink: fatal error detected on link 2"),
        xid_line(201, 0, 0, 79, "GPU has fallen off the bus."),
        xid_line(90, 1, 2, 137, "NVLink privilege error"),
        xid_line(95, 1, 2, 149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x004505c6 0x00000000)"),
        kernel(100, 1, "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28006, Non-fatal, Link 29 MC TS crumbstore MCTO"),
        LogRecord(
            int(instant(100.2)),
            "fabricmanager",
            f"[ERROR] [tid 12727] detected NVSwitch non-fatal error 28006 on fid 0, GPU 0000:{bus(2)}:00.0",
            "error",
            name(1),
        ),
    ]
    return CLUSTER.tape(columns, gone=gone, logs=lines)


def _uneven_work() -> Tape:
    """Rest now and then, and let the whole job slow down for good."""
    columns = links(LONG, pauses=[(120, 151), (430, 471), (600, 633)])
    return LONG.tape(weakened(LONG, columns, range(16), (500, 9999), 0.4))


def _no_links() -> Tape:
    columns = {field: np.full_like(column, np.nan) for field, column in links().items()}
    columns[UTILISATION] = CLUSTER.steady(97)
    return CLUSTER.tape(columns)


EXAMPLES = Examples(
    healthy=[CLUSTER.tape(links()), _no_fault_of_the_links(), _uneven_work(), _no_links()],
    faults=[
        Fault(_errors(), {"node": name(0), "gpu": 2}, START + 150_000),
        Fault(_slow_errors(), {"node": name(1), "gpu": 1}, START + 420_000),
        Fault(_stated(), {"node": name(0), "gpu": 3}, START + 200_000),
        Fault(_switch(), {"node": name(1)}, START + 180_000),
        Fault(_bandwidth(), {"node": name(0), "gpu": 1}, START + 600_000),
    ],
)
