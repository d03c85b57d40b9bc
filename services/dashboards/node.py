"""Node and GPU: everything the exporters of a node say, GPU by GPU."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard, Timeseries
from services.dashboards.panels import Column, Query, lines, number, table
from services.dashboards.select import NODE, gpu, node, of, rate, slowed

_CHOSEN = (NODE,)


def by_gpu(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str = "none",
    low: float | None = 0,
    high: float | None = None,
) -> Timeseries:
    """Return one line a GPU."""
    return lines(title, description, Query(gpu(expression), "{{gpu}}"), unit=unit, low=low, high=high)


def node_and_gpu() -> Dashboard:
    """Return the dashboard."""
    per_gpu = "max by (instance, gpu, UUID, modelName)"
    return board.build(
        "node",
        "Everything the exporters of the chosen node say, GPU by GPU.",
        (board.CLUSTER, board.REPLAY, board.ONE_NODE),
        Section(
            "Now",
            number(
                "GPUs",
                "GPUs that dcgm-exporter shows. One that fell off the bus is missing.",
                Query(f"count({of('DCGM_FI_DEV_GPU_TEMP', *_CHOSEN)})"),
            ),
            number(
                "Exporters that answer",
                "Share of the nodes' targets with up 1.",
                Query(f"avg({of('up', *_CHOSEN)})"),
                unit="percentunit",
                thresholds=colours.bad_below(0.5, 1),
            ),
            number(
                "GPUs slowed by hardware",
                "Thermal and power-brake bits of the clock-event mask.",
                Query(f"sum({slowed(*_CHOSEN)})"),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Hottest GPU",
                "A100 and H100 are slowed near 87 to 89 degrees.",
                Query(f"max({of('DCGM_FI_DEV_GPU_TEMP', *_CHOSEN)})"),
                unit="celsius",
                thresholds=colours.bad_above(80, 87),
            ),
            number(
                "Uncorrected ECC errors",
                "Since the driver was loaded. Any calls for a drain and a reset.",
                Query(f"sum({of('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL', *_CHOSEN)})"),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Remaps pending or failed",
                "GPUs whose row remapping waits for a reset, or has failed.",
                Query(
                    f"sum({of('DCGM_FI_DEV_ROW_REMAP_PENDING', *_CHOSEN)} or "
                    f"{of('DCGM_FI_DEV_ROW_REMAP_FAILURE', *_CHOSEN)})"
                ),
                thresholds=colours.any_is_bad(),
            ),
            table(
                "GPUs",
                "Each GPU at the end of the time range.",
                Column(
                    "temperature",
                    node(f"{per_gpu} ({of('DCGM_FI_DEV_GPU_TEMP', *_CHOSEN)})"),
                    unit="celsius",
                    thresholds=colours.bad_above(80, 87),
                ),
                Column(
                    "power", node(f"{per_gpu} ({of('DCGM_FI_DEV_POWER_USAGE', *_CHOSEN)})"), unit="watt", decimals=0
                ),
                Column(
                    "SM clock", node(f"{per_gpu} ({of('DCGM_FI_DEV_SM_CLOCK', *_CHOSEN)})"), unit="rotmhz", decimals=0
                ),
                Column(
                    "utilisation",
                    node(f"{per_gpu} ({of('DCGM_FI_DEV_GPU_UTIL', *_CHOSEN)})"),
                    unit="percent",
                    decimals=0,
                ),
                Column("slowed", node(f"{per_gpu} ({slowed(*_CHOSEN)})"), thresholds=colours.any_is_bad()),
                Column(
                    "last XID",
                    node(f"{per_gpu} ({of('DCGM_FI_DEV_XID_ERRORS', *_CHOSEN)})"),
                    thresholds=colours.any_is_bad(),
                ),
                hidden=("instance",),
            ),
        ),
        Section(
            "Work",
            by_gpu(
                "Utilisation",
                "Share of time with a kernel on the GPU, waiting ones too.",
                of("DCGM_FI_DEV_GPU_UTIL", *_CHOSEN),
                unit="percent",
                high=100,
            ),
            by_gpu(
                "Tensor cores active",
                "Share of cycles; 0.2 to 0.5 is usual in training large models.",
                of("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", *_CHOSEN),
                unit="percentunit",
                high=1,
            ),
            by_gpu(
                "Memory used", "Frame buffer in use.", f"1048576 * {of('DCGM_FI_DEV_FB_USED', *_CHOSEN)}", unit="bytes"
            ),
        ),
        Section(
            "Power, clocks, heat",
            by_gpu("Power", "Averaged by the board.", of("DCGM_FI_DEV_POWER_USAGE", *_CHOSEN), unit="watt"),
            by_gpu(
                "SM clock",
                "Clock of the multiprocessors.",
                of("DCGM_FI_DEV_SM_CLOCK", *_CHOSEN),
                unit="rotmhz",
                low=None,
            ),
            by_gpu("GPU temperature", "Of the die.", of("DCGM_FI_DEV_GPU_TEMP", *_CHOSEN), unit="celsius", low=None),
            by_gpu(
                "HBM temperature", "Of the memory.", of("DCGM_FI_DEV_MEMORY_TEMP", *_CHOSEN), unit="celsius", low=None
            ),
            by_gpu(
                "Time slowed for power",
                "Share of time, from a counter in nanoseconds.",
                f"1e-9 * {rate('DCGM_FI_DEV_POWER_VIOLATION', *_CHOSEN)}",
                unit="percentunit",
            ),
            by_gpu(
                "Time slowed for heat",
                "Share of time, from a counter in nanoseconds.",
                f"1e-9 * {rate('DCGM_FI_DEV_THERMAL_VIOLATION', *_CHOSEN)}",
                unit="percentunit",
            ),
        ),
        Section(
            "PCIe and NVLink",
            by_gpu(
                "PCIe generation", "Of the link as it is now; falls at idle.", of("DCGM_FI_DEV_PCIE_LINK_GEN", *_CHOSEN)
            ),
            by_gpu(
                "PCIe replays",
                "Retried transfers a minute. The count itself is no fault, only its rate is.",
                f"60 * {rate('DCGM_FI_DEV_PCIE_REPLAY_COUNTER', *_CHOSEN)}",
            ),
            by_gpu("PCIe received", "Host to GPU.", of("DCGM_FI_PROF_PCIE_RX_BYTES", *_CHOSEN), unit="Bps"),
            by_gpu(
                "NVLink received", "Over all links of a GPU.", of("DCGM_FI_PROF_NVLINK_RX_BYTES", *_CHOSEN), unit="Bps"
            ),
            lines(
                "NVLink errors",
                "Errors a minute over all links. Replays and recoveries are faults, CRC errors from 100 a second.",
                Query(
                    f"60 * sum({rate('DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL', *_CHOSEN)})", "replays", colours.RED
                ),
                Query(
                    f"60 * sum({rate('DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL', *_CHOSEN)})",
                    "recoveries",
                    colours.ORANGE,
                ),
                Query(
                    f"60 * sum({rate('DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL', *_CHOSEN)})",
                    "CRC of flits",
                    colours.BLUE,
                ),
            ),
            by_gpu(
                "Corrected ECC errors",
                "A minute. A storm of them is a sign of memory that is about to fail.",
                f"60 * {rate('DCGM_FI_DEV_ECC_SBE_VOL_TOTAL', *_CHOSEN)}",
            ),
        ),
        Section(
            "Chassis and network",
            lines(
                "Power by sensor",
                "What the BMC reads: supplies and the node.",
                Query(node(of("ipmi_power_watts", *_CHOSEN)), "{{node}} {{name}}"),
                unit="watt",
            ),
            lines(
                "Air",
                "Temperatures that the BMC reads.",
                Query(node(of("ipmi_temperature_celsius", *_CHOSEN)), "{{node}} {{name}}"),
                unit="celsius",
                low=None,
            ),
            lines(
                "Network received",
                "Each port.",
                Query(node(rate("node_infiniband_port_data_received_bytes_total", *_CHOSEN)), "{{node}} {{device}}"),
                unit="Bps",
            ),
        ),
    )
