"""Fabric: SONiC switches with RoCE, and InfiniBand: congestion, errors and flaps by rail and switch."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard
from services.dashboards.panels import TO_NODE, Query, bars, lines, number, states, texts
from services.dashboards.select import NODE, most, node, of, rate

_ONE_PORT = "cluster, replay, switch, device"
_SWITCH = 'switch=~"$switch"'
_UP = texts(_0=("down", colours.RED), _1=("up", colours.SKY))
_NIC = texts(
    _1=("down", colours.RED),
    _2=("initialising", colours.ORANGE),
    _3=("armed", colours.YELLOW),
    _4=("active", colours.SKY),
)


def fabric() -> Dashboard:
    """Return the dashboard."""
    nic, port = "node_infiniband", "sonic_interface"

    def by_rail(metric: str) -> str:
        return f"sum by (device) ({rate(f'{nic}_{metric}', NODE)})"

    def by_switch(metric: str) -> str:
        return f"sum by (switch) ({rate(f'{port}_{metric}', _SWITCH)})"

    port_down = f"count({of(f'{nic}_state_id', NODE)} != 4) or vector(0)"
    went_down = f"sum(increase({of(f'{nic}_link_downed_total', NODE)}[$__range])) or vector(0)"
    marked = f"sum({rate(f'{port}_ecn_marked_packets_total', _SWITCH)}) or vector(0)"
    return board.build(
        "fabric",
        "RoCE and InfiniBand between the nodes: congestion, errors and flaps, by rail (the same port on every node) "
        "and by switch.",
        (board.CLUSTER, board.REPLAY, board.RACK, board.NODES, board.SWITCH),
        Section(
            "Now",
            number(
                "Ports of nodes not active",
                "Ports in a state other than active (4).",
                Query(port_down),
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Times a link went down",
                "Of nodes' ports, in this time range. Five a day of one port is a flapping link.",
                Query(went_down),
                decimals=0,
                thresholds=colours.bad_above(1, 5),
            ),
            number(
                "Nodes receive",
                "All ports of the chosen nodes.",
                Query(f"sum({rate(f'{nic}_port_data_received_bytes_total', NODE)})"),
                unit="Bps",
                over_time=True,
            ),
            number(
                "Out of sequence",
                "Packets a second that nodes received out of sequence: something on the way loses packets.",
                Query(f"sum({rate(f'{nic}_out_of_sequence_packets_received_total', NODE)}) or vector(0)"),
                unit="pps",
                decimals=1,
                thresholds=colours.bad_above(1, 100),
                over_time=True,
            ),
            number(
                "Marked for congestion",
                "Packets a second that switches marked (ECN). Some are usual, as that is how RoCE finds its pace.",
                Query(marked),
                unit="pps",
                decimals=0,
                over_time=True,
            ),
            number(
                "Frames beyond repair",
                "Frames a second that forward error correction could not mend.",
                Query(f"sum({rate(f'{port}_fec_uncorrectable_frames_total', _SWITCH)}) or vector(0)"),
                decimals=2,
                thresholds=colours.bad_above(0.001, 0.1),
                over_time=True,
            ),
        ),
        Section(
            "By rail: the ports of the nodes",
            lines(
                "Sent by rail",
                "Ports of one name on all nodes. In a rail-optimised fabric all rails carry the same.",
                Query(by_rail("port_data_transmitted_bytes_total"), "{{device}}"),
                unit="Bps",
            ),
            lines(
                "Out of sequence by rail",
                "Packets a second; a rail that stands out has a bad link or switch.",
                Query(by_rail("out_of_sequence_packets_received_total"), "{{device}}"),
                unit="pps",
            ),
            lines(
                "Symbol errors by rail",
                "A second. More than 10 a second is a degraded link, more than 120 an hour is beyond InfiniBand's "
                "permitted error rate.",
                Query(by_rail("symbol_error_total"), "{{device}}"),
                thresholds=colours.bad_above(0.033, 10),
            ),
            lines(
                "Link recoveries by rail",
                "A minute. More than five a minute is a degraded link.",
                Query(f"60 * {by_rail('link_error_recovery_total')}", "{{device}}"),
                thresholds=colours.bad_above(1, 5),
            ),
            lines(
                "Acknowledgement timeouts by rail",
                "A second. More than one a second is a path that loses packets.",
                Query(by_rail("local_ack_timeout_errors_total"), "{{device}}"),
                thresholds=colours.bad_above(0.1, 1),
            ),
            lines(
                "Congestion notifications by rail",
                "Notifications (CNP) a second that senders got and slowed down for.",
                Query(by_rail("rp_cnp_packets_handled_total"), "{{device}}"),
                unit="pps",
            ),
            states(
                "Port states",
                "State of each port that was not active at some time; where all were, of the first eight.",
                Query(_not_always_active(nic), "{{node}} {{device}}"),
                texts=_NIC,
                width=16,
                height=8,
                link=TO_NODE,
            ),
            bars(
                "Ports with most packets out of sequence",
                "The ten highest, packets a second over the last minutes.",
                Query(
                    f"topk(10, {node(rate(f'{nic}_out_of_sequence_packets_received_total', NODE))})",
                    "{{node}} {{device}}",
                ),
                unit="pps",
                thresholds=colours.bad_above(1, 100),
                link=TO_NODE,
            ),
        ),
        Section(
            "By switch",
            lines(
                "Sent by switch",
                "All ports of a switch.",
                Query(by_switch("transmit_bytes_total"), "{{switch}}"),
                unit="Bps",
            ),
            lines(
                "Marked for congestion by switch",
                "Packets a second (ECN). None at all under load means that marking is not set up.",
                Query(by_switch("ecn_marked_packets_total"), "{{switch}}"),
                unit="pps",
            ),
            lines(
                "Pause frames received by switch",
                "Priority pauses (PFC) a second. Where they go on without end a storm halts whole rails.",
                Query(by_switch("pfc_receive_packets_total"), "{{switch}}"),
                unit="pps",
            ),
            lines(
                "Discards by switch",
                "Packets a second that a switch had no room for. In a lossless fabric there are none.",
                Query(by_switch("transmit_discards_total"), "{{switch}}"),
                unit="pps",
            ),
            lines(
                "Corrected frames by port",
                "Frames a second that forward error correction mended, the ten ports with most. A rise foretells a "
                "link that fails.",
                Query(most(f"{port}_fec_correctable_frames_total", _SWITCH, same=_ONE_PORT), "{{switch}} {{device}}"),
            ),
            lines(
                "Frames beyond repair by port",
                "Frames a second, the ten ports with most. Any is a fault.",
                Query(most(f"{port}_fec_uncorrectable_frames_total", _SWITCH, same=_ONE_PORT), "{{switch}} {{device}}"),
            ),
            states(
                "Switch ports",
                "Whether each port is up: those that changed in the time range; where none did, the first eight.",
                Query(_changed(port), "{{switch}} {{device}}"),
                texts=_UP,
                height=8,
            ),
        ),
    )


def _not_always_active(nic: str) -> str:
    state = of(f"{nic}_state_id", NODE)
    same = "on (cluster, replay, instance, device)"
    found = f"max by (node, device) ({node(f'{state} and {same} (min_over_time({state}[$__range]) < 4)')})"
    return f"{found} or ({_eight(f'max by (node, device) ({node(state)})', 'node, device')} unless on () {found})"


def _changed(port: str) -> str:
    state = of(f"{port}_operational_status", _SWITCH)
    found = f"max by (switch, device) ({state} and changes({state}[$__range]) > 0)"
    return f"{found} or ({_eight(f'max by (switch, device) ({state})', 'switch, device')} unless on () {found})"


def _eight(expression: str, labels: str) -> str:
    """Return eight series of `expression`, the same all along: those that come first at the end of the range."""
    ended = expression.replace("}", "} @ end()")
    return f"({expression} and on ({labels}) topk(8, {ended}))"
