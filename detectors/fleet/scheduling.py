"""What schedulers say of nodes in their log: taken out on purpose, back, not heard of, down.

Slurm: slurmctld's lines (src/slurmctld: node_mgr.c, ping_nodes.c, job_mgr.c, power_save.c); LSF: mbatchd's and what
badmin logs; PBS: pbs_server's, pbsnodes and qmgr; Kubernetes: events of its node lifecycle controller and of kubelets.
An orderly reboot that a node itself announces counts as on purpose too, for a silence that begins soon after it. A node
whose job prints steps is alive.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from detectors.contract import Instant, LogRecord
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet

State = Literal["out", "back", "suspect", "unready", "down", "alive"]
_REMEMBERED_MS = 7 * 86_400_000
_KEPT_DOWN_MS = 600_000
"""For so long "not responding" or "not ready" does not take the place of "down", nor of a "not ready" before."""
_UNREADY_MS = 295_000
"""A kubelet that restarts leaves its node "NotReady" for a minute; Kubernetes evicts what runs there after five
(tolerationSeconds of its admission plugin DefaultTolerationSeconds), less one step of the grid."""
_ONE: Final = r"[A-Za-z][\w.-]*(?:\[[\d,-]+\][\w.-]*)?"
NODES: Final = rf"(?P<nodes>(?!(?:and|by|for|of|reason|to)\b){_ONE}(?:,{_ONE})*)"
"""Names of nodes as Slurm shortens them, for `expand`; no words that follow a verb in a line."""
_WORDINGS: tuple[tuple[State, str], ...] = (
    ("down", r"Nodes? NODES not responding,? (?:setting|set|marked|marking) (?:it |them )?DOWN"),
    ("suspect", r"Nodes? NODES not responding"),
    ("down", r"on failed nodes? NODES"),
    ("down", r"due to failure of node NODES"),
    ("down", r"Node NODES unexpectedly rebooted"),
    ("down", r"node_?fail\w*\b.*?\bnodes?(?:list)?[ =:]+NODES"),
    ("down", r"nodes?(?:list)?[ =:]+NODES.*\bNODE_FAIL\b"),
    ("out", r"nodes? NODES state set to (?:DRAIN|DOWN|FAIL|MAINT|POWER|REBOOT|FUTURE)"),
    ("out", r"nodes? NODES reason set to:.*\bstate (?:set to )?(?:DRAIN|DOWN|FAIL|MAINT|POWER|REBOOT)"),
    ("out", r"scontrol update node(?:name)?=NODES\b.*\bstate=(?:drain|down|fail|maint|power_down|reboot)"),
    ("back", r"scontrol update node(?:name)?=NODES\b.*\bstate=(?:resume|idle|undrain|power_up)"),
    ("back", r"nodes? NODES state set to (?:RESUME|IDLE|UNDRAIN|ALLOC|MIXED|POWER_UP)"),
    ("back", r"nodes? NODES (?:now responding|returned to service|resumed)\b"),
    ("out", r"(?:reboot\w*|suspending|power(?:ing)? down)\b(?: \w+){0,3}? nodes? NODES"),
    ("out", r"(?:reboot(?:ing)?|powering down) NODES\s*$"),
    ("out", r"nodes? NODES (?:is )?(?:being )?(?:reboot\w*|powered down|powering down|draining|drained)\b"),
    ("out", r"nodes?[ /]NODES\b[^;]*?\bPOWER(?:ING|ED)?_(?:DOWN|OFF)\b(?!\W*(?:to\b|>))"),
    ("out", r"hclose\b.*?\b(?:host )?<?NODES>?(?:\s+-C\b.*)?\s*$"),
    ("back", r"hopen\b.*?\b(?:host )?<?NODES>?(?:\s+-C\b.*)?\s*$"),
    ("out", r"bhosts:? <?NODES>? closed_Adm\b"),
    ("out", r"pbsnodes (?:-[CN] (?:\"[^\"]*\"|\S+) )?-o NODES\b"),
    ("back", r"pbsnodes (?:-[CN] (?:\"[^\"]*\"|\S+) )?-[rc] NODES\b"),
    ("out", r"set node NODES state ?\+?= ?\"?offline"),
    ("back", r"set node NODES state ?(?:-= ?\"?offline|= ?\"?free)"),
    ("out", r"PBS NODES[:;] ?(?:node )?(?:marked )?offline\b"),
    ("out", r"PBS NODES[:;] ?attributes set: *state \+ offline"),
    ("back", r"PBS NODES[:;] ?attributes set: *state - offline"),
    ("down", r"PBS NODES[:;] ?node down\b"),
    ("back", r"PBS NODES[:;] ?node up\b"),
    ("out", r"host <?NODES>? (?:is |has been |was )?closed(?:_Adm| by (?:the )?admin| (?:and|for)\b)"),
    ("back", r"host <?NODES>? (?:is |has been |was )?(?:opened|ok\b)"),
    ("out", r"node[ /]NODES status is now: NodeNotSchedulable"),
    ("unready", r"node[ /]NODES(?: (?:status|condition|event|is|now|became|changed|to|state))*:? (?:Node)?Not ?Ready"),
    ("unready", r"node[ /]NODES\b.*kubelet (?:has )?stopped posting"),
    ("back", r"node[ /]NODES(?: (?:status|condition|event|is|now|became|changed|to|state))*:? (?:Node)?Ready\b"),
    ("back", r"node[ /]NODES status is now: NodeSchedulable"),
    ("out", r"scale-?down: removing (?:empty )?node NODES\b"),
    ("out", r"node[ /]NODES (?:was |has been )?(?:deleted from (?:the )?cluster|removed by cluster autoscaler)"),
    ("out", r"Removing Node NODES from Controller"),
    ("out", r"node[ /]NODES (?:is |was |has been |already )?cordoned\b"),
    ("back", r"node[ /]NODES (?:is |was |has been |already )?uncordoned\b"),
    ("down", r"node NODES has been rebooted, boot id"),
    ("down", r"host <?NODES>?:? (?:is |has become |status )?(?:unreach|unavail)\w*"),
    ("down", r"(?:node|host) <?NODES>? is (?:now )?down\b"),
    ("suspect", r"node\.kubernetes\.io/unreachable\b.*? node NODES"),
    # What operators and their tools write in words of their own.
    ("back", r"\b(?:uncordon|undrain)(?:ed|ing)?:? (?:the )?(?:nodes?[ /]|host )?NODES"),
    ("back", r"nodes?[ /]NODES (?:new )?state(?: is| now| to)? ?[=:]? ?\"?(?:resume\w*|idle|free|alloc\w*|mixed)\b"),
    ("out", r"nodes?[ /]NODES (?:new )?state(?: is| now| to)? ?[=:]? ?\"?(?:drain\w*|offline|maint\w*|closed)\b"),
    ("out", r"nodes?[ /]NODES (?:put |set |moved )?(?:in|to|into) (?:state )?(?:drain\w*|maint\w*)\b"),
    ("out", r"nodes?[ /]NODES (?:is |was )?(?:marked |set )?(?:as )?unschedulable\b"),
    ("out", r"node\.kubernetes\.io/unschedulable\b.*? node NODES"),
    ("out", r"nodes?[ /]NODES (?:is |was |will be )?(?:shutting down|shut down|terminated|deleted|decommissioned)\b"),
    ("out", r"\bdisrupting node NODES"),
    ("out", r"\bNODES (?:is |was |has been )?offlined\b"),
    ("out", r"\b(?:shut ?down|reboot|power[- ]?off) (?:requested|ordered|scheduled)(?: by \S+)? (?:on|of|for) NODES"),
    ("out", r"\b(?:shut ?down|reboot|power[- ]?off) (?:request|issued) (?:on|of|for) NODES"),
    ("out", r"\bscontrol reboot(?: asap| nextstate=\w+| reason=(?:\"[^\"]*\"|'[^']*'|\S+))+ NODES"),
    ("out", r"\bworker NODES (?:is |was |has been )?disabled\b"),
    ("back", r"\bworker NODES (?:is |was |has been )?enabled\b"),
    ("out", r"\b(?:drain|cordon)(?:ed|ing)?(?: and \w+)?:? (?:the )?(?:nodes?[ /]|host )?NODES"),
)  # fmt: skip
_PBS: Final = r"(?:pbs_server|Server)(?:@[\w.-]+)?(?:;Node;|: )"
"""How a server's log of PBS begins, of a node: daemon, class, name."""
_FORMS = tuple(
    (state, re.compile(form.replace("PBS ", _PBS).replace("NODES", NODES), re.IGNORECASE)) for state, form in _WORDINGS
)
_TAKEN_OUT = re.compile(
    r"\b(?:cordoned|drained)\b|"
    r"\b(?:instances?|vms?|virtual machines?|machines?|hosts?|servers?|nodes?)\b.*"
    r"\b(?:deleted|terminated|removed|replaced|deallocated|deprovisioned|decommissioned|released|reclaimed|"
    r"preempted by|evicted by|interrupted by)\b|"
    r"^(?!.*\b(?:cancel|postpone|complete|done|finished|over\b|back\b|after\b)).*"
    r"(?:\b(?:planned|scheduled)\b.*\b(?:reboot|restart|shut ?down|power[- ]?(?:off|cycle))|"
    r"\b(?:reboot|restart|shut(?:ting)? ?down|power(?:ing)?[- ]?(?:off|down|cycl)).*"
    r"\b(?:planned|scheduled|maintenance)\b)",
    re.IGNORECASE,
)
"""What clouds, operators and their tools write of a node in words of their own, which it is named in."""
_OF_ANOTHER = re.compile(
    r"\b(?:pods?|containers?|jobs?|jobid|tasks?|daemonsets?|deployments?|volumes?|gpus?|ports?|cables?|"
    r"taints?|labels?|flags?|annotations?|conditions?|reasons?|features?|reservations?|leases?|locks?)\b|"
    r"\bnot\b|unexpected|unplanned|unscheduled|crash|\bfailed to\b",
    re.IGNORECASE,
)
"""Then the line is of something on the node, or of no purpose."""
_ORDERLY = re.compile(
    r"reboot: (?:Restarting system|Power down|System halted)|"
    r"systemd.*(?:Reached target .*(?:Reboot|Power-Off|Shutdown)|Shutting down|Rebooting|Powering off|"
    r"The system (?:is going down|will (?:reboot|power off|halt) now)|System is (?:rebooting|powering down|halting))"
)
_GOING_MS = 600_000
"""Services get 90 s to stop, some minutes in all: a later silence is not that of the reboot announced."""
_STOPPING_MS = 120_000
"""Exporters stop before a kernel's last line, as systemd gives services 90 s to end; and clocks differ."""
_KUBELET = re.compile(
    r"(?:Back-off (?:restarting failed container|pulling image)|(?:Started|Created|Stopping) container|"
    r"(?:Liveness|Readiness|Startup) probe failed|(?:Successfully pulled|Pulling) image|"
    r"Container image\b.*\balready present on machine)\b"
)
"""Events of the node's own kubelet (pkg/kubelet/events/event.go and its messages): whoever sends them is alive."""
_READINESS = re.compile(
    r"\bKubelet stopped posting node status|\bNodeNotReady\b|\b(?P<ready>NodeReady)\b", re.IGNORECASE
)
"""Reasons of Kubernetes' events of nodes, and the condition's words: exporters of events give the node beside them."""
_DAEMON = re.compile(
    r"(?:slurmd|slurmstepd|pbs_mom|sbatchd|kubelet|sshd(?:-session)?|CRON|crond|containerd|dockerd|chronyd)\b"
    r"(?!.*\b(?:[Ss]tart(?:ed|ing)|listening on)\b)"
)
"""Daemons that run on the node itself and log by their own name; that they start follows a boot."""
_PROGRAM = re.compile(
    r"segfault at |traps: \S+\[\d+\]|perf: interrupt took too long|Killed process \d+|\bXid\b.*\bpid='?\d+|"
    r"\((?:veth|cali)\w+\) entered|: (?:veth|cali)\w+: link becomes ready|apparmor=\"(?:ALLOWED|DENIED)"
)
"""What a kernel logs of programs and containers that run; of a kernel that hangs, or boots, there are other lines."""
_MAINTENANCE = re.compile(r"(?:^|[\W_])(?:maint(?:enance)?|reservation|reserved)(?:[\W_]|$)", re.IGNORECASE)
ADMINS: Final = frozenset({"root", "slurm"})
"""Users whose jobs may be no work at all."""
_STEP = re.compile(r"\b(?:global_step|iteration|iter|step)\b['\"]?[:= ]{1,16}\d", re.IGNORECASE)
"""A training loop goes on where its line is from, whatever the framework."""
_RANGE = re.compile(r"([^,\[\]]+)(?:\[([\d,-]+)\])?([^,\[\]]*)")
_MOST_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Word:
    """The state that a log line gives a node, when, and the line."""

    state: State
    at: Instant
    line: str
    own: bool = False
    """Whether the node itself wrote it, of its own reboot."""

    def stored(self) -> dict[str, Any]:
        """Return the word as JSON can say it; the state has the name that older snapshots give it."""
        return {"said": self.state, "at": self.at, "line": self.line, "own": self.own}

    @classmethod
    def restore(cls, stored: dict[str, Any]) -> "Word":
        """Return what `stored` was taken of."""
        return cls(stored["said"], stored["at"], stored["line"], stored.get("own", False))


def words_of(record: LogRecord) -> Iterator[tuple[str, State]]:
    """Yield which nodes a log line speaks of, and the state that it gives them; nothing for most lines."""
    if record.source == "kernel":
        if record.node and _ORDERLY.search(record.message):
            yield record.node, "out"
        elif record.node and (_PROGRAM.search(record.message) or _DAEMON.match(record.message)):
            yield record.node, "alive"  # a node's journal has its daemons beside its kernel
        return
    if record.source == "job":
        if record.node and _STEP.search(record.message):
            yield record.node, "alive"
        return
    if record.source != "scheduler":
        return
    if record.node and _KUBELET.search(record.message):
        yield record.node, "alive"
        return
    for state, form in _FORMS:
        found = form.search(record.message)
        if found:
            for node in expand(found["nodes"]):
                yield node, state
            return
    if record.node and (own := _state_beside(record.node, record.message)):
        yield record.node, own


def _state_beside(node: str, message: str) -> State | None:
    """Return the state that a line gives the node that it is recorded with, in no form that names it; None for most."""
    if found := _READINESS.search(message):
        return "back" if found["ready"] else "unready"
    if node in message and _taken_out(message):
        return "out"
    return "alive" if _DAEMON.match(message) else None


def _taken_out(message: str) -> bool:
    verb = _TAKEN_OUT.search(message)
    return verb is not None and _OF_ANOTHER.search(message[: verb.end()]) is None


def is_maintenance(name: str, user: str, gpus_per_node: int | None) -> bool:
    """Return whether a job only keeps its nodes, by its name: of an administrator, or without GPUs."""
    return bool(_MAINTENANCE.search(name)) and (gpus_per_node == 0 or user in ADMINS)


def expand(nodes: str) -> list[str]:
    """Return the names in Slurm's short form: ``v[001-003,007],w1`` is five nodes."""
    names: list[str] = []
    for prefix, ranges, suffix in _RANGE.findall(nodes):
        if not ranges:
            names.append(prefix + suffix)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if not first.isdigit() or (last and not last.isdigit()):
                continue
            numbers = range(int(first), int(last or first) + 1)
            names += [f"{prefix}{number:0{len(first)}d}{suffix}" for number in numbers[: _MOST_NODES - len(names)]]
    return names


class Scheduler:
    """The last word on each node: one on what was done on purpose, one on what happened to it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._purpose: dict[str, Word] = {}
        self._fate: dict[str, Word] = {}
        self._alive: dict[str, Word] = {}
        self._going: dict[str, Word] = {}

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take log lines in order of time."""
        for record in records:
            for named, state in words_of(record):
                node = self._known(named, record.node)
                word = Word(state, record.at, record.message[:200], own=record.source == "kernel")
                if state == "alive":
                    self._alive[node] = word
                    continue
                if word.own:
                    self._going[node] = word
                before = self._taken_out(node, record.at) if state == "out" else None
                if before is not None and not (before.own and record.at - before.at > _GOING_MS):
                    continue  # it was out before: a drain, then the reboot
                if state in {"out", "back"}:
                    self._purpose[node] = word
                    if state == "back":
                        self._fate.pop(node, None)
                elif state == "down" or not self.gives_up(node, record.at - _KEPT_DOWN_MS):
                    self._fate[node] = word

    def _known(self, named: str, source: str | None) -> str:
        """Return which node a line means: the one it names, but if only the one it is recorded with is known, that."""
        nodes = self._fleet.nodes
        return source if source in nodes and named not in nodes else named

    def on_purpose(self, node: str, now: Instant) -> Word | None:
        """Return the line by which a node was taken out on purpose, if that still holds.

        It holds until the scheduler takes the node back, or lets a new job start there. So does a job that keeps the
        node for maintenance, until it ends.
        """
        if (kept := self._fleet.maintenance_of(node)) is not None:
            return Word("out", kept.start, f"job {kept.job_id} keeps it for maintenance")
        return self._taken_out(node, now)

    def _taken_out(self, node: str, now: Instant) -> Word | None:
        word = self._purpose.get(node)
        if word is None or word.state != "out" or now - word.at > _REMEMBERED_MS:
            return None
        return word if self._fleet.given_at(node) <= word.at else None

    def back_at(self, node: str) -> Instant:
        """Return when the scheduler last took a node back that was out on purpose; -1 where it did not."""
        word = self._purpose.get(node)
        return word.at if word is not None and word.state == "back" else -1

    def by_right(self, node: str, last: Instant, usual: float, now: Instant) -> Word | None:
        """Return the line by which a node that was last heard at `last` is silent on purpose, if there is one.

        What it announced itself holds for the silence that follows, not for one days after it was back.
        """
        word = self.on_purpose(node, now)
        if word is not None and not word.own and word.at <= last + usual:
            return word
        going = self._going.get(node)
        if going is None or not last - _GOING_MS <= going.at <= last + usual + _STOPPING_MS:
            return None
        return going

    def fate(self, node: str, since: Instant) -> Word | None:
        """Return the line since `since` that says that a node is down, is not ready, or does not answer."""
        word = self._fate.get(node)
        return word if word is not None and word.at >= since else None

    def gives_up(self, node: str, since: Instant) -> bool:
        """Return whether a line since `since` says that a node is down or not ready."""
        word = self.fate(node, since)
        return word is not None and word.state in {"down", "unready"}

    def alive(self, node: str, since: Instant) -> Word | None:
        """Return the last line of a daemon, program or job on the node itself, if it came after `since`."""
        word = self._alive.get(node)
        return word if word is not None and word.at > since else None

    def reported_down(self, since: Instant) -> Iterable[str]:
        """Return the nodes that were reported down after `since`."""
        return [node for node, word in self._fate.items() if word.state == "down" and word.at > since]

    def long_unready(self, now: Instant) -> Iterable[str]:
        """Return the nodes that Kubernetes has called not ready for so long that what ran there is evicted."""
        return [node for node, word in self._fate.items() if word.state == "unready" and now - word.at >= _UNREADY_MS]

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget what is known of nodes that are gone."""
        for words in (self._purpose, self._fate, self._alive, self._going):
            for node in survivors.names("machine") & words.keys():
                del words[node]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {
            "purpose": {node: word.stored() for node, word in self._purpose.items()},
            "fate": {node: word.stored() for node, word in self._fate.items()},
            "alive": {node: word.stored() for node, word in self._alive.items()},
            "going": {node: word.stored() for node, word in self._going.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._purpose = {node: Word.restore(word) for node, word in state["purpose"].items()}
        self._fate = {node: Word.restore(word) for node, word in state["fate"].items()}
        self._alive = {node: Word.restore(word) for node, word in state.get("alive", {}).items()}
        self._going = {node: Word.restore(word) for node, word in state.get("going", {}).items()}
