"""Kafka clients made from one set of settings, with the guarantees that every service here rests on."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, KafkaTimeoutError, RetriableError, UnknownBrokerIdError
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata
from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from services.kit.errors import ServerError
from services.kit.secret import Secret
from services.kit.settings import Settings
from services.kit.tls import Authorities
from services.kit.wait import until

_log = logging.getLogger(__name__)
_DELIVERY_TIMEOUT_MS = 24 * 3_600_000
"""An outage of the broker is waited out, in order: whoever sends decides how long to wait, the producer gives up
nothing."""
_FAREWELL_S = 5.0
_TOPICS_S = 30.0
_OFFSETS_TRY_MS = 2000.0


class KafkaSettings(Settings):
    """How to reach Kafka, and how its topics are made: HINDCAST_KAFKA_* in the environment."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_KAFKA_", extra="forbid")

    bootstrap: str = "127.0.0.1:9092"
    """Brokers, `host:port`, separated by commas."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How the brokers are spoken to."""
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None, Field(validate_default=True)
    ] = None
    """How hindcast shows who it is; needed where the protocol is SASL's."""
    sasl_username: str | None = None
    """Of PLAIN and SCRAM."""
    sasl_password: Annotated[Secret, Field(validate_default=True)] = None
    """Of PLAIN and SCRAM."""
    sasl_token: Annotated[Secret, Field(validate_default=True)] = None
    """Of OAUTHBEARER; from a file (HINDCAST_KAFKA_SASL_TOKEN_FILE) it is read again at each connection."""
    ssl_cafile: Authorities = None
    """The authority of the brokers' certificates, PEM; the system's if not given."""
    ssl_certfile: Path | None = None
    """The certificate that is shown to the brokers, PEM."""
    ssl_keyfile: Path | None = None
    """The private key of `ssl_certfile`, PEM."""
    ssl_password: Secret = None
    """Of `ssl_keyfile`, where it has one."""
    bootstrap_timeout_s: float = 10.0
    """How long the first connection may take."""
    unit_partitions: Annotated[int, Field(ge=1)] = 6
    """Partitions of each topic that `hindcast topics create` makes for clusters and replays, each of which lies in one:
    more instances of detect, or of the sink of one target, have nothing to do. It cannot be changed afterwards."""

    @field_validator("sasl_mechanism", "sasl_password", "sasl_token")
    @classmethod
    def _all_that_sasl_needs(cls, given: object, info: ValidationInfo) -> object:
        if given is not None:
            return given
        mechanism = info.data.get("sasl_mechanism")
        if info.field_name == "sasl_mechanism" and info.data.get("security_protocol", "").startswith("SASL"):
            raise ValueError("SASL needs a mechanism")
        if mechanism is not None and (mechanism == "OAUTHBEARER") == (info.field_name == "sasl_token"):
            raise ValueError(f"{mechanism} needs it")
        return given

    def client_config(self) -> dict[str, Any]:
        """Return what every kafka-python client takes."""
        return {
            "bootstrap_servers": self.bootstrap.split(","),
            "security_protocol": self.security_protocol,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password.get_secret_value() if self.sasl_password else None,
            "sasl_oauth_token_provider": _Token(self.sasl_token) if self.sasl_token else None,
            "ssl_cafile": str(self.ssl_cafile) if self.ssl_cafile else None,
            "ssl_certfile": str(self.ssl_certfile) if self.ssl_certfile else None,
            "ssl_keyfile": str(self.ssl_keyfile) if self.ssl_keyfile else None,
            "ssl_password": self.ssl_password.get_secret_value() if self.ssl_password else None,
            "bootstrap_timeout_ms": int(self.bootstrap_timeout_s * 1000),
        }


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Gives the token as it is now."""

    def __init__(self, secret: SecretStr) -> None:
        self._secret = secret

    def token(self) -> str:
        return self._secret.get_secret_value()


class Record(Protocol):
    """What a consumer hands out, as far as hindcast looks at it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Iterable[tuple[str, bytes]]


Client = TypeVar("Client")


_REFUSALS = (
    (
        "SaslAuthenticationFailedError",
        "does not know hindcast",
        "correct HINDCAST_KAFKA_SASL_USERNAME and HINDCAST_KAFKA_SASL_PASSWORD",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "has a certificate that is not believed",
        "name its authority in HINDCAST_KAFKA_SSL_CAFILE",
    ),
    # Over TLS a broker may end the connection before its refusal was read.
    (
        "socket disconnected",
        "ends every connection: it does not know hindcast, or speaks another protocol",
        "correct HINDCAST_KAFKA_SASL_USERNAME and HINDCAST_KAFKA_SASL_PASSWORD, or HINDCAST_KAFKA_SECURITY_PROTOCOL",
    ),
)


def _reach(make: Callable[..., Client], settings: KafkaSettings) -> Client:
    begun: list[KafkaNetClient] = []

    def network(**config: Any) -> KafkaNetClient:
        begun.append(KafkaNetClient(**config))
        return begun[-1]

    with _overheard() as heard:
        try:
            return make(**settings.client_config(), kafka_client=network)
        except (KafkaError, OSError) as error:
            for one in begun:  # the client that was not made has a thread, which would go on to look for the broker
                one.close()
            reported = "\n".join((*heard, str(error)))
            for sign, words, remedy in _REFUSALS:
                if sign in reported:
                    raise ServerError(f"the Kafka broker at {settings.bootstrap} {words}", remedy=remedy) from error
            raise ServerError(
                f"no Kafka broker answers at {settings.bootstrap} ({type(error).__name__})",
                remedy="start one (hindcast stack up), or set HINDCAST_KAFKA_BOOTSTRAP to where yours is",
            ) from error


class _Ear(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(record.getMessage())


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """Give a list of what kafka-python logs of its connections: its errors do not say why none came about."""
    heard: list[str] = []
    log, ear = logging.getLogger("kafka.net"), _Ear(heard)
    level, propagate = log.level, log.propagate
    log.addHandler(ear)
    log.setLevel(logging.WARNING)
    log.propagate = False
    try:
        yield heard
    finally:
        log.removeHandler(ear)
        log.setLevel(level)
        log.propagate = propagate


def admin(settings: KafkaSettings) -> KafkaAdminClient:
    """Return an admin client; raise UserError (exit code 3) if no broker answers."""
    return _reach(KafkaAdminClient, settings)


class _Producer(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """One that is over once it is closed."""

    def close(self, timeout: float | None = _FAREWELL_S, null_logger: bool = False) -> None:
        """Wait for what is on its way for `timeout` seconds, give the rest up, and end.

        kafka-python's own gives up instead, and its thread goes on: what nobody waits for any more would be sent,
        perhaps much later, beside what was sent again meanwhile.
        """
        try:
            super().close(timeout, null_logger)
        except KafkaTimeoutError:
            self._sender.force_close()
            with suppress(KafkaTimeoutError):  # it ends as soon as it hears of it
                super().close(_FAREWELL_S, null_logger)


def producer(settings: KafkaSettings, *, to: Collection[str] = (), **options: Any) -> KafkaProducer:
    """Return an idempotent producer that waits for all replicas; UserError (exit code 3) if no broker answers.

    It sends, in order, until the broker has it: for a day. What partitions the topics `to` have it asks now: the first
    record for each would otherwise be an error where the broker is away by then. `linger_ms` and `batch_size` suit
    columnar messages of 10 to 500 kB.
    """
    config: dict[str, Any] = {
        "enable_idempotence": True,
        "acks": "all",
        "delivery_timeout_ms": _DELIVERY_TIMEOUT_MS,
        "max_request_size": 8 * 1024 * 1024,
        "batch_size": 1024 * 1024,
        "linger_ms": 2,
        "allow_auto_create_topics": False,
    }

    def make(**how: Any) -> KafkaProducer:
        client = _Producer(**how, **(config | options))
        try:
            for topic in to:
                client.partitions_for(topic)
        except KafkaError:
            client.close(timeout=0)
            raise
        return client

    return _reach(make, settings)


class _Consumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python has no types
    """One that waits for a broker that went away as it was asked, and looks for who leads a partition now."""

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[Record]]:
        """Return what has come; nothing where the broker's answer to a question of the client's own was lost.

        kafka-python's own raises then, before it has handed anything out: it looks for the group's coordinator, and
        the connection, or the one that it asks for the brokers next, is reset.
        """
        try:
            records: dict[TopicPartition, list[Record]] = super().poll(timeout_ms, max_records, update_offsets)
        except RetriableError as error:
            _log.warning("Kafka is away, asking again error=%s", type(error).__name__)
            return {}
        return records

    def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: float | None = None) -> dict[Any, int]:
        """Return the first offset of each partition; KafkaTimeoutError if Kafka does not answer in time."""
        return self._of_leaders(super().beginning_offsets, partitions, timeout_ms)

    def end_offsets(self, partitions: list[TopicPartition], timeout_ms: float | None = None) -> dict[Any, int]:
        """Return the offset after the last record of each partition; KafkaTimeoutError as above."""
        return self._of_leaders(super().end_offsets, partitions, timeout_ms)

    def _of_leaders(
        self, ask: Callable[..., dict[Any, int]], partitions: list[TopicPartition], timeout_ms: float | None
    ) -> dict[Any, int]:
        """Ask in tries of growing length, and between them who leads now.

        kafka-python's own asks the broker that led before, which refuses, until its time is over, and never who leads
        instead: a consumer that reads nothing meanwhile would hear of that after five minutes.
        """
        left_ms = self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms
        try_ms = _OFFSETS_TRY_MS
        while True:
            try_ms = min(try_ms, left_ms)
            try:
                return ask(partitions, try_ms)
            except KafkaTimeoutError:
                if try_ms == left_ms:
                    raise
            except UnknownBrokerIdError as error:  # at once: who led is not among the brokers that are known
                if try_ms == left_ms:
                    raise KafkaTimeoutError(f"{error} leads, and is not known") from error
                threading.Event().wait(try_ms / 1000)
            self._cluster.request_update()
            left_ms, try_ms = left_ms - try_ms, 2 * try_ms


def consumer(settings: KafkaSettings, *, group: str | None, **options: Any) -> KafkaConsumer:
    """Return a consumer that commits only when asked; UserError (exit code 3) if no broker answers."""
    config: dict[str, Any] = {
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        # A record that is larger comes all the same, alone. What was fetched is in memory several times: as it came, as
        # records, and as what is made of them.
        "fetch_max_bytes": 4 * 1024 * 1024,
        "max_partition_fetch_bytes": 2 * 1024 * 1024,
        "check_crcs": False,  # the transport and the broker's log already carry checksums
        "allow_auto_create_topics": False,
    }
    return _reach(lambda **how: _Consumer(**how, **(config | options)), settings)


class Member(Protocol):
    """What a member of a consumer group does when partitions go; neither call may wait for its own consumer."""

    def release(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Finish what was read of partitions that may go to another member; return the offsets to commit before.

        Most of them stay: what is pending of them must be kept, for their records are not read again.
        """
        ...

    def lose(self, places: Collection[TopicPartition]) -> None:
        """Forget partitions that another member has: nothing of them may be committed any more."""
        ...


def subscribe(client: KafkaConsumer, names: Sequence[str], member: Member) -> None:
    """Join the consumer's group for the topics `names`.

    The client hears of the topics between subscribing and joining, which is at the first poll. A group that is joined
    before can be given no partitions, and nothing asks for more; topics that it heard of earlier make it join twice.
    Of topics that were just made one broker knows before another, so it asks again; UserError (exit code 3) where it
    never hears of one.
    """
    client.subscribe(list(names), listener=_Rebalance(client, member))
    what = f"Kafka to know the topic(s) {', '.join(names)}: create them (hindcast topics create)"
    until(lambda: client.topics().issuperset(names), timeout_s=_TOPICS_S, what=what, interval_s=0.2)


class _Rebalance(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Called on the thread that does the consumer's input and output: there its commit can only be awaited.

    All partitions are revoked in every rebalance, but the client goes on where it was in those that it is given again,
    not from their committed offsets: so only the others may be forgotten, and that once they are known.
    """

    def __init__(self, client: KafkaConsumer, member: Member) -> None:
        self._client, self._member = client, member
        self._held: set[TopicPartition] = set()

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        if not revoked:
            return
        safe = self._member.release(revoked)
        _log.info("partitions released count=%d", len(revoked))
        if safe:
            try:
                await self._client.commit_async(offsets_of(safe))
            except KafkaError as error:
                # Nothing is lost: what was not committed is read again.
                _log.warning("commit failed error=%s", type(error).__name__)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        gone, self._held = self._held - set(assigned), set(assigned)
        self._member.lose(gone)
        _log.info("partitions assigned count=%d", len(assigned))

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        _log.warning("partitions lost count=%d", len(lost))
        self._held -= set(lost)
        self._member.lose(lost)


def reached(client: KafkaConsumer, place: TopicPartition) -> int:
    """Return the offset of the next record; -1 while a client that was cut off does not know it."""
    at: int | None = client.position(place)
    return -1 if at is None else at


def offsets_of(places: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets as a commit wants them."""
    return {place: OffsetAndMetadata(offset, "", -1) for place, offset in places.items()}
