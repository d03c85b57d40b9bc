"""The names of faults, and how narrowly each may be pinned down: the vocabulary of labels."""

NODE, GPU, NIC = frozenset({"node"}), frozenset({"node", "gpu"}), frozenset({"node", "nic"})
PORT, SWITCH = frozenset({"switch", "port"}), frozenset({"switch"})
MOUNT, JOB = frozenset({"mount"}), frozenset({"job_id"})

SHAPES = (NODE, GPU, NIC, PORT, SWITCH, MOUNT, JOB)

FAULTS: dict[str, tuple[frozenset[str], ...]] = {
    "power_throttle": (NODE, GPU),
    "thermal_throttle": (NODE, GPU),
    "pcie_degraded": (GPU,),
    "ecc_uncorrectable": (GPU,),
    "ecc_correctable_storm": (GPU,),
    "row_remap_pending": (GPU,),
    "row_remap_failure": (GPU,),
    "straggler": (GPU, NODE),
    "nvlink_fault": (GPU, NODE),
    "gpu_lost": (GPU,),
    "node_down": (NODE,),
    "link_down": (NIC, PORT),
    "link_flap": (NIC, PORT),
    "link_errors": (PORT, NIC),
    "fabric_congestion": (PORT, SWITCH),
    "storage_slow": (MOUNT,),
    "job_hang": (JOB,),
    "loss_anomaly": (JOB,),
    "telemetry_gap": (NODE, GPU, SWITCH),
}
