"""Why a GPU's clock is held down: the names that NVIDIA's tools give to the bits of docs/telemetry.md."""

from collections.abc import Mapping, Sequence

from detectors.signals.throttle_bits import (
    CLOCKS_SETTING,
    GPU_IDLE,
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    SW_POWER_CAP,
    SW_THERMAL,
)

_SYNC_BOOST, _DISPLAY_CLOCKS = 0x010, 0x100
REASONS: Mapping[int, Sequence[str]] = {
    # By the last part of nvidia-smi's names in XML and CSV, then by those of its text.
    GPU_IDLE: ("gpu_idle", "Idle"),
    CLOCKS_SETTING: ("applications_clocks_setting", "Applications Clocks Setting"),
    SW_POWER_CAP: ("sw_power_cap", "SW Power Cap"),
    HW_SLOWDOWN: ("hw_slowdown", "HW Slowdown"),
    _SYNC_BOOST: ("sync_boost", "Sync Boost"),
    SW_THERMAL: ("sw_thermal_slowdown", "SW Thermal Slowdown"),
    HW_THERMAL: ("hw_thermal_slowdown", "HW Slowdown/HW Thermal Slowdown", "HW Thermal Slowdown"),
    HW_POWER_BRAKE: ("hw_power_brake_slowdown", "HW Slowdown/HW Power Brake Slowdown", "HW Power Brake Slowdown"),
    _DISPLAY_CLOCKS: ("display_clocks_setting", "display_clock_setting", "Display Clock Setting"),
}
BIT_OF: Mapping[str, int] = {name: bit for bit, names in REASONS.items() for name in names if name.islower()}
"""The bit of a name in XML and CSV."""
