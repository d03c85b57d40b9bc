"""Hypothesis' settings, and which tests come first where several run side by side (`make test`).

No test asserts a wall-clock time: not even that of an example, by Hypothesis' default of 200 ms. CI judges the change
and not the luck of the draw (`--hypothesis-profile=ci`); by hand every run draws new examples.
"""

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

pytest.register_assert_rewrite("detectors.laws")  # a law that is broken shows the findings that differ

settings.register_profile("hindcast", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("hindcast")


_BY_TEST = ("detectors/test_laws.py", "detectors/engine/test_upgrade.py", "services/synth/test_library.py")
"""Files whose tests take minutes together and share no fixture."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the servers' tests, which take the longest and wait for most of it; then come the other long ones.

    Those that are handed out one by one come last: so no worker has a long file left when the others are done.
    """
    items.sort(
        key=lambda item: (
            not _needs_servers(item),
            not item.nodeid.startswith("tests/"),
            item.nodeid.startswith(_BY_TEST),
        )
    )


class _ByFile(LoadScopeScheduling):
    """Gives a file's tests to one worker, so that its fixtures are made once; some files have none to share."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(_BY_TEST) else nodeid.partition("::")[0]

    def remove_node(self, node: WorkerController) -> str | None:
        """Go on without the test that ended a worker: it failed. xdist would run it again, and end the next ones."""
        work = self.assigned_work.pop(node)
        left = [(scope, test) for scope, tests in work.items() for test, done in tests.items() if not done]
        if not left:
            return None
        scope, ended_it = left[0]
        work[scope][ended_it] = True
        self.workqueue.update((scope, tests) for scope, tests in work.items() if not all(tests.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return ended_it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand out tests by file, in the order of `pytest_collection_modifyitems`."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


def _needs_servers(item: pytest.Item) -> bool:
    return item.path.parent.name == "integration"
