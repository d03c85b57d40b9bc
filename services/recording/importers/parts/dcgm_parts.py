"""Fields of DCGM that a source gives in parts only: throttled time by its reason, XIDs as counts by their code.

What is made of parts stands beside them, where the field itself is not among the columns: detectors read the field.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from detectors.xid import XIDS, Step
from services.recording.importers.parts.amd_series import folded

_REASON = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_{}_NS"
_SUMS: Mapping[str, Sequence[str]] = {
    # NVML's counters (ns) by the field that counts the same. Heat has two: where both hold a GPU back, both count.
    "DCGM_FI_DEV_POWER_VIOLATION": ("SW_POWER_CAP",),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN"),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": ("SYNC_BOOST",),
}
_XID = "DCGM_FI_DEV_XID_ERRORS"
_COUNT = re.compile(r"DCGM_EXP_XID_ERRORS_COUNT_([1-9]\d*)")
"""How often dcgm-exporter saw a code in its window, the last five minutes if not set otherwise."""
_WEIGHT: Mapping[Step, int] = {"none": 0, "restart_app": 1, "reset": 2, "reboot": 3, "inspect": 3, "replace": 4}


def with_whole_fields(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of dcgm rows with the fields that it has only parts of; those of AMD's GPUs too."""
    batch = folded(batch)
    there = set(batch.schema.names)
    made: dict[str, Any] = {}
    for name, reasons in _SUMS.items():
        parts = [part for part in map(_REASON.format, reasons) if part in there]
        if parts and name not in there:
            values, known = zip(*(_cells(batch, part) for part in parts), strict=True)
            made[name] = _array(np.sum(values, axis=0), np.all(known, axis=0))
    counts = [int(found[1]) for name in batch.schema.names if (found := _COUNT.fullmatch(name))]
    if counts and _XID not in there:
        made[_XID] = _last_code(batch, counts)
    if not made:
        return batch
    return pa.RecordBatch.from_pydict({name: batch.column(name) for name in batch.schema.names} | made)


def _last_code(batch: pa.RecordBatch, counts: Sequence[int]) -> Any:
    """Return the code that was counted in each row; of several the one that asks for most, null where there is none."""
    codes = np.zeros(batch.num_rows)
    for code in sorted(counts, key=lambda code: (_WEIGHT[XIDS[code].ours] if code in XIDS else 0, -code)):
        values, known = _cells(batch, f"DCGM_EXP_XID_ERRORS_COUNT_{code}")
        codes = np.where(known & (values > 0), code, codes)
    return _array(codes, codes > 0)


def _cells(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    cells: Any = batch.column(name)
    values = np.asarray(cells.fill_null(0).to_numpy(zero_copy_only=False), np.float64)
    return values, np.asarray(cells.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _array(values: NDArray[np.float64], there: NDArray[np.bool_]) -> Any:
    return pa.array(np.where(there, values, 0.0), mask=~there)
