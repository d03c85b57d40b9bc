"""Packing state as JSON and arrays in one run of bytes; never a pickle, so a state file can do no more than be wrong.

Layout: magic, crc32 of all that follows, length of the head, the head (deflated JSON: what is not an array, and each
array's name, dtype and shape, and how its numbers are stored), the arrays' bytes one after the other. Numbers of 64
bits are stored in fewer where not one changes by it: times as what they lie above the earliest, floats that are floats
of 32.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC, _PLAIN = b"HCS3", b"HCS2"
"""The second is that of older versions, whose heads are not deflated."""
PREFIX = struct.Struct("<4sIQ")
_KINDS = "biuf"


class StateError(ValueError):
    """Bytes that are no state, or a damaged one."""


def pack(document: Any, arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Return `document` (anything JSON can say) and `arrays` (of numbers and booleans) as bytes.

    The same state gives the same bytes. Raises StateError for an array of any other dtype.
    """
    entries: list[tuple[str, str, tuple[int, ...], str, int | None]] = []
    body: list[memoryview] = []
    with np.errstate(over="ignore", under="ignore"):
        for name, array in sorted((arrays or {}).items()):
            if array.dtype.kind not in _KINDS:
                raise StateError(f"array {name} has dtype {array.dtype}: only numbers and booleans can be packed")
            stored, base = _narrowed(array)
            kind = stored.dtype.newbyteorder("<")
            entries.append((name, array.dtype.newbyteorder("<").str, array.shape, kind.str, base))
            body.append(np.ascontiguousarray(stored, kind).data)
    head = json.dumps({"document": document, "arrays": entries}, separators=(",", ":"), sort_keys=True).encode()
    head = zlib.compress(head, 1)
    checksum = zlib.crc32(head)
    for part in body:
        checksum = zlib.crc32(part, checksum)
    # Copied once, from the arrays: a large fleet's state is 100 MB and more, and detection stands still meanwhile.
    return b"".join((PREFIX.pack(MAGIC, checksum, len(head)), head, *body))


def unpack(state: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return what `pack` was given; the arrays can be written to. Raises StateError if the bytes are damaged."""
    if len(state) < PREFIX.size:
        raise StateError(f"{len(state)} bytes are too few for a state")
    magic, checksum, length = PREFIX.unpack_from(state)
    payload = memoryview(state)[PREFIX.size :]
    if magic not in (MAGIC, _PLAIN):
        raise StateError(f"not a state of this version: it begins with {magic!r}")
    if zlib.crc32(payload) != checksum:
        raise StateError("the state is damaged: its checksum does not fit")
    text = bytes(payload[:length])
    head = json.loads(zlib.decompress(text) if magic == MAGIC else text)
    arrays: dict[str, NDArray[Any]] = {}
    at = length
    for name, dtype, shape, kept, base in head["arrays"]:
        count = math.prod(shape)
        kind = np.dtype(kept)
        stored = np.frombuffer(payload, kind, count, at).reshape(shape)
        array = stored.astype(np.dtype(dtype).newbyteorder("="))
        if base is not None:
            array = np.where(array > 0, array + (base - 1), -1)
        arrays[name] = array
        at += count * kind.itemsize
    return head["document"], arrays


def below(path: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with a path, by the rest of them."""
    return {name.removeprefix(f"{path}/"): array for name, array in arrays.items() if name.startswith(f"{path}/")}


def _narrowed(array: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
    """Return `array` in fewer bytes where that is exact, and what its numbers lie above; None: they are themselves.

    Above a base, -1 (a time that never was) is stored as 0, and the base itself as 1.
    """
    if array.dtype == np.float64:
        short = array.astype(np.float32)
        # Compared bit by bit, which is faster than numbers that may be NaN.
        changes = np.count_nonzero(short.astype(np.float64).view(np.int64) != array.view(np.int64))
        return (array if changes else short), None
    if array.dtype != np.int64 or not array.size or int(array.min()) < -1:
        return array, None
    known = array >= 0
    most = int(array.max())
    base = int(array.min(initial=most, where=known))
    if most - base >= 2**32 - 1:
        return array, None
    return np.where(known, array - base + 1, 0).astype(np.min_scalar_type(most - base + 1)), base
