"""What a snapshot says in words: tests look for names in it."""

import zlib

from detectors.engine.state import MAGIC, PREFIX


def heads(snapshot: bytes) -> bytes:
    """Return the JSON of all states that lie in some bytes, one after the other."""
    found, at = [], snapshot.find(MAGIC)
    while at >= 0:
        begin = at + PREFIX.size
        end = begin + PREFIX.unpack_from(snapshot, at)[2]
        found.append(zlib.decompress(snapshot[begin:end]))
        at = snapshot.find(MAGIC, end)
    return b"".join(found)
