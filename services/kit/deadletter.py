"""What cannot be used goes to `dead-letter` with the reason, is counted, and the stream goes on."""

import logging
from collections import deque
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError
from prometheus_client import Counter

from services.kit import topics
from services.kit.errors import ServerError
from services.kit.kafka import Record

_log = logging.getLogger(__name__)
_MOST_WORDS = 500
"""Characters of a reason: a server may name every sample of a request in its answer."""
DEAD = Counter("hindcast_dead_letters_total", "Records sent to dead-letter.", ["service", "topic"])


class DeadLetter:
    """Sends bad records, or parts of them, to the dead-letter topic."""

    def __init__(self, producer: KafkaProducer, service: str) -> None:
        self._producer = producer
        self._service = service
        self._sent: deque[Any] = deque()
        """What Kafka has not acknowledged yet, as far as `flush` has seen."""

    def send(self, record: Record, reason: str, value: bytes | None = None) -> None:
        """Send `record`, or only the `value` part of it, with the beginning of `reason` and where it came from."""
        reason = " ".join(reason[:_MOST_WORDS].split())
        headers = [
            *record.headers,
            ("dead-letter-reason", reason.encode()),
            ("dead-letter-service", self._service.encode()),
            ("dead-letter-topic", record.topic.encode()),
            ("dead-letter-partition", b"%d" % record.partition),
            ("dead-letter-offset", b"%d" % record.offset),
        ]
        body = record.value if value is None else value
        self._sent.append(self._producer.send(topics.DEAD_LETTER, key=record.key, value=body, headers=headers))
        DEAD.labels(self._service, record.topic).inc()
        _log.warning(
            "dead letter topic=%s partition=%d offset=%d reason=%s",
            record.topic,
            record.partition,
            record.offset,
            reason,
        )

    def flush(self, timeout_s: float) -> bool:
        """Return whether all that was sent is in the topic; wait for that for so long.

        Until it is, the records that it came from are not done with. Raises UserError (exit code 3) where Kafka refused
        any of it for good: what it came from has to be read again.
        """
        with suppress(KafkaError):  # each future has its own outcome
            self._producer.flush(timeout=timeout_s)
        while self._sent:
            if not self._sent[0].is_done:
                return False
            if self._sent[0].failed():
                raise ServerError(
                    f"Kafka does not take what is for {topics.DEAD_LETTER} ({type(self._sent[0].exception).__name__})",
                    remedy="see to Kafka and start it again: it reads again what that came from",
                )
            self._sent.popleft()
        return True
