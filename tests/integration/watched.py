"""Live runs whose clock is the test's: all samples are there beforehand, and time goes as fast as it is read."""

from services.kit.errors import UserError
from services.live.poll_loop import News, PollLoop
from services.recording.importers.parts.series.query_api import Access, QueryApi
from services.stack.runner import Stack

EVERY_S = 15.0


class Watch:
    """Takes note of what a run reports, and is its clock."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.found: list[str] = []
        self.reported: list[str] = []
        self.revisions: list[str] = []
        self.outages: list[UserError] = []

    def now(self) -> int:
        return self.at

    def news(self, news: News) -> None:
        self.found += [finding.to_json() for finding in news.step.findings]
        self.reported += [line.body.decode() for line in news.reported if line.topic == "findings"]
        self.revisions += [line.body.decode() for line in news.reported if line.topic == "incidents"]

    def following(self) -> None:
        """Nothing to note."""

    def away(self, error: UserError) -> None:
        self.outages.append(error)


def api_of(stack: Stack) -> QueryApi:
    """Return what asks a stack's Prometheus."""
    return QueryApi(Access(stack.addresses.prometheus, retries=0))


def followed(loop: PollLoop, watch: Watch, end: int, every_s: float = EVERY_S) -> None:
    """Look every so often until the clock has passed `end`."""
    while watch.at <= end:
        if loop.turn(every_s):
            watch.at += round(every_s * 1000)
