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

    The laws share nothing and take the longest: they go wherever there is room.
    """
    for item in items:
        if item.path.name == "test_laws.py":
            continue
        servers = item.path.parent.name == "integration"
        item.add_marker(pytest.mark.xdist_group("servers" if servers else str(item.path)))
