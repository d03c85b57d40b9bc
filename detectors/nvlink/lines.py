"""What logs say of NVLink beside XIDs: the switch driver's SXids, the fabric manager's errors, levels of XIDs.

The switch driver writes its code, then Fatal or Non-fatal, which the fabric manager's log may repeat; that itself
'detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id ...', or names the GPU.
"""

import re
from dataclasses import dataclass

from detectors.contract import LogRecord
from detectors.signals.xid import normal_address

_SXID = re.compile(r"SXid\s*\((?:PCI:)?([0-9A-Fa-f:.]+)\):\s*(\d+),\s*(Non-fatal|Fatal)\b", re.IGNORECASE)
_FATAL = re.compile(r"(?<!non-)(?<!non)\bfatal\b.{0,40}?\berror\b|\berror\b.{0,40}?(?<!non-)\bfatal\b", re.IGNORECASE)
_ABORTS = re.compile(r"aborting fabric manager|fabric manager .{0,40}(?:abort|terminat)", re.IGNORECASE)
_ABOUT = re.compile(r"NVSwitch|NVLink|fabric", re.IGNORECASE)
_ON_GPU = re.compile(r"\bGPU\b[^,;]{0,30}?\b([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?)\b")
_LINK = re.compile(r"\blink\s+(-?\d+)", re.IGNORECASE)
# REG0 of XID 74, as NVSentinel decodes it.
_REGISTER = re.compile(r"link\s+\d+\s*\((0x[0-9a-fA-F]+)", re.IGNORECASE)
_SIGNAL, _PARITY, _HARDWARE = (21, 22), (4, 5), (8, 9, 12, 16, 17, 24, 28)


@dataclass(frozen=True, slots=True)
class FabricLine:
    """A fatal line about the fabric of a node; `address` if it names a GPU."""

    text: str
    address: str | None
    code: int | None


def fabric_line(record: LogRecord) -> FabricLine | None:
    """Return what a line says of a node's fabric, if that is fatal; None for every other line."""
    message = record.message
    if record.node is None or record.source not in {"kernel", "fabricmanager"}:
        return None
    if "SXid" in message and (found := _SXID.search(message)) is not None:
        return FabricLine(message.strip()[:200], None, int(found[2])) if found[3].lower() == "fatal" else None
    if record.source == "kernel" or _ABOUT.search(message) is None:
        return None
    if _FATAL.search(message) is None and _ABORTS.search(message) is None:
        return None
    on_gpu = _ON_GPU.search(message)
    return FabricLine(message.strip()[:200], normal_address(on_gpu[1]) if on_gpu else None, None)


def details(text: str) -> dict[str, float | int | str]:
    """Return which link an XID's text names, and what the first register of XID 74 says.

    >>> details("NVLink: fatal error detected on link 6(0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    {'nvlink_link': 6, 'nvlink_reg0': '0x200000', 'nvlink_reg0_says': 'signal integrity'}
    """
    named: dict[str, float | int | str] = {}
    if (link := _LINK.search(text)) is not None:
        named["nvlink_link"] = int(link[1])
    if (register := _REGISTER.search(text)) is not None:
        bits = int(register[1], 16)
        named["nvlink_reg0"] = register[1]
        kinds = ((_SIGNAL, "signal integrity"), (_PARITY, "ECC or parity"), (_HARDWARE, "hardware"))
        causes = [kind for places, kind in kinds if any(bits >> place & 1 for place in places)]
        if causes:
            named["nvlink_reg0_says"] = ", ".join(causes)
    return named
