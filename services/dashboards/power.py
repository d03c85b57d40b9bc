"""Power and cooling: what racks, feeds and supplies deliver against what GPUs draw, and what carries the heat away."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.fields import Step, Thresholds
from services.dashboards.model import Dashboard
from services.dashboards.panels import TO_NODE, Query, bars, grid, lines, number
from services.dashboards.select import NODE, ONE_GPU, RACK, most, node, of, slowed

# ipmi_exporter takes sensors' names from the BMC, and makers have many: "psu1_input_power", "PS1 Input Power".
_SUPPLIES = 'name=~"(?i)psu?[ _]?[0-9]+.*"'
_FEED_A, _FEED_B = 'name=~"(?i)psu?[ _]?[0-9]*[13579]([^0-9].*)?"', 'name=~"(?i)psu?[ _]?[0-9]*[02468]([^0-9].*)?"'
_INLET, _OUTLET = 'name=~"(?i).*inlet.*"', 'name=~"(?i).*(exhaust|outlet).*"'


_AT_LIMIT = Thresholds(
    steps=(
        Step(color=colours.GREY),
        Step(color=colours.SKY, value=0.25),
        Step(color=colours.BLUE, value=0.9),
        Step(color=colours.RED, value=1.05),
    )
)


def power() -> Dashboard:
    """Return the dashboard."""
    chosen = (RACK, NODE)
    watts = of("DCGM_FI_DEV_POWER_USAGE", *chosen)
    for_power, for_heat = (most(f"DCGM_FI_DEV_{why}_VIOLATION", *chosen, same=ONE_GPU) for why in ("POWER", "THERMAL"))
    limit = of("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", *chosen)
    supplies = of("ipmi_power_watts", _SUPPLIES, *chosen)
    states = "ipmi_power_state", "ipmi_sensor_state", "ipmi_fan_speed_state", "ipmi_temperature_state"
    wrong = " or ".join(f"max by (node, name) ({node(of(state, *chosen))})" for state in states)
    return board.build(
        "power",
        "What racks, feeds and supplies deliver against what GPUs draw, who is held down for power or heat, and what "
        "carries the heat away.",
        (board.CLUSTER, board.REPLAY, board.RACK, board.NODES),
        Section(
            "Now",
            number("GPUs draw", "Sum over the chosen GPUs.", Query(f"sum({watts})"), unit="watt", over_time=True),
            number(
                "Supplies deliver",
                "Input of all power supplies, as their BMCs read it.",
                Query(f"sum({supplies})"),
                unit="watt",
                over_time=True,
            ),
            number(
                "Share of the GPUs",
                "Of what supplies take in; the rest is fans, processors, network cards and losses.",
                Query(f"sum({watts}) / sum({supplies})"),
                unit="percentunit",
                over_time=True,
            ),
            number(
                "Sensors that complain",
                "Sensors of BMCs whose state is warning (1) or critical (2).",
                Query(f"count(({wrong}) > 0) or vector(0)"),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "GPUs slowed by hardware",
                "Thermal and power-brake bits of the clock-event mask.",
                Query(f"sum({slowed(*chosen)}) or vector(0)"),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Warmest inlet",
                "ASHRAE's recommended envelope ends at 27 degrees, class A2's allowable one at 35.",
                Query(f"max({of('ipmi_temperature_celsius', _INLET, *chosen)})"),
                unit="celsius",
                thresholds=colours.bad_above(27, 35),
            ),
        ),
        Section(
            "Racks and feeds",
            lines(
                "GPUs by rack",
                "What GPUs draw, by rack.",
                Query(f"sum by (rack) ({watts})", "rack {{rack}}"),
                unit="watt",
            ),
            lines(
                "Supplies by rack",
                "What supplies take in, by rack. A rack that falls while its GPUs do not has lost a feed.",
                Query(f"sum by (rack) ({supplies})", "rack {{rack}}"),
                unit="watt",
            ),
            lines(
                "Feeds A and B",
                "Supplies of odd and of even number, which are on different feeds where cabling follows the usual "
                "plan. When one feed is lost the other carries both halves.",
                Query(f"sum({of('ipmi_power_watts', _FEED_A, *chosen)})", "A: odd supplies", colours.BLUE),
                Query(f"sum({of('ipmi_power_watts', _FEED_B, *chosen)})", "B: even supplies", colours.ORANGE),
                unit="watt",
            ),
            grid(
                "GPU power over its limit, by node",
                "Mean of a node's GPUs over the limit that is enforced: grey is idle, dark blue at the limit, as "
                "is normal at full load, vermilion above it.",
                Query(f"avg by (node) ({node(watts)}) / avg by (node) ({node(limit)})", "{{node}}"),
                unit="percentunit",
                thresholds=_AT_LIMIT,
                low=0,
                width=12,
                link=TO_NODE,
            ),
            grid(
                "Least power of a supply, by node",
                "A supply at zero beside one that carries the node has failed or lost its feed.",
                Query(f"min by (node) ({node(supplies)})", "{{node}}"),
                unit="watt",
                thresholds=colours.bad_below(1, 100),
                low=0,
                width=12,
                link=TO_NODE,
            ),
        ),
        Section(
            "Held down",
            lines(
                "Time slowed for power",
                "Share of time, the ten GPUs slowed most. Under full load some is normal.",
                Query(f"1e-9 * ({node(for_power)})", "{{node}} {{gpu}}"),
                unit="percentunit",
                link=TO_NODE,
            ),
            lines(
                "Time slowed for heat",
                "Share of time, the ten GPUs slowed most.",
                Query(f"1e-9 * ({node(for_heat)})", "{{node}} {{gpu}}"),
                unit="percentunit",
                link=TO_NODE,
            ),
            bars(
                "Lowest power limits",
                "The ten GPUs with the lowest enforced limit; one below the others was set down or has lost its "
                "setting.",
                Query(f"bottomk(10, {node(limit)})", "{{node}} {{gpu}}"),
                unit="watt",
                link=TO_NODE,
            ),
        ),
        Section(
            "Heat",
            lines(
                "GPU temperature by node",
                "Hottest GPU of each node. A100 and H100 are slowed near 87 to 89 degrees.",
                Query(f"max by (node) ({node(of('DCGM_FI_DEV_GPU_TEMP', *chosen))})", "{{node}}"),
                unit="celsius",
                thresholds=colours.bad_above(80, 87),
                link=TO_NODE,
                low=None,
            ),
            lines(
                "HBM temperature by node",
                "Hottest memory of each node. It is slowed near 95 degrees.",
                Query(f"max by (node) ({node(of('DCGM_FI_DEV_MEMORY_TEMP', *chosen))})", "{{node}}"),
                unit="celsius",
                thresholds=colours.bad_above(90, 95),
                link=TO_NODE,
                low=None,
            ),
            lines(
                "Air in and out",
                "Warmest of all nodes: at the inlet, and behind.",
                Query(f"max({of('ipmi_temperature_celsius', _INLET, *chosen)})", "inlet", colours.BLUE),
                Query(f"max({of('ipmi_temperature_celsius', _OUTLET, *chosen)})", "exhaust", colours.ORANGE),
                unit="celsius",
                low=None,
            ),
            lines(
                "Inlet by rack",
                "Warmest inlet of each rack: one rack points to its cooling, all to the room's.",
                Query(f"max by (rack) ({of('ipmi_temperature_celsius', _INLET, *chosen)})", "rack {{rack}}"),
                unit="celsius",
                thresholds=colours.bad_above(27, 35),
                width=12,
                low=None,
            ),
            lines(
                "Slowest fan by node",
                "A fan that stands still among others that run fast has failed.",
                Query(f"min by (node) ({node(of('ipmi_fan_speed_rpm', *chosen))})", "{{node}}"),
                unit="rotrpm",
                width=12,
                link=TO_NODE,
            ),
        ),
    )
