"""What processes use, as the kernel counts it."""

import os
import resource
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    """Return the CPU seconds of this process' children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def resident_mb(pid: int, *, peak: bool = False) -> float:
    """Return the resident memory of a process, or the most that it had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM" if peak else "VmRSS")), 0) / 1024
