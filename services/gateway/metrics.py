"""What the gateway counts."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("hindcast_gateway_requests_total", "Requests, by what was answered.", ["path", "status"])
SAMPLES = Counter(
    "hindcast_gateway_samples_total", "Samples that came in, by what became of them: `taken`, or why not.", ["outcome"]
)
LINES = Counter(
    "hindcast_gateway_lines_total", "Log lines and job events, by what became of them.", ["kind", "outcome"]
)
ROWS = Counter("hindcast_gateway_rows_total", "Rows and lines acknowledged by Kafka.", ["stream"])
IN_FLIGHT = Gauge("hindcast_gateway_in_flight_bytes", "Bodies of requests that are being worked on.")
SERIES = Gauge("hindcast_gateway_series", "Series whose place is remembered.")
EVICTED = Counter(
    "hindcast_gateway_series_evicted_total",
    "Series that made room for others (HINDCAST_GATEWAY_SERIES): those that were silent longest.",
)
SECONDS = Histogram(
    "hindcast_gateway_request_seconds",
    "From a request's last byte to its answer, Kafka's acknowledgement included.",
    ["path"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
