"""Judges by a log line's words how grave it is, and whether it is about the hardware of a GPU cluster at all."""

import re
from typing import Literal

Severity = Literal["info", "warning", "error", "critical"]

_ORDER: tuple[Severity, ...] = ("info", "warning", "error", "critical")
_BY_PRIORITY: tuple[Severity, ...] = ("critical", "critical", "critical", "error", "warning", "info", "info", "info")

_JUDGED = 2000  # characters of a message: what matters stands at its head
_XID = re.compile(r"NVRM: Xid \([^)]{1,60}\)[^:]{0,60}: (\d{1,4})\b")
# Those whose resolution in NVIDIA's catalogue (analyzing-xid-catalog, 2025-10) is a reset, a reboot or a repair.
_FATAL_XIDS = frozenset({46, 48, 54, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 167})
_NVLINK5_XIDS = range(144, 151)

_INTERESTING = re.compile(
    r"NVRM|amdgpu|nvidia-nvswitch|nvidia-peermem|\bS?Xid\b|nvlink|fabric ?manager"  # GPUs, NVLink
    r"|mlx5|mlx4|infiniband|\bib\d+: |lost carrier|link (?:is )?(?:down|up)\b"  # network ports
    r"|\bmce: |machine check|hardware error|\bEDAC\b|\bGHES\b"  # memory and processors
    r"|\bAER: |PCIe Bus Error|pcieport"  # PCIe
    r"|Lustre(?:Error)?: |LNet(?:Error)?: |\bGPFS\b|\bmmfs"  # parallel file systems
    r"|kernel panic|soft lockup|hard LOCKUP|blocked for more than|thermal|power brake",
    re.IGNORECASE,
)

# What raises a line above its priority: drivers log much of this as a warning.
_RAISING: tuple[tuple[str, Severity], ...] = (
    (r"fallen off the bus|kernel panic|uncorrected \(fatal\)|severity: fatal|hardware error.*\bfatal", "critical"),
    (r"nvswitch fatal|SXid.*\bfatal\b(?<!non-fatal)|BUG: unable to handle|Oops: |hard LOCKUP", "critical"),
    (r"SXid|uncorrected|uncorrectable|\bUE\b.*EDAC|EDAC.*\bUE\b|LustreError: |soft lockup", "error"),
    (r"health compromised|insufficient power on the PCIe|High Temperature|machine check|NETDEV WATCHDOG", "error"),
    (r"link (?:is )?down\b|lost carrier|cable unplugged|mce: |hardware error|\bCE\b.*EDAC|EDAC.*\bCE\b", "warning"),
    (r"PCIe Bus Error|severity: corrected|blocked for more than|segfault at|above threshold|throttled", "warning"),
)
_RAISED = tuple((re.compile(pattern, re.IGNORECASE), severity) for pattern, severity in _RAISING)
# One of these is in every line that a pattern above finds: most lines have none and are done at once.
_RAISING_WORDS = (
    "fatal", "fallen off", "panic", "sxid", "uncorrect", "hardware error", "bug:", "oops", "lockup", "edac",
    "lustreerror", "health compromised", "insufficient power", "high temperature", "machine check", "watchdog", "link",
    "lost carrier", "unplugged", "mce:", "bus error", "severity:", "blocked for", "segfault", "above threshold",
    "throttled",
)  # fmt: skip
# Only for lines that carry no priority: only the words are left then.
_ERROR = re.compile(r"\b(?:error|errors|failed|failure|fatal|panic)\b", re.IGNORECASE)
_WARNING = re.compile(r"\b(?:warn|warning)\b", re.IGNORECASE)


def severity_of(message: str, priority: int | None) -> Severity:
    """Return how grave a line is: what its priority says (syslog's 0 to 7), or more where its words say more."""
    message = message[:_JUDGED]
    if priority is None:
        found: Severity = "error" if _ERROR.search(message) else "warning" if _WARNING.search(message) else "info"
    else:
        found = _BY_PRIORITY[priority]
    worst = _ORDER.index(found)
    xid = _XID.search(message)
    if xid is not None:
        code = int(xid[1])
        worst = max(worst, 3 if code in _FATAL_XIDS or code in _NVLINK5_XIDS else 2)
    folded = message.lower()
    if not any(word in folded for word in _RAISING_WORDS):
        return _ORDER[worst]
    for pattern, severity in _RAISED:
        if _ORDER.index(severity) > worst and pattern.search(message):
            worst = _ORDER.index(severity)
    return _ORDER[worst]


def interesting(message: str) -> bool:
    """Whether a line is about GPUs, NVLink, network ports, memory, PCIe, parallel storage or a dying kernel."""
    return _INTERESTING.search(message[:_JUDGED]) is not None
