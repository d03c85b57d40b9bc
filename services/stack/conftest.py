"""What the tests of the stack share."""

from collections.abc import Iterator

import pytest

from services.stack.ports import PortBook


@pytest.fixture
def book() -> Iterator[PortBook]:
    with PortBook() as book:
        yield book
