"""What findings on memory say: numbers, words, and what to do first."""

import numpy as np

from detectors.contract import FloatArray, IntArray
from detectors.ecc_memory.readings import MemoryReadings
from detectors.xid import Xid
from detectors.xid_watch import XidEvent

Told = dict[str, float | int | str]


def of_error(memory: MemoryReadings, gpu: int, event: XidEvent | None, xid: Xid | None) -> Told:
    """Return the evidence of an uncorrectable error, from the kernel's line or the counters or both."""
    said: Told = memory.says(gpu) if gpu >= 0 else {}
    if gpu >= 0 and memory.uncorrected[gpu] > 0:
        said["new_uncorrectable_errors"] = float(memory.uncorrected[gpu])
    if event is not None and xid is not None:
        said |= xid.evidence()
        said["xid_seen_in"] = event.seen_in
        if event.text:
            said["xid_text"] = event.text
        if event.address:
            said["pci_bus_id"] = event.address
    return said


def words(where: str, said: Told, xid: Xid | None) -> str:
    """Return an uncorrectable error in one sentence."""
    if xid is not None:
        return f"{where}: uncorrectable memory error, XID {xid.code} ({xid.meaning})"
    count = float(said.get("new_uncorrectable_errors", 1))
    return f"{where}: {count:.0f} uncorrectable memory error{'s' if count > 1 else ''} by its counters"


def action(said: Told, xid: Xid | None) -> str:
    """Return what to do about an uncorrectable error, with the source where one says so."""
    first = "drain the node and reset the GPU"
    if said.get("row_remap_failure") == 1:
        first = "drain the node and replace the GPU: it has no rows left to remap to"
    if xid is None:
        return first
    told, source = xid.action
    if told.startswith(("RESTART_APP", "IGNORE")):
        first = "restart the application; reset the GPU when the node is free"
    return f"{first} (XID {xid.code}: {told}, by {source})"


def of_storm(
    memory: MemoryReadings, gpu: int, figures: tuple[float, float, float], peers: FloatArray, window_s: float
) -> Told:
    """Return the evidence of a storm: errors in the window, without its worst half minute, and as usual; the peers'."""
    errors, spread, habit = figures
    return memory.says(gpu) | {
        "single_bit_errors_in_window": errors,
        "single_bit_errors_without_worst_30_s": spread,
        "window_s": window_s,
        "single_bit_errors_usual": habit,
        "single_bit_errors_peers": float(np.median(peers)) if len(peers) else 0.0,
        "peers": len(peers),
        "peers_with_errors": int(np.count_nonzero(peers)),
    }


def of_gauge(memory: MemoryReadings, gpu: int, others: IntArray, *, at_start: bool) -> Told:
    """Return the evidence of a gauge that is set on `gpu` and on the GPUs `others`."""
    return memory.says(gpu) | {"other_gpus_with_the_same": len(others), "set_since_first_reading": int(at_start)}
