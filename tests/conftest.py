"""Which tests share a worker where several run side by side (`make test`)."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the servers, which share one stack, and those of a module, which share fixtures, together.

    The laws share nothing and take the longest: they go wherever there is room.
    """
    for item in items:
        if item.path.name == "test_laws.py":
            continue
        servers = item.path.parent.name == "integration"
        item.add_marker(pytest.mark.xdist_group("servers" if servers else str(item.path)))
