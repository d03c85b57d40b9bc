"""One generation of a replay on its way to Kafka: rows, then the watermarks behind them."""

from collections import Counter
from typing import Final

from prometheus_client import Counter as Metric

from services.kit.topics import declared
from services.kit.wire import WATERMARK, Headers, Origin, Watermark
from services.recording.model import Manifest
from services.replay.feeds import MESSAGE_ROWS, Feed
from services.replay.outbox import Checkpoint, Outbox

ROWS = Metric("hindcast_replay_rows_total", "Rows handed to Kafka.", ["replay", "stream"])
SAMPLES = Metric("hindcast_replay_samples_total", "Readings handed to Kafka.", ["replay", "stream"])

LEAST_STEP_MS: Final = 1_000
MOST_STEP_MS: Final = 60_000


def step_ms(manifest: Manifest) -> int:
    """Return how much event time to send between watermarks when everything is due: about one full message of the
    densest stream, so that consumers can go on and little is held in memory.
    """
    span = max(1, manifest.end - manifest.start)
    densest = max((info.rows / span for info in manifest.streams.values()), default=0.0)
    full = 0.9 * MESSAGE_ROWS / densest if densest else MOST_STEP_MS
    return int(min(MOST_STEP_MS, max(LEAST_STEP_MS, full)))


class Generation:
    """Sends the feeds' rows by event time to their topics, and a watermark to every one of them behind each advance."""

    def __init__(self, origin: Origin, feeds: list[Feed], outbox: Outbox, partition: int) -> None:
        self._origin = origin
        self._partition = partition
        self._key = origin.unit.encode()
        topics = declared()
        self._feeds = [(topics.of_stream(feed.stream), feed) for feed in feeds]
        self._outbox = outbox
        start = outbox.safe
        self.position_ms = start.position_ms
        """Every row with a time up to here has been handed to the producer."""
        self._rows = Counter(start.rows)
        self._samples = Counter(start.samples)

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the streams that are fed."""
        return tuple(feed.stream for _, feed in self._feeds)

    def next_ms(self) -> int | None:
        """Return the event time of the oldest row that is not sent; None when all are."""
        return min((at_ms for _, feed in self._feeds if (at_ms := feed.next_ms()) is not None), default=None)

    def advance(self, upto_ms: int) -> None:
        """Send all rows up to `upto_ms`, then that watermark to every topic."""
        for topic, feed in self._feeds:
            self._send_rows(topic, feed, upto_ms)
        self._watermark(Watermark(upto_ms))
        self.position_ms = upto_ms
        self._outbox.checkpoint(Checkpoint(upto_ms, dict(self._rows), dict(self._samples)))

    def finish(self) -> None:
        """Wait until all is acknowledged, and send the watermarks of the end."""
        self._outbox.drain()
        self._watermark(Watermark(self.position_ms, end=True))
        self._outbox.drain()

    def _send_rows(self, topic: str, feed: Feed, upto_ms: int) -> None:
        oldest_ms = feed.next_ms()
        for parcel in feed.take(upto_ms):
            headers = self._origin.headers(parcel.content_type)
            self._send(topic, parcel.value, headers, oldest_ms)
            self._rows[feed.stream] += parcel.rows
            self._samples[feed.stream] += parcel.samples
            ROWS.labels(self._origin.replay, feed.stream).inc(parcel.rows)
            SAMPLES.labels(self._origin.replay, feed.stream).inc(parcel.samples)

    def _watermark(self, watermark: Watermark) -> None:
        headers = [*self._origin.headers(WATERMARK), *watermark.headers()]
        for topic, _ in self._feeds:
            self._send(topic, None, headers)

    def _send(self, topic: str, value: bytes | None, headers: Headers, oldest_ms: int | None = None) -> None:
        self._outbox.send(
            topic, key=self._key, partition=self._partition, value=value, headers=headers, oldest_ms=oldest_ms
        )
