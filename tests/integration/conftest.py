"""The real servers for the integration tests: child processes, or containers (HINDCAST_STACK=native|containers)."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import BrokerResponseError, PolicyViolationError

from services.kit import topics
from services.kit.kafka import KafkaSettings, admin, consumer, producer
from services.kit.wait import until
from services.stack.hindcast_services import python_service, services
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests.integration.receivers import WEBHOOK, Receiver, serve
from tests.integration.secured import secured_broker
from tests.integration.secured import settings as settings_of

StartService = Callable[..., ManagedProcess]
HERE = Path(__file__).parent
RULES = HERE / "pair-rules.yaml"
# A broker of these tests lasts for minutes: what the second compiler takes is not won back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


class Servers:
    """What a worker's tests share while they follow one another: made by the first, ended behind the last.

    To the end of the session, as a fixture would have it, idle servers take a tenth of two cores from all other tests.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._made: dict[str, Any] = {}
        self._ends = ExitStack()

    def shared(self, name: str, make: Callable[[Path], AbstractContextManager[Any]]) -> Any:
        """Return what `make` gives, for a folder of its own."""
        if name not in self._made:
            self._made[name] = self._ends.enter_context(make(self._folders.mktemp(name)))
        return self._made[name]

    def end(self) -> None:
        """End all of it, the latest first; who needs it after that has it made anew."""
        self._made.clear()
        self._ends.close()


SERVERS = pytest.StashKey[Servers]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, before `-m` chooses: all need the servers."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker("integration")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the servers behind the last of these tests, after what its fixtures have to undo on them."""
    yield
    if (nextitem is None or nextitem.path.parent != HERE) and SERVERS in item.session.stash:
        item.session.stash[SERVERS].end()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    made = request.session.stash[SERVERS] = Servers(tmp_path_factory)
    yield made
    made.end()


@pytest.fixture(scope="module")
def stack(servers: Servers) -> Stack:
    """All servers, healthy, with a pair of Prometheus; shared by files: a test that stops one starts it again."""
    started: Stack = servers.shared("stack", _started)
    return started


def _started(folder: Path) -> AbstractContextManager[Stack]:
    # In the state folder, which is all that containers see.
    rules = Path(shutil.copy(RULES, folder))
    wanted = load_settings(prometheus_pair=True, rule_files=(*load_settings().rule_files, rules))
    chosen = os.environ.get("HINDCAST_STACK", "native")
    if chosen == "native":
        return Stack.start(folder, wanted)
    if chosen == "containers":
        from tests.integration.containers import container_stack

        return container_stack(folder, wanted)
    return pytest.fail(f"HINDCAST_STACK={chosen}: it is native or containers")


@pytest.fixture(scope="module")
def running(stack: Stack, kafka: KafkaSettings) -> Iterator[Stack]:  # noqa: ARG001 - its topics are there, and empty
    """Run all services of hindcast on the servers of the session, and end them."""
    own = services(stack.service_context())
    for spec in own:
        stack.add(spec)
    stack.start_all()
    yield stack
    for spec in reversed(own):
        stack.remove(spec.name)


@pytest.fixture(scope="module")
def secured(stack: Stack, servers: Servers) -> dict[str, Any]:
    """Run a broker with SASL_SSL and ACLs, with hindcast's topics; return what all settings for it have."""

    @contextmanager
    def with_topics(folder: Path) -> Iterator[dict[str, Any]]:
        with secured_broker(stack, folder) as given:
            topics.create(settings_of(given, "PLAIN", "admin", "admin-secret"))
            yield given

    given: dict[str, Any] = servers.shared("secured", with_topics)
    return given


@pytest.fixture(scope="module")
def webhook() -> Iterator[Receiver]:
    with serve(WEBHOOK) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def kafka(stack: Stack) -> KafkaSettings:
    """Make the topics and delete what other modules sent: each detect and sink that starts would read it first."""
    settings = KafkaSettings(bootstrap=stack.addresses.kafka)
    topics.create(settings)
    compacted = (topics.FINDINGS, topics.INCIDENTS)
    with admin(settings) as client:
        # Of a topic that is only compacted nothing can be deleted; the broker takes a moment to learn of the change.
        policy = {"cleanup.policy": "compact,delete"}
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, policy) for name in compacted])
        found = client.describe_topics(sorted([*topics.declared().streams(), *compacted]))
        parts = [
            TopicPartition(topic["name"], part["partition_index"]) for topic in found for part in topic["partitions"]
        ]

        def emptied() -> bool:
            try:
                client.delete_records(dict.fromkeys(parts, -1))
            except BrokerResponseError as error:
                if PolicyViolationError.__name__ not in str(error):
                    raise
                return False
            return True

        until(emptied, timeout_s=60, what="the topics to be emptied")
    return settings


@pytest.fixture(scope="module")
def reader(kafka: KafkaSettings) -> Iterator[KafkaConsumer]:
    """Return a consumer of no group, and close it."""
    from_kafka = consumer(kafka, group=None)
    yield from_kafka
    from_kafka.close()


@pytest.fixture(scope="module")
def sender(kafka: KafkaSettings) -> Iterator[KafkaProducer]:
    client = producer(kafka)
    yield client
    client.close()


@contextmanager
def detecting(stack: Stack, name: str, state_dir: Path, **env: str) -> Iterator[ManagedProcess]:
    """Run a detect of a test's own beside a stack."""
    with _running(stack, name, "detect", HINDCAST_DETECT_STATE_DIR=str(state_dir), **env) as process:
        yield process


@contextmanager
def _running(stack: Stack, name: str, module: str, **env: str) -> Iterator[ManagedProcess]:
    port = stack.service_context().ports.take()
    own = {"HINDCAST_KAFKA_BOOTSTRAP": stack.addresses.kafka, "HINDCAST_STATUS_PORT": str(port)}
    yield stack.add_process(python_service(name, f"services.{module}", port=port, env=own | env))
    stack.remove(name)


@pytest.fixture
def start_service(stack: Stack, kafka: KafkaSettings) -> Iterator[StartService]:  # noqa: ARG001 - its topics are there
    """Start a service of hindcast under a name; whatever was started is ended."""
    with ExitStack() as started:
        yield lambda name, module, **env: started.enter_context(_running(stack, name, module, **env))


@pytest.fixture(scope="module", autouse=True)
def _no_kafka_client_is_left() -> Iterator[None]:
    """Fail the file that leaves a Kafka client open: its thread would go on, and disturb the tests of other files."""
    before = set(threading.enumerate())
    yield
    left = [one.name for one in threading.enumerate() if one not in before and one.name.startswith("kafka-io-")]
    assert not left, f"Kafka clients were not closed: {', '.join(left)}"
