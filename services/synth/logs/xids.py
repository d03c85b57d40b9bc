"""The driver's XID lines as the kernel logs them (forms as in gpud's catalogue), and the gauge beside them."""

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Course, Effect

_ROW = "0000000000f2a31b"
"""Stands for a row's address, which differs."""
TEXTS = {
    13: "Graphics Exception: ESR 0x504730=0x80000000 0x504734=0x4 0x504728=0x4c1eb72 0x50472c=0x174",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2d_4c000000. Fault is of "
    "type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000010",
    45: "Ch 00000010",
    48: "DBE (double bit error) ECC Error: An uncorrectable double bit error (DBE) has been detected on GPU in the "
    "framebuffer at partition 6, subpartition 1.",
    63: "Row Remapper: New row (0x0000000000f2a31b) marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap row (0x0000000000f2a31b), no spare row left in the bank.",
    74: "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) "
    "(0x20801348 0x410).",
    145: "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x00000007 0x00000004 0x00000000 0x00000000 0x00000000 0x00000000)",
    149: "NETIR_LINK_DOWN Fatal XC0 i0 Link 14 (0x02500011 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
}
_OF_A_LINK = {145, 149}
_ABOUT_A_PROCESS = {13, 31, 43, 45, 94}
_NOTES = {43, 45, 63, 92}


def bus_address(world: World, gpu: int) -> str:
    """Return the address of a node's GPU as the kernel writes it: domain, bus, device."""
    return world.profile.gpu.pci_address(gpu % world.profile.node.gpus).lower()


def xid_line(world: World, logs: Logs, place: tuple[int, int], at: float, code: int) -> Event:
    """Return the kernel's line of an XID at `place` (node, GPU) at `at` seconds."""
    node, gpu = place
    who = "pid='<unknown>', name=<unknown>"
    if code in _ABOUT_A_PROCESS:
        who = f"pid={41200 + 7 * gpu}, name=python3"
    text = TEXTS[code].replace(_ROW, f"{(node * 7919 + gpu * 104729 + int(at) * 31) % 0xFFFFFF:016x}")
    about = text if code in _OF_A_LINK else f"{who}, {text}"
    line = f"NVRM: Xid (PCI:{bus_address(world, gpu)}): {code}, {about}"
    return logs.kernel(node, at, "warning" if code in _NOTES else "error", line)


def xid_gauge(world: World, place: tuple[int, int], at: float, code: int) -> Effect:
    """Return the effect that DCGM's gauge shows the code from `at` seconds on."""
    course = Course.between(at, world.duration_s + 1.0e6)
    return Effect("gpu.xid", world.gpus(*place), float(code), course)
