"""A server of a test's own for what `hindcast live` asks."""

from collections.abc import Iterator

import pytest

from tests.answering import Server, answering


@pytest.fixture
def server() -> Iterator[Server]:
    with answering() as serving:
        yield serving
