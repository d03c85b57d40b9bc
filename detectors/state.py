"""Packing state as JSON and arrays in one run of bytes; never a pickle, so a state file can do no more than be wrong.

Layout: magic, crc32 of all that follows, length of the head, the head (JSON: what is not an array, and each array's
name, dtype and shape), the arrays' bytes one after the other.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"HCS1"
_PREFIX = struct.Struct("<4sIQ")
_KINDS = "biuf"


class StateError(ValueError):
    """Bytes that are no state, or a damaged one."""


def pack(document: Any, arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Return `document` (anything JSON can say) and `arrays` (of numbers and booleans) as bytes.

    The same state gives the same bytes. Raises StateError for an array of any other dtype.
    """
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    body: list[bytes] = []
    for name, array in sorted((arrays or {}).items()):
        if array.dtype.kind not in _KINDS:
            raise StateError(f"array {name} has dtype {array.dtype}: only numbers and booleans can be packed")
        entries.append((name, array.dtype.newbyteorder("<").str, array.shape))
        body.append(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    head = json.dumps({"document": document, "arrays": entries}, separators=(",", ":"), sort_keys=True).encode()
    payload = b"".join((head, *body))
    return _PREFIX.pack(_MAGIC, zlib.crc32(payload), len(head)) + payload


def unpack(state: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return what `pack` was given; the arrays can be written to. Raises StateError if the bytes are damaged."""
    if len(state) < _PREFIX.size:
        raise StateError(f"{len(state)} bytes are too few for a state")
    magic, checksum, length = _PREFIX.unpack_from(state)
    payload = memoryview(state)[_PREFIX.size :]
    if magic != _MAGIC:
        raise StateError(f"not a state of this version: it begins with {magic!r}")
    if zlib.crc32(payload) != checksum:
        raise StateError("the state is damaged: its checksum does not fit")
    head = json.loads(bytes(payload[:length]))
    arrays: dict[str, NDArray[Any]] = {}
    at = length
    for name, dtype, shape in head["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        kind = np.dtype(dtype)
        flat = np.frombuffer(payload, kind, count, at)
        arrays[name] = flat.reshape(shape).astype(kind.newbyteorder("="))
        at += count * kind.itemsize
    return head["document"], arrays
