"""What acting on pages would have cost and saved: a policy gone through page by page, over the jobs that there were.

A drain takes a node away for a repair. The jobs on it start again from their last checkpoint, on a spare where one is
free, else when the first drained node is back; the trouble that the node has is over for them. A drain for nothing
costs the same, and saves nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detectors.contract import Instant
from services.backtest.judged import Judged
from services.backtest.losses import Ledger, total
from services.backtest.truth import Truth
from services.kit.errors import UsageError

_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000
_REMEMBERED_MS = 28 * 86_400_000
"""Pages so long ago count no more towards a drain: as long as incidents count for repeat offenders."""


@dataclass(frozen=True)
class Policy:
    """Drain a node at its page number `pages` within 28 days; 0: never."""

    name: str
    pages: int


POLICIES = (Policy("none", 0), Policy("drain-on-page", 1), Policy("drain-after 3", 3))


def policy_of(text: str) -> Policy:
    """Return the policy that is named, such as ``drain-after 3``. UserError (exit code 2): there is no such one."""
    words = text.replace("=", " ").split()
    if words in (["none"], ["drain-on-page"]):
        return Policy(words[0], int(words[0] != "none"))
    if len(words) == 2 and words[0] == "drain-after" and words[1].isdecimal() and int(words[1]) > 0:
        return Policy(f"drain-after {int(words[1])}", int(words[1]))
    raise UsageError(f"no policy {text!r}", remedy="none, drain-on-page, or 'drain-after 3'")


@dataclass
class PolicyOutcome:
    """GPU-hours by what cost them, and how often a node was drained."""

    policy: str
    drains: int = 0
    false_drains: int = 0
    """Nodes that no label or ticket says anything of at that time."""
    without_spare: int = 0
    lost_to_faults: float = 0.0
    lost_to_drains: float = 0.0
    of_unknown_cost: int = 0

    @property
    def lost(self) -> float:
        """All of them."""
        return self.lost_to_faults + self.lost_to_drains


def outcome_of(policy: Policy, judged: Sequence[Judged], ledgers: Sequence[Ledger]) -> PolicyOutcome:
    """Return what a policy would have come to over a history; the parts of both arguments are the same."""
    found = PolicyOutcome(policy.name)
    for one, ledger in zip(judged, ledgers, strict=True):
        _Replay(policy, one, ledger, found).run()
    return found


class _Replay:
    """One part of a history, gone through in order of time."""

    def __init__(self, policy: Policy, judged: Judged, ledger: Ledger, found: PolicyOutcome) -> None:
        self._policy, self._ledger, self._found = policy, ledger, found
        self._truths = [one.truth for one in judged.answers if one.verdict not in {"outside", "unclear"}]
        self._pages = _pages(judged)
        self._paged: dict[str, list[Instant]] = {}
        self._back: dict[str, Instant] = {}
        """By drained node: when it is back."""
        self._over: dict[str, Instant] = {}
        """By label or ticket: when a drain ended it."""

    def run(self) -> None:
        assumed, found = self._ledger.assumed, self._found
        for at, node in self._pages:
            acted = at + round(assumed.reaction_min * _MINUTE_MS)
            if self._back.get(node, 0) > at or not self._due(node, at):
                continue
            self._drain(node, acted)
        costs = [self._cost(one) for one in self._truths]
        known, unknown = total(costs)
        found.lost_to_faults += known
        found.of_unknown_cost += unknown

    def _due(self, node: str, at: Instant) -> bool:
        """Note a page; return whether the node is to be drained."""
        lately = [one for one in self._paged.get(node, ()) if one > at - _REMEMBERED_MS]
        self._paged[node] = [*lately, at]
        return 0 < self._policy.pages <= len(self._paged[node])

    def _drain(self, node: str, at: Instant) -> None:
        assumed, found, ledger = self._ledger.assumed, self._found, self._ledger
        away = sorted(back for back in self._back.values() if back > at)
        wait_h = 0.0
        if len(away) >= assumed.spares:
            found.without_spare += 1
            back = at + round(assumed.repair_h * _HOUR_MS)
            wait_h = (min([*away, back]) - at) / _HOUR_MS
        found.drains += 1
        for job in ledger.running(at):
            if node in job.nodes:
                since_h = (at - job.start) / _HOUR_MS % max(assumed.checkpoint_min / 60, 1e-9)
                found.lost_to_drains += ledger.gpus_of(job) * (since_h + assumed.restart_min / 60 + wait_h)
        here = [one for one in self._truths if _concerns(one, node) and one.label.onset <= at <= one.label.end]
        found.false_drains += not here
        for one in here:
            self._over.setdefault(one.label.id, at)
        self._back[node] = at + round(assumed.repair_h * _HOUR_MS)
        self._paged[node] = []

    def _cost(self, truth: Truth) -> float | None:
        """Return what a trouble cost up to its end, or until a drain ended it."""
        lost, label = self._ledger.lost(truth), truth.label
        over = self._over.get(label.id)
        if lost is None or over is None:
            return lost
        return lost * (over - label.onset) / max(label.end - label.onset, 1)


def _concerns(truth: Truth, node: str) -> bool:
    return any(one.get("node") == node for one in (truth.label.entity, *truth.label.also))


def _pages(judged: Judged) -> list[tuple[Instant, str]]:
    """Return when which node was paged about, in order."""
    loud: Iterable[tuple[Instant, str]] = (
        (one.detected_at, str(one.entity["node"]))
        for one in judged.findings
        if one.state == "firing" and one.severity == "page" and "node" in one.entity
    )
    return sorted(set(loud))
