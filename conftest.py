"""Hypothesis' settings, and which tests share a worker where several run side by side (`make test`).

No test asserts a wall-clock time: not even that of an example, by Hypothesis' default of 200 ms. CI judges the change
and not the luck of the draw (`--hypothesis-profile=ci`); by hand every run draws new examples.
"""

import pytest
from hypothesis import settings

settings.register_profile("hindcast", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("hindcast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the servers, which share one stack, and those of a module, which share fixtures, together.

    The servers' come first, as they take the longest one after the other and wait for most of it; then the other long
    ones. The laws share nothing: they go wherever there is room.
    """
    for item in items:
        if item.path.name == "test_laws.py":
            continue
        item.add_marker(pytest.mark.xdist_group("servers" if _needs_servers(item) else str(item.path)))
    items.sort(key=lambda item: (not _needs_servers(item), not item.nodeid.startswith("tests/")))


def _needs_servers(item: pytest.Item) -> bool:
    return item.path.parent.name == "integration"
