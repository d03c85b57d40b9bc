"""Hypothesis' settings, and which tests come first where several run side by side (`make test`).

No test asserts a wall-clock time: not even that of an example, by Hypothesis' default of 200 ms. CI judges the change
and not the luck of the draw (`--hypothesis-profile=ci`); by hand every run draws new examples.
"""

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("hindcast", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("hindcast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the servers' tests, which take the longest and wait for most of it; then come the other long ones."""
    items.sort(key=lambda item: (not _needs_servers(item), not item.nodeid.startswith("tests/")))


class _ByFile(LoadScopeScheduling):
    """Gives a file's tests to one worker, so that its fixtures are made once; the laws share none."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file == "detectors/test_laws.py" else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand out tests by file, in the order of `pytest_collection_modifyitems`."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


def _needs_servers(item: pytest.Item) -> bool:
    return item.path.parent.name == "integration"
