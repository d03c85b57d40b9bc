"""Replay: what is being replayed, how far it is, and whether all keeps pace."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard
from services.dashboards.panels import Query, grid, lines, number, states, texts
from services.dashboards.select import ACTIVE, of

_MINE = 'replay=~"$replay"'
_MOVES = texts(_0=("paused, or over", colours.GREY), _1=("advancing", colours.SKY))


def replays() -> Dashboard:
    """Return the dashboard."""
    position = f"max by (replay) (hindcast_replay_position_seconds{{{_MINE}}})"
    lag = f"max by (replay) (hindcast_replay_lag_seconds{{{_MINE}}})"
    in_flight = f"sum by (replay) (hindcast_replay_in_flight_bytes{{{_MINE}}})"
    return board.build(
        "replay",
        "What is being replayed, how far it is, and whether it keeps pace. Series of hindcast's own services: "
        "something has to scrape them.",
        (board.CLUSTER, board.REPLAY),
        Section(
            "Now",
            number("Replays known", "Running, paused, or over and not removed.", Query(f"count({position})"), width=6),
            number(
                "Behind schedule",
                "Longest time for which a row that is due has not reached Kafka.",
                Query(f"max({lag})"),
                unit="s",
                decimals=1,
                thresholds=colours.bad_above(1, 10),
                width=6,
            ),
            number(
                "Not acknowledged",
                "Bytes sent that Kafka has not acknowledged.",
                Query(f"sum({in_flight})"),
                unit="bytes",
                width=6,
            ),
            number(
                "Rows handed to Kafka",
                "By all replays, since the service was started.",
                Query(f"sum(hindcast_replay_rows_total{{{_MINE}}})"),
                unit="short",
                width=6,
            ),
        ),
        Section(
            "Event time and wall time",
            states(
                "Control state",
                "Whether event time moves. The service's API says which of paused, ended and stopped it is.",
                Query(
                    f"max by (replay) (changes(hindcast_replay_position_seconds{{{_MINE}}}[1m])) > bool 0", "{{replay}}"
                ),
                texts=_MOVES,
            ),
            lines(
                "Event time reached",
                "Recording time up to which Kafka has acknowledged everything.",
                Query(f"1000 * {position}", "{{replay}}"),
                unit="dateTimeAsIso",
                low=None,
            ),
            lines(
                "Speed",
                "Seconds of event time in a second of wall time; 1 is real time.",
                Query(f"max by (replay) (deriv(hindcast_replay_position_seconds{{{_MINE}}}[1m]))", "{{replay}}"),
                low=None,
            ),
            lines(
                "Behind schedule",
                "Wall seconds for which the oldest row not yet in Kafka has been due.",
                Query(lag, "{{replay}}"),
                unit="s",
                thresholds=colours.bad_above(1, 10),
            ),
        ),
        Section(
            "What is sent, and what came of it",
            lines(
                "Rows handed to Kafka",
                "A second, by stream.",
                Query(f"sum by (stream) (rate(hindcast_replay_rows_total{{{_MINE}}}[$__rate_interval]))", "{{stream}}"),
                unit="short",
                stacked=True,
            ),
            lines(
                "Not acknowledged",
                "Bytes sent that Kafka has not acknowledged: grows where Kafka is the narrow place.",
                Query(in_flight, "{{replay}}"),
                unit="bytes",
            ),
            lines(
                "Samples of the replayed telemetry",
                "GPUs that have a reading, over shifted event time: where the replay's data lie.",
                Query(f"count by (replay) ({of('DCGM_FI_DEV_GPU_TEMP')})", "{{replay}}"),
            ),
            grid(
                "Findings by replay",
                "Open findings over shifted event time.",
                Query(f"sum by (replay, fault) (last_over_time({of(ACTIVE)}[$__range]))", "{{replay}} {{fault}}"),
                unit="none",
                thresholds=colours.any_is_bad(),
                height=7,
            ),
        ),
    )
