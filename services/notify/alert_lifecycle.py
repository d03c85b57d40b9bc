"""One alert from its first firing to its resolve: what Alertmanager is sent next, and when."""

from dataclasses import dataclass, field
from typing import Literal

from services.kit.findings import FindingKey, FindingRecord
from services.notify.payload import LIVE, Labels

State = Literal["firing", "resolved"]
ENDS_AFTER_RESENDS = 4
"""A firing alert is sent with an end this many resend intervals ahead, as Prometheus does: it ends by itself if notify
is gone for good, and outlives a restart."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When alerts are sent again, in seconds of wall time."""

    resend_s: float = 30.0
    hold_s: float = 6.0
    """How long Alertmanager may take from accepting a replay's alert to notifying: more than its group_wait +
    group_interval. A firing and a resolve are each sent again after it, and count as delivered then; no resolve is sent
    before."""
    live_hold_s: float = 70.0
    """The same of a live alert: tickets come in groups a minute apart."""
    keep_s: float = 300.0
    """For how long a resolve is sent again: Alertmanager's advice to its clients."""

    def hold_of(self, labels: Labels) -> float:
        """Return how long the resolve of an alert with these labels is held."""
        return self.live_hold_s if ("replay", LIVE) in labels else self.hold_s


@dataclass(slots=True)
class AlertLifecycle:
    """Findings with the same labels that overlap, hence one alert. `now` is monotonic seconds throughout."""

    labels: Labels
    latest: FindingRecord
    """The finding that the annotations describe."""
    starts_ms: int
    open: dict[FindingKey, FindingRecord] = field(default_factory=dict)
    firings: list[FindingRecord] = field(default_factory=list)
    """Firing records that this alert delivers."""
    unsaid: bool = True
    """Whether one of them was not sent yet."""
    resolves: list[FindingRecord] = field(default_factory=list)
    """Resolved records that its resolve delivers."""
    cut: dict[FindingKey, int] = field(default_factory=dict)
    """Findings whose stream ended before the fault was over, and when it did, shifted."""
    over_ms: int = 0
    """When the last of its faults was over, shifted."""
    sent_at: float | None = None
    accepted_at: float | None = None
    """When Alertmanager first took the firing."""
    heard: bool = False
    """Whether it took the firing again `hold_s` later, without a restart: receivers have it."""
    releasing: bool = False
    """Whether a resolve was sent, arrived or not: from then on nothing else may be sent of this alert."""
    resolved_at: float | None = None
    """When Alertmanager first took the resolve."""
    settled: bool = False
    """Whether it took the resolve again `hold_s` later, without a restart: receivers have that too."""
    refused: bool = False

    @property
    def ends_ms(self) -> int:
        """Return when it ended, shifted; meaningful once nothing is open."""
        return max([self.over_ms, *self.cut.values()])

    def to_send(self, now: float, policy: Policy, *, durable: bool) -> State | None:
        """Return what is due now; `durable`: it is committed that all its firings are delivered.

        What is over before it could be sent is sent all the same, or nobody would hear of it.
        """
        firing = bool(self.open) or self.unsaid or not self.heard
        hold_s = policy.hold_of(self.labels)
        if firing:
            confirms = not self.heard and self.accepted_at is not None and now - self.accepted_at >= hold_s
        elif not durable:
            return None
        else:
            confirms = self.resolved_at is None or (not self.settled and now - self.resolved_at >= hold_s)
        if confirms or (firing and self.unsaid) or self.sent_at is None or now - self.sent_at >= policy.resend_s:
            return "firing" if firing else "resolved"
        return None

    def accepted(self, state: State, now: float, policy: Policy) -> list[FindingRecord]:
        """Note that Alertmanager took what was sent; return the findings that are delivered by that."""
        self.sent_at = now
        hold_s = policy.hold_of(self.labels)
        if state == "firing":
            self.unsaid = False
            if self.accepted_at is None:
                self.accepted_at = now
            self.heard = self.heard or now - self.accepted_at >= hold_s
            return self.firings if self.heard else []
        if self.resolved_at is None:
            self.resolved_at = now
        self.settled = self.settled or now - self.resolved_at >= hold_s
        return self.resolves if self.settled else []

    def joins(self, other: FindingRecord, policy: Policy) -> bool:
        """Return whether a new finding belongs to this alert: it overlaps, or all but overlaps in event time."""
        if self.open:
            return True
        same_stream = (other.origin.unit, other.origin.generation) == self.latest.key[:2]
        near = other.onset_ms <= self.ends_ms + policy.hold_of(self.labels) * 1000
        return same_stream and near and not self.releasing and not self.cut

    def is_over(self, now: float, policy: Policy, *, followed: bool) -> bool:
        """Return whether there is nothing more to send; `followed`: another alert of these labels waits behind it."""
        if self.refused:
            return True
        # An alert that fires again within one group_interval of its resolve would hide the resolve.
        kept = policy.hold_of(self.labels) if followed else policy.keep_s
        return self.settled and self.resolved_at is not None and now - self.resolved_at >= kept

    def forgotten(self) -> None:
        """Note that Alertmanager may have lost what it was sent last, by a restart; what it notified, it knows."""
        self.sent_at = None
        if not self.heard:
            self.accepted_at = None
        if not self.settled:
            self.resolved_at = None
