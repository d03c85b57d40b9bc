"""What a sink counts; all labelled with its target."""

from prometheus_client import Counter, Gauge

SENT = Counter("hindcast_sink_samples_sent_total", "Samples read from Kafka and handed to delivery.", ["target"])
MADE = Counter(
    "hindcast_sink_samples_made_total", "Samples of `up` and staleness markers handed to delivery.", ["target"]
)
WRITTEN = Counter("hindcast_sink_samples_written_total", "Samples the target has accepted.", ["target"])
REFUSED = Counter(
    "hindcast_sink_samples_refused_total", "Samples the target has refused, now in dead-letter.", ["target"]
)
RECORDS = Counter("hindcast_sink_records_total", "Kafka records taken.", ["target"])
SKIPPED = Counter("hindcast_sink_records_skipped_total", "Kafka records meant for another target.", ["target"])
REQUESTS = Counter(
    "hindcast_sink_requests_total", "Remote-write requests by status; 0: no answer.", ["target", "status"]
)
RETRIES = Counter("hindcast_sink_retries_total", "Requests sent again.", ["target"])
MISDIRECTED = Counter(
    "hindcast_sink_misdirected_total",
    "Requests whose answer says that the credential or the address is wrong, by status.",
    ["target", "status"],
)
MISCOUNTED = Counter(
    "hindcast_sink_miscounted_total", "Requests taken whose answer does not say the samples they had.", ["target"]
)
OUTSTANDING = Gauge("hindcast_sink_samples_outstanding", "Samples on their way to the target.", ["target"])
SERIES = Gauge("hindcast_sink_series", "Series known.", ["target"])
LAG = Gauge("hindcast_sink_lag_records", "Records in Kafka not yet read.", ["target"])
UNANNOUNCED = Counter(
    "hindcast_sink_unannounced_total",
    "Replays whose state nobody announced in time: named without topology.",
    ["target"],
)
