"""The real servers for the integration tests: child processes, or containers (HINDCAST_STACK=native|containers)."""

import os
from collections.abc import Iterator

import pytest

from services.stack.runner import Stack
from services.stack.settings import load_settings


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All servers, healthy; shared by the session: a test that stops one starts it again."""
    folder = tmp_path_factory.mktemp("stack")
    chosen = os.environ.get("HINDCAST_STACK", "native")
    if chosen == "native":
        with Stack.start(folder, load_settings()) as stack:
            yield stack
    elif chosen == "containers":
        from tests.integration.containers import container_stack

        with container_stack(folder) as stack:
            yield stack
    else:
        pytest.fail(f"HINDCAST_STACK={chosen}: it is native or containers")
