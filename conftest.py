"""Hypothesis' settings, and which tests come first where several run side by side (`make test`).

No test asserts a wall-clock time: not even that of an example, by Hypothesis' default of 200 ms. CI judges the change
and not the luck of the draw (`--hypothesis-profile=ci`); by hand every run draws new examples.
"""

import pytest
from hypothesis import settings

settings.register_profile("hindcast", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("hindcast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the servers' tests, which take the longest and wait for most of it; then come the other long ones."""
    items.sort(key=lambda item: (not _needs_servers(item), not item.nodeid.startswith("tests/")))


def _needs_servers(item: pytest.Item) -> bool:
    return item.path.parent.name == "integration"
