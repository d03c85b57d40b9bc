"""Pipeline: hindcast's own services: is anything behind, refused, dead, or silent."""

from services.dashboards import board, colours
from services.dashboards.board import Section
from services.dashboards.model import Dashboard
from services.dashboards.panels import Query, lines, number
from services.dashboards.select import RATE

_NONE = "or on () vector(0)"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{RATE}))"


def pipeline() -> Dashboard:
    """Return the dashboard."""
    return board.build(
        "pipeline",
        "hindcast's own services, as their /metrics say: is anything behind, refused, dead, or silent. Something has "
        "to scrape them.",
        (board.CLUSTER, board.REPLAY),
        Section(
            "Now",
            number(
                "Sinks behind",
                "Records in Kafka that sinks have not read.",
                Query("sum(hindcast_sink_lag_records)"),
                unit="short",
                thresholds=colours.bad_above(1_000, 100_000),
            ),
            number(
                "Detectors behind",
                "Records in Kafka that detect has not taken.",
                Query("sum(hindcast_detect_lag_records)"),
                unit="short",
                thresholds=colours.bad_above(1_000, 100_000),
            ),
            number(
                "Dead letters",
                "Records that could not be used, since the services were started. Each is in dead-letter with its "
                "reason.",
                Query(f"sum(hindcast_dead_letters_total) {_NONE}"),
                unit="short",
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Samples refused",
                "By targets, since the sinks were started. Each is in dead-letter with the server's words.",
                Query(f"sum(hindcast_sink_samples_refused_total) {_NONE}"),
                unit="short",
                thresholds=colours.any_is_bad(),
            ),
            number(
                "Alertmanager answers",
                "Whether the last request was answered with success.",
                Query("min(hindcast_notify_alertmanager_up)"),
                unit="bool_yes_no",
                thresholds=colours.bad_below(0.5, 1),
            ),
            number(
                "Rows too late",
                "Rows that came when event time had passed them, and were dropped.",
                Query(f"sum(hindcast_detect_late_rows) {_NONE}"),
                unit="short",
                thresholds=colours.bad_above(1, 1_000),
            ),
        ),
        Section(
            "Kafka to Prometheus and Thanos",
            lines(
                "Lag of sinks",
                "Records in Kafka not yet read, by target.",
                Query("sum by (target) (hindcast_sink_lag_records)", "{{target}}"),
                unit="short",
            ),
            lines(
                "Samples written",
                "Samples a second that targets have accepted.",
                Query(_rate("hindcast_sink_samples_written_total", "target"), "{{target}}"),
                unit="short",
            ),
            lines(
                "Samples on their way",
                "Handed to delivery, not yet accepted: bounded, and at its bound where the target is slow or away.",
                Query("sum by (target) (hindcast_sink_samples_outstanding)", "{{target}}"),
                unit="short",
            ),
            lines(
                "Requests by status",
                "Remote-write requests a second; status 0 is no answer.",
                Query(_rate("hindcast_sink_requests_total", "target, status"), "{{target}} {{status}}"),
                unit="reqps",
            ),
            lines(
                "Sent again",
                "Requests a second that were repeated.",
                Query(f"{_rate('hindcast_sink_retries_total', 'target')} {_NONE}", "{{target}}"),
                unit="reqps",
            ),
            lines(
                "Series known",
                "Of the replays that are being written.",
                Query("sum by (target) (hindcast_sink_series)", "{{target}}"),
                unit="short",
            ),
        ),
        Section(
            "Detectors and alerts",
            lines(
                "Lag of detect",
                "Records in Kafka not taken yet, by topic.",
                Query("sum by (topic) (hindcast_detect_lag_records)", "{{topic}}"),
                unit="short",
            ),
            lines(
                "Event time of detectors",
                "How far each cluster and replay has been judged. A line that is level while data come is stuck.",
                Query("1000 * max by (unit) (hindcast_detect_event_time_seconds)", "{{unit}}"),
                unit="dateTimeAsIso",
                low=None,
            ),
            lines(
                "Rows that wait",
                "For the watermark: a stream that is silent holds all others up.",
                Query("sum by (unit) (hindcast_detect_pending_rows)", "{{unit}}"),
                unit="short",
            ),
            lines(
                "Findings sent",
                "Since detect was started, by state.",
                Query(f"sum by (state) (hindcast_detect_findings_total) {_NONE}", "{{state}}"),
            ),
            lines(
                "Alerts",
                "Known to notify: firing, held back until they may be resolved, resolved a short while ago.",
                Query("sum by (state) (hindcast_notify_alerts)", "{{state}}"),
            ),
            lines(
                "Requests to Alertmanager",
                "A second, by what became of them; and how long one takes on the mean.",
                Query(_rate("hindcast_notify_requests_total", "outcome"), "{{outcome}}"),
                unit="reqps",
            ),
            lines(
                "Dead letters",
                "Since the services were started, by service and topic.",
                Query(f"sum by (service, topic) (hindcast_dead_letters_total) {_NONE}", "{{service}} {{topic}}"),
                unit="short",
                width=24,
                height=6,
            ),
        ),
    )
