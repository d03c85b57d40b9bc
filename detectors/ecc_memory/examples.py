"""Tapes for the laws and the tests: memory that fails, and memory that only looks as if it did."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detectors.contract import FloatArray, LogRecord
from detectors.laws import Examples, Fault
from detectors.tapes.gpus import START, Cluster, kernel, name, xid_line
from detectors.tapes.tape import Tape

XID = "DCGM_FI_DEV_XID_ERRORS"
SBE, DBE = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
LOST_ROWS, SPARE_ROWS = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"
PENDING, FAILURE = "DCGM_FI_DEV_ROW_REMAP_PENDING", "DCGM_FI_DEV_ROW_REMAP_FAILURE"
ROW_MARKED = "Row Remapper: New row (0x0000000e9b9107e0) marked for remapping, reset gpu to activate."

CLUSTER = Cluster()


def memory(cluster: Cluster = CLUSTER) -> dict[str, FloatArray]:
    """Return the fields of healthy memory with a past: counts that are not zero, a code of last week, a stray error."""
    chance = cluster.chance("memory")
    count = cluster.nodes * cluster.gpus
    columns = {field: cluster.steady(0) for field in (XID, SBE, DBE, LOST_ROWS, SPARE_ROWS, PENDING, FAILURE)}
    columns[SBE] += np.floor(chance.exponential(9, count)) + np.cumsum(chance.random((cluster.ticks, count)) < 2e-3, 0)
    columns[DBE] += np.where(np.arange(count) == 3, 2, 0)
    columns[LOST_ROWS] += np.where(np.arange(count) == 3, 1, 0)
    columns[XID] += np.where(np.arange(count) == 3, 48, 0)
    return columns


def stepped(
    cluster: Cluster, columns: Mapping[str, FloatArray], steps: Sequence[tuple[str, int, int, float, float]]
) -> Any:
    """Return the columns with steps: (field, node, gpu, from second, by how much, or to what for XIDs and gauges)."""
    changed = {field: column.copy() for field, column in columns.items()}
    for field, node, gpu, at_s, value in steps:
        place = cluster.of(node, gpu)
        later = cluster.at_s[:, place] >= at_s
        if field in (XID, PENDING, FAILURE):
            changed[field][later, place] = value
        else:
            changed[field][later, place] += value
    return changed


def stormy(
    cluster: Cluster, columns: Mapping[str, FloatArray], gpu: int, span_s: tuple[float, float], rate: float
) -> Any:
    """Return the columns with single-bit errors at a rate (errors/s) on one GPU, in bursts."""
    chance = cluster.chance("storm")
    on = (cluster.at_s[:, gpu] >= span_s[0]) & (cluster.at_s[:, gpu] < span_s[1])
    errors = np.where(on, chance.poisson(rate * cluster.interval_s, cluster.ticks), 0)
    changed = {field: column.copy() for field, column in columns.items()}
    changed[SBE][:, gpu] += np.cumsum(errors)
    return changed


def reset(cluster: Cluster, columns: Mapping[str, FloatArray], gpu: int, at_s: float) -> Any:
    """Return the columns with a reset of one GPU: what is volatile is 0, the gauges are clear."""
    changed = {field: column.copy() for field, column in columns.items()}
    later = cluster.at_s[:, gpu] >= at_s
    for field in (XID, PENDING):
        changed[field][later, gpu] = 0
    for field in (SBE, DBE):
        before = changed[field][~later, gpu]
        changed[field][later, gpu] -= before[-1] if len(before) else 0
    return changed


def double_bit_error(at_s: float, node: int, gpu: int) -> list[LogRecord]:
    """Return the driver's lines about an error that could not be corrected, and about what followed from it."""
    return [
        xid_line(at_s, node, gpu, 48, "An uncorrectable double bit error (DBE) has been detected"),
        xid_line(at_s + 0.1, node, gpu, 63, ROW_MARKED),
        xid_line(at_s + 0.2, node, gpu, 45, "Ch 00000008"),
        xid_line(at_s + 0.2, node, (gpu + 1) % CLUSTER.gpus, 43, "Ch 00000010"),
    ]


def _stated_and_counted() -> Tape:
    columns = stepped(CLUSTER, memory(), [(DBE, 1, 2, 200, 1), (XID, 1, 2, 200, 45), (XID, 1, 3, 200, 43)])
    return CLUSTER.tape(columns, logs=double_bit_error(200, 1, 2))


def _only_counted() -> Tape:
    return CLUSTER.tape(stepped(CLUSTER, memory(), [(DBE, 0, 1, 143, 1)]))


def _pending() -> Tape:
    columns = stepped(CLUSTER, memory(), [(SPARE_ROWS, 2, 0, 100, 1), (PENDING, 2, 0, 100, 1)])
    return CLUSTER.tape(reset(CLUSTER, columns, 8, 400), logs=[xid_line(99, 2, 0, 63, ROW_MARKED)])


LONGER = Cluster(nodes=9, minutes=20)
"""Enough GPUs for long enough to know what is usual here."""


def _storm() -> Tape:
    return LONGER.tape(stormy(LONGER, memory(LONGER), 5, (800, 940), 3.0))


def _failure() -> Tape:
    return CLUSTER.tape(stepped(CLUSTER, memory(), [(FAILURE, 2, 3, 250, 1)]))


def _rebooted() -> Tape:
    """Restart a node with a past: its counters begin again, the code of last week is gone."""
    columns = memory()
    for gpu in range(4):
        columns = reset(CLUSTER, columns, gpu, 240)
    gone = (CLUSTER.at_s >= 180) & (CLUSTER.at_s < 240) & (np.arange(12) < 4)
    return CLUSTER.tape(
        columns, gone=gone, logs=[LogRecord(START + 175_000, "scheduler", "reboot request for node v001")]
    )


def _programs_own() -> Tape:
    """Report codes that are the program's, or follow from something else."""
    lines = [xid_line(100 + gpu, 1, gpu, code) for gpu, code in enumerate((13, 31, 43, 45))]
    columns = stepped(CLUSTER, memory(), [(XID, 1, gpu, 101, code) for gpu, code in enumerate((13, 31, 43, 45))])
    columns = stormy(CLUSTER, columns, 7, (150, 154), 8.0)
    return CLUSTER.tape(columns, logs=[*lines, kernel(120, 0, "NVRM: GPU at PCI:0000:07:00: GPU-509665ad-b600")])


EXAMPLES = Examples(
    healthy=[CLUSTER.tape(memory()), _rebooted(), _programs_own()],
    faults=[
        Fault(_stated_and_counted(), {"node": name(1), "gpu": 2}, START + 200_000),
        Fault(_only_counted(), {"node": name(0), "gpu": 1}, START + 143_000),
        Fault(_pending(), {"node": name(2), "gpu": 0}, START + 99_000),
        Fault(_storm(), {"node": name(1), "gpu": 1}, START + 800_000),
        Fault(_failure(), {"node": name(2), "gpu": 3}, START + 250_000),
    ],
)
