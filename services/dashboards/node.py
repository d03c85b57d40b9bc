"""Node and GPU: everything the exporters of a node say, GPU by GPU."""

from typing import Any

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard, Timeseries
from services.dashboards.panels import Column, Query, lines, number, table
from services.dashboards.select import NODE, gpu, node, of, rate, slowed


def by_gpu(
    title: str,
    description: str,
    metric: str,
    unit: str = "none",
    *,
    counter: bool = False,
    scale: str = "",
    **more: Any,
) -> Timeseries:
    """Return one line a GPU; `more` as of `lines`."""
    expression = f"{scale}{(rate if counter else of)(metric, NODE)}"
    return lines(title, description, Query(gpu(expression), "{{gpu}}"), unit=unit, **more)


def _column(title: str, expression: str, **more: Any) -> Column:
    """Return a column of the table of GPUs; `more` as of `Column`."""
    return Column(title, node(f"max by (instance, gpu, UUID, modelName) ({expression})"), **more)


def _slowed_for(what: str, why: str) -> Timeseries:
    about, metric = "Share of time, from a counter in nanoseconds.", f"DCGM_FI_DEV_{why}_VIOLATION"
    return by_gpu(f"Time slowed for {what}", about, metric, "percentunit", counter=True, scale="1e-9 * ")


def _nvlink_errors(kind: str, legend: str, colour: str) -> Query:
    return Query(f"60 * sum({rate(f'DCGM_FI_DEV_NVLINK_{kind}_COUNT_TOTAL', NODE)})", legend, colour)


def node_and_gpu() -> Dashboard:
    """Return the dashboard."""
    return board.build(
        "node",
        "Everything the exporters of the chosen node say, GPU by GPU.",
        (board.CLUSTER, board.REPLAY, board.ONE_NODE),
        Section(
            "Now",
            number(
                "GPUs",
                "GPUs that dcgm-exporter shows. One that fell off the bus is missing.",
                Query(f"count({of('DCGM_FI_DEV_GPU_TEMP', NODE)})"),
            ),
            number(
                "Exporters that answer",
                "Share of the nodes' targets with up 1.",
                Query(f"avg({of('up', NODE)})"),
                unit="percentunit",
                thresholds=colours.bad_below(0.5, 1),
            ),
            number(
                "GPUs slowed by hardware",
                "Thermal and power-brake bits of the clock-event mask.",
                Query(f"sum({slowed(NODE)})"),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Hottest GPU",
                "A100 and H100 are slowed near 87 to 89 degrees.",
                Query(f"max({of('DCGM_FI_DEV_GPU_TEMP', NODE)})"),
                unit="celsius",
                thresholds=colours.bad_above(80, 87),
            ),
            number(
                "Uncorrected ECC errors",
                "Since the driver was loaded. Any calls for a drain and a reset.",
                Query(f"sum({of('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL', NODE)})"),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Remaps pending or failed",
                "GPUs whose row remapping waits for a reset, or has failed.",
                Query(
                    f"sum({of('DCGM_FI_DEV_ROW_REMAP_PENDING', NODE)} or {of('DCGM_FI_DEV_ROW_REMAP_FAILURE', NODE)})"
                ),
                thresholds=colours.any_is_bad(),
            ),
            table(
                "GPUs",
                "Each GPU at the end of the time range.",
                _column(
                    "temperature",
                    of("DCGM_FI_DEV_GPU_TEMP", NODE),
                    unit="celsius",
                    thresholds=colours.bad_above(80, 87),
                ),
                _column("power", of("DCGM_FI_DEV_POWER_USAGE", NODE), unit="watt", decimals=0),
                _column("SM clock", of("DCGM_FI_DEV_SM_CLOCK", NODE), unit="rotmhz", decimals=0),
                _column("utilisation", of("DCGM_FI_DEV_GPU_UTIL", NODE), unit="percent", decimals=0),
                _column("slowed", slowed(NODE), thresholds=colours.any_is_bad()),
                _column("last XID", of("DCGM_FI_DEV_XID_ERRORS", NODE), thresholds=colours.any_is_bad()),
                hidden=("instance",),
            ),
        ),
        Section(
            "Work",
            by_gpu(
                "Utilisation",
                "Share of time with a kernel on the GPU, waiting ones too.",
                "DCGM_FI_DEV_GPU_UTIL",
                "percent",
                high=100,
            ),
            by_gpu(
                "Tensor cores active",
                "Share of cycles; 0.2 to 0.5 is usual in training large models.",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                "percentunit",
                high=1,
            ),
            by_gpu("Memory used", "Frame buffer in use.", "DCGM_FI_DEV_FB_USED", "bytes", scale="1048576 * "),
        ),
        Section(
            "Power, clocks, heat",
            by_gpu("Power", "Averaged by the board.", "DCGM_FI_DEV_POWER_USAGE", "watt"),
            by_gpu("SM clock", "Clock of the multiprocessors.", "DCGM_FI_DEV_SM_CLOCK", "rotmhz", low=None),
            by_gpu("GPU temperature", "Of the die.", "DCGM_FI_DEV_GPU_TEMP", "celsius", low=None),
            by_gpu("HBM temperature", "Of the memory.", "DCGM_FI_DEV_MEMORY_TEMP", "celsius", low=None),
            _slowed_for("power", "POWER"),
            _slowed_for("heat", "THERMAL"),
        ),
        Section(
            "PCIe and NVLink",
            by_gpu("PCIe generation", "Of the link as it is now; falls at idle.", "DCGM_FI_DEV_PCIE_LINK_GEN"),
            by_gpu(
                "PCIe replays",
                "Retried transfers a minute. The count itself is no fault, only its rate is.",
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
                counter=True,
                scale="60 * ",
            ),
            by_gpu("PCIe received", "Host to GPU.", "DCGM_FI_PROF_PCIE_RX_BYTES", "Bps"),
            by_gpu("NVLink received", "Over all links of a GPU.", "DCGM_FI_PROF_NVLINK_RX_BYTES", "Bps"),
            lines(
                "NVLink errors",
                "Errors a minute over all links. Replays and recoveries are faults, CRC errors from 100 a second.",
                _nvlink_errors("REPLAY_ERROR", "replays", colours.RED),
                _nvlink_errors("RECOVERY_ERROR", "recoveries", colours.ORANGE),
                _nvlink_errors("CRC_FLIT_ERROR", "CRC of flits", colours.BLUE),
            ),
            by_gpu(
                "Corrected ECC errors",
                "A minute. A storm of them is a sign of memory that is about to fail.",
                "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
                counter=True,
                scale="60 * ",
            ),
        ),
        Section(
            "Chassis and network",
            lines(
                "Power by sensor",
                "What the BMC reads: supplies and the node.",
                Query(node(of("ipmi_power_watts", NODE)), "{{node}} {{name}}"),
                unit="watt",
            ),
            lines(
                "Air",
                "Temperatures that the BMC reads.",
                Query(node(of("ipmi_temperature_celsius", NODE)), "{{node}} {{name}}"),
                unit="celsius",
                low=None,
            ),
            lines(
                "Network received",
                "Each port.",
                Query(node(rate("node_infiniband_port_data_received_bytes_total", NODE)), "{{node}} {{device}}"),
                unit="Bps",
            ),
        ),
    )
