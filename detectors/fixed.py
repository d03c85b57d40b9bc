"""What once could be set in detectors.yaml and is a constant now: who upgrades with such a line reads what to do."""

from collections.abc import Mapping
from typing import Final

FIXED: Final[Mapping[str, str]] = {
    "congestion.release_s": "240 s since 0.1.0",
    "gpu_lost.least_readings": "3 scrapes since 0.1.0",
    "gpu_lost.quiet_s": "1800 s since 0.1.0",
    "gpu_lost.unsure_s": "295 s since 0.1.0",
    "incidents.before_s": "60 s since 0.1.0",
    "incidents.history_days": "28 days since 0.1.0",
    "incidents.most_members": "128 findings since 0.1.0",
    "incidents.refresh_s": "600 s since 0.1.0",
    "incidents.shared_from": "2 nodes since 0.1.0",
    "incidents.slowed_factor": "1.03 since 0.1.0",
    "incidents.stood_s": "180 s since 0.1.0",
    "job_health.stays_s": "120 s since 0.1.0",
    "link_fault.errors": "20 since 0.1.0",
    "link_fault.flap_window_s": "900 s since 0.1.0",
    "link_fault.rail_quiet_s": "60 s since 0.1.0",
    "link_fault.release_s": "60 s since 0.1.0",
    "node_down.least_readings": "9 readings since 0.1.0",
    "node_down.reboot_s": "900 s since 0.1.0",
    "node_down.release_s": "60 s since 0.1.0",
    "power_throttle.limit_ratio": "0.9 since 0.1.0",
    "power_throttle.release_s": "24 s since 0.1.0",
    "storage.link_share": "0.5 since 0.1.0",
    "straggler.node_share": "0.75 since 0.1.0",
    "straggler.release_s": "270 s since 0.1.0",
    "straggler.warm_up_steps": "3 steps since 0.1.0",
    "telemetry_gap.least_readings": "9 readings since 0.1.0",
    "telemetry_gap.reboot_s": "900 s since 0.1.0",
    "telemetry_gap.release_s": "200 s since 0.1.0",
    "thermal_throttle.clock_ratio": "0.9 since 0.1.0",
    "thermal_throttle.gpu_confirm_s": "60 s since 0.1.0",
    "thermal_throttle.near_limit_k": "3 K since 0.1.0",
    "thermal_throttle.release_s": "150 s since 0.1.0",
}
"""By detector (or `incidents`) and name: at what it is fixed, since which version of hindcast."""
