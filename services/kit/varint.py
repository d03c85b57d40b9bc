"""Protobuf's variable-length whole numbers."""


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it; one below zero as an int64, in two's complement."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
