from dataclasses import replace

import pytest

from detectors.contract import LogRecord
from detectors.fleet.fleet import Fleet, Job, JobEvent
from detectors.fleet.scheduling import Scheduler, expand, is_maintenance, words_of

AT = 1_711_958_400_000


def states(message: str, source: str = "scheduler", node: str | None = None) -> list[tuple[str, str]]:
    return list(words_of(LogRecord(AT, source, message, node=node)))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("slurmctld: error: Nodes v017 not responding", [("v017", "suspect")]),
        ("slurmctld: error: Nodes v[017,020-021] not responding, setting DOWN",
         [("v017", "down"), ("v020", "down"), ("v021", "down")]),
        ("node v017 not responding, marked down", [("v017", "down")]),
        ("slurmctld: Killing JobId=812 on failed node v017", [("v017", "down")]),
        ("slurmctld: validate_node_specs: Node v017 unexpectedly rebooted boot_time=1", [("v017", "down")]),
        ("slurmctld: update_node: node v017 state set to DRAIN", [("v017", "out")]),
        ("slurmctld: update_node: node v017 reason set to: fan; state set to DRAINED", [("v017", "out")]),
        ("slurmctld: update_node: node v017 reason set to: cable swap (ops) state DRAIN", [("v017", "out")]),
        ('scontrol update NodeName=v017 State=DRAIN Reason="cable swap"', [("v017", "out")]),
        ("scontrol update nodename=v017 state=resume", [("v017", "back")]),
        ("slurmctld: reboot_nodes: Queuing reboot request for nodes v017", [("v017", "out")]),
        ("slurmctld: power_save: suspending nodes v017", [("v017", "out")]),
        ("slurmctld: update_node: node v017 state set to IDLE", [("v017", "back")]),
        ("slurmctld: Node v017 now responding", [("v017", "back")]),
        ("Host <bv017> closed by administrator <lsfadmin>. repair", [("bv017", "out")]),
        ("Host <bv017> opened by administrator <lsfadmin>.", [("bv017", "back")]),
        ("badmin hclose bv017", [("bv017", "out")]),
        ('badmin: hclose bv-09 -C "new image, new name hx09"', [("bv-09", "out")]),
        ('badmin: hopen bv-09 -C "done"', [("bv-09", "back")]),
        ("sbatchd: Job <7> exit code 134; bhosts: bv-08 closed_Adm (gpu4)", [("bv-08", "out")]),
        ('pbsnodes -o v017 -N "DIMM swap"', [("v017", "out")]),
        ('pbsnodes -C "DIMM swap" -o v017', [("v017", "out")]),
        ("pbsnodes -r v017", [("v017", "back")]),
        ("pbsnodes -l v017", []),
        ("qmgr: set node v017 state = offline", [("v017", "out")]),
        ("qmgr: set node v017 state -= offline", [("v017", "back")]),
        ("pbs_server: v017: node down: communication closed", [("v017", "down")]),
        ("0008;pbs_server@head;Node;v017;node up", [("v017", "back")]),
        ("pbs_server: v017: node up", [("v017", "back")]),
        ("pbs_server;Node;v017;attributes set:  state + offline, comment = dusty filter", [("v017", "out")]),
        ("0004;Server@pbs01;Node;v017;attributes set: state - offline", [("v017", "back")]),
        ("pbs_server;Node;v017;node down: communication closed", [("v017", "down")]),
        ("kube-controller: Node v017 event: NodeNotReady: Kubelet stopped posting status", [("v017", "unready")]),
        ("Host <bv017> is unreachable.", [("bv017", "down")]),
        ("node-controller: Node ip-10-4-0-9 status is now: NodeNotReady", [("ip-10-4-0-9", "unready")]),
        ("node bz-l02 NotReady: kubelet stopped posting node status", [("bz-l02", "unready")]),
        ("Node gpu-7: Kubelet stopped posting node status.", [("gpu-7", "unready")]),
        ("node gpu-7 condition changed to Ready", [("gpu-7", "back")]),
        ("node nvl01-ct17 state DRAIN reason=optic swap mlx5_3 by dc-hands", [("nvl01-ct17", "out")]),
        ("node nvl01-ct17 state RESUME", [("nvl01-ct17", "back")]),
        ("Node bv017 status is now: NodeNotSchedulable", [("bv017", "out")]),
        ("node/bv017 cordoned", [("bv017", "out")]),
        ("Node bv017 cordoned: firmware", [("bv017", "out")]),
        ("node/bv017 uncordoned", [("bv017", "back")]),
        ("Node bv017 status is now: NodeSchedulable", [("bv017", "back")]),
        ("Node bv017 status is now: NodeHasSufficientMemory", []),
        ("node/bv017 status is now: NodeReady", [("bv017", "back")]),
        ("cluster-autoscaler: Scale-down: removing node bv017, utilization 0.08", [("bv017", "out")]),
        ("ScaleDown: node bv017 removed by cluster autoscaler", [("bv017", "out")]),
        ("Node bv017 event: Removing Node bv017 from Controller", [("bv017", "out")]),
        ("Node bv017 has been rebooted, boot id: 5f2c", [("bv017", "down")]),
        ("kured: Draining node v017", [("v017", "out")]),
        ("kubectl drain v017 --ignore-daemonsets", [("v017", "out")]),
        ("node-termination-handler: cordoning and draining node v017", [("v017", "out")]),
        ("kubectl uncordon v017", [("v017", "back")]),
        ("slurmctld: Setting node v017 to DRAIN", [("v017", "out")]),
        ("scontrol: update node v017 state=DRAIN reason=fan", [("v017", "out")]),
        ("scontrol: update node v017 state=RESUME", [("v017", "back")]),
        ("node v017 marked as unschedulable", [("v017", "out")]),
        ("Karpenter: disrupting node v017", [("v017", "out")]),
        ("spot interruption: node v017 will be terminated", [("v017", "out")]),
        ("power_save: node v017 preempted by provider, POWERING_DOWN", [("v017", "out")]),
        ("node v017 state POWERED_DOWN+CLOUD", [("v017", "out")]),
        ("node v017 changed from POWERED_DOWN to CONFIGURING", []),
        ("v017 offlined by admin: DIMM swap", [("v017", "out")]),
        ("remote shutdown/reboot requested by admin on v017", [("v017", "out")]),
        ("slurmctld: reboot request for v017 queued by root: reason=health", [("v017", "out")]),
        ("scontrol reboot issued for v017 by root", [("v017", "out")]),
        ("scontrol reboot ASAP nextstate=RESUME v017 requested by root", [("v017", "out")]),
        ('scontrol reboot ASAP nextstate=DOWN reason="new BIOS" v[017-018]', [("v017", "out"), ("v018", "out")]),
        ("scontrol reboot nextstate=RESUME", []),
        ("badmin: host v017 closed and rebooted", [("v017", "out")]),
        ("operator: draining and rebooting v017", [("v017", "out")]),
        ("node v017 resumed after planned reboot", [("v017", "back")]),
        ("worker v017 disabled by admin", [("v017", "out")]),
        ("worker v017 enabled by admin", [("v017", "back")]),
        ("taint node.kubernetes.io/unreachable added to node v017", [("v017", "suspect")]),
        ("LSF: host v017 is down", [("v017", "down")]),
        ("the queue drains slowly", []),
        ("slurmctld: sched: Allocate JobId=812 NodeList=v[001-096] #CPUs=96 Partition=x", []),
        ("slurmctld: update_node: node v017 reason set to: NHC", []),
        ("slurmctld: _job_complete: JobId=812 WEXITSTATUS 0", []),
    ],
)  # fmt: skip
def test_what_schedulers_say(message: str, words: list[tuple[str, str]]) -> None:
    assert states(message) == words


@pytest.mark.parametrize(
    ("message", "out"),
    [
        ("node-repair: v017 cordoned and drained for replacement: row remap failure", True),
        ("node-repair: instance behind v017 deleted", True),
        ("autoscaler: VM v017 deallocated (idle for 20 min)", True),
        ("spot: instance v017 reclaimed by the provider", True),
        ("autoscaler: node v017 preempted by the cloud", True),
        ("fleetctl: v017 goes down for its planned reboot", True),
        ("fleetctl: restarting v017 (scheduled kernel update)", True),
        ("fleetctl: v017 is back after its planned reboot", False),
        ("fleetctl: unplanned reboot of v017 under maintenance contract", False),
        ("fleetctl: planned reboot of v017 cancelled", False),
        ("job 812 on node v017 preempted by job 813", False),
        ("daemonset dcgm-exporter: pod dcgm-exporter-12e0b on v017 deleted (rolling update)", False),
        ("job 812 on host v017 terminated", False),
        ("instance v017 unexpectedly terminated", False),
        ("v017 is not cordoned", False),
        ("node v017 taint node.kubernetes.io/unreachable removed", False),
        ("instance behind v018 deleted", False),
    ],
)
def test_a_line_in_other_words_takes_out_the_node_that_it_names(message: str, out: bool) -> None:
    assert states(message, node="v017") == ([("v017", "out")] if out else [])


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ("NodeNotReady: Kubelet stopped posting node status (v017)", "unready"),
        ("Kubelet stopped posting node status.", "unready"),
        ("NodeReady", "back"),
    ],
)
def test_an_event_of_kubernetes_is_of_the_node_that_it_is_recorded_with(message: str, state: str) -> None:
    assert states(message, node="v017") == [("v017", state)]
    assert states(message) == []


def test_only_schedulers_and_orderly_kernels_are_heard() -> None:
    assert states("slurmctld: error: Nodes v017 not responding", source="job") == []
    assert states("reboot: Restarting system", "kernel", "v003") == [("v003", "out")]
    going = "systemd-logind[1201]: The system will reboot now! (maintenance)"
    assert states(going, "kernel", "v003") == [("v003", "out")]
    assert states("systemd[1]: Stopping dcgm-exporter.service", "kernel", "v003") == []
    assert states("Kernel panic - not syncing: Fatal exception", "kernel", "v003") == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("IPv6: ADDRCONF(NETDEV_CHANGE): cali5044da9f: link becomes ready", ["alive"]),
        ("cni0: port 53(veth8c4031c7) entered blocking state", ["alive"]),
        ('audit: type=1400 apparmor="DENIED" operation="ptrace"', ["alive"]),
        ("sshd[6268]: Accepted publickey for hd from 10.0.2.127 port 61441 ssh2", ["alive"]),
        ("sshd[900]: Server listening on 0.0.0.0 port 22.", []),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready", []),
        ("Linux version 5.15.0-105-generic", []),
    ],
)
def test_what_a_kernel_logs_of_containers_and_logins_shows_that_its_node_is_alive(words: str, found: list[str]) -> None:
    assert states(words, "kernel", "v003") == [("v003", state) for state in found]


def test_a_daemon_on_the_node_speaks_for_it_beside_the_kernel_too() -> None:
    kubelet = 'kubelet[2210]: I0617 10:12:14 prober.go:107] "Probe succeeded" pod="serve/chat-0"'
    assert states(kubelet, "kernel", "v003") == [("v003", "alive")]
    assert states("kubelet[2210]: Started kubelet", "kernel", "v003") == []
    assert states(kubelet, "kernel") == []


@pytest.mark.parametrize(
    "message",
    [
        "Back-off restarting failed container dcgm-exporter in pod dcgm-exporter-7kq2p_gpu-operator(0f3c)",
        "Started container trainer",
        "Created container: trainer",
        "Stopping container trainer",
        "Readiness probe failed: HTTP probe failed with statuscode: 503",
        'Container image "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.5" already present on machine',
        'Successfully pulled image "nvcr.io/x:1" in 2.1s',
    ],
)
def test_events_of_a_kubelet_say_that_its_node_is_alive(message: str) -> None:
    assert states(message, node="bv017") == [("bv017", "alive")]
    assert states(message) == []
    scheduler = Scheduler(Fleet())
    scheduler.take([LogRecord(AT, "scheduler", message, node="bv017")])
    assert scheduler.alive("bv017", AT - 1)
    assert not scheduler.alive("bv017", AT)
    assert not scheduler.alive("bv018", AT - 1)


@pytest.mark.parametrize(
    "message",
    [
        "step:1619/20344 train_loss:1.2798 train_time:27157619ms step_avg:3040.03ms",
        " iteration      340/ 500000 | lm loss: 2.1E+00",
        "{'loss': 1.2, 'step': 40}",
        "Epoch 0: global_step=812",
    ],
)
def test_a_step_that_a_job_prints_shows_that_its_node_is_alive(message: str) -> None:
    assert states(message, "job", "v003") == [("v003", "alive")]
    assert states(message, "job") == []
    assert states(message, "kernel", "v003") == []
    assert states("NCCL watchdog: timed out; the last step was lost", "job", "v003") == []


def test_a_name_that_nobody_knows_gives_way_to_the_node_the_line_is_recorded_with() -> None:
    scheduler = Scheduler(Fleet({"nodes": [{"name": "ip-10-8-0-12", "gpus": []}, {"name": "v2", "gpus": []}]}))
    words = "NodeNotReady: Node {} status is now: NodeNotReady"
    lines = [("ip-10-8-0-012", "ip-10-8-0-12"), ("v2", "ip-10-8-0-12"), ("v3", "controller"), ("v4", None)]
    scheduler.take([LogRecord(AT, "scheduler", words.format(name), node=node) for name, node in lines])
    assert scheduler.long_unready(AT + 300_000) == ["ip-10-8-0-12", "v2", "v3", "v4"]


def test_a_reboot_of_a_node_that_was_drained_leaves_it_out_since_the_drain() -> None:
    scheduler = Scheduler(Fleet())
    drained = "update_node: node v1 state set to DRAINED"
    scheduler.take([LogRecord(AT, "scheduler", drained)])
    scheduler.take([LogRecord(AT + 90_000, "kernel", "systemd-shutdown[1]: Rebooting.", node="v1")])
    word = scheduler.on_purpose("v1", AT + 100_000)
    assert word is not None
    assert word.at == AT
    week_ms = 7 * 86_400_000
    scheduler.take([LogRecord(AT + week_ms + 1, "scheduler", drained)])
    assert scheduler.on_purpose("v1", AT + week_ms + 2) is not None


def test_short_forms_of_node_names() -> None:
    assert expand("v[001-003,007],w1") == ["v001", "v002", "v003", "v007", "w1"]


def test_out_holds_until_the_node_is_back_or_gets_a_new_job() -> None:
    fleet = Fleet()
    scheduler = Scheduler(fleet)
    scheduler.take([LogRecord(AT, "scheduler", "slurmctld: update_node: node v1 state set to DRAIN")])
    assert scheduler.on_purpose("v1", AT + 1000) is not None
    assert scheduler.on_purpose("v2", AT + 1000) is None
    fleet.happen(JobEvent(AT - 5, "start", Job("1", ("v1",), AT - 5)))
    assert scheduler.on_purpose("v1", AT + 1000) is not None
    second = Job("2", ("v1",), AT + 500)
    fleet.happen(JobEvent(AT + 500, "start", second))
    assert scheduler.on_purpose("v1", AT + 1000) is None
    fleet.happen(JobEvent(AT + 700, "end", second, "NODE_FAIL"))
    fleet = Fleet.restore(None, fleet.snapshot())
    assert fleet.given_at("v1") == AT + 500
    assert scheduler.on_purpose("v1", AT + 1000) is None
    again = Scheduler(fleet)
    again.load(scheduler.snapshot())
    assert again.snapshot() == scheduler.snapshot()


def test_a_node_reported_down_is_down_until_it_is_back() -> None:
    scheduler = Scheduler(Fleet())
    scheduler.take([LogRecord(AT, "scheduler", "error: Nodes v1 not responding, setting DOWN")])
    scheduler.take([LogRecord(AT + 1, "scheduler", "error: Nodes v1 not responding")])
    word = scheduler.fate("v1", AT)
    assert word is not None
    assert word.state == "down"
    assert scheduler.reported_down(AT - 1) == ["v1"]
    scheduler.take([LogRecord(AT + 2, "scheduler", "slurmctld: node v1 returned to service")])
    assert scheduler.fate("v1", AT) is None


def test_a_reboot_that_a_node_announced_explains_the_silence_that_follows_and_no_later_one() -> None:
    scheduler = Scheduler(Fleet())
    scheduler.take([LogRecord(AT, "kernel", "reboot: Restarting system", node="v1")])
    hour = 3_600_000
    assert scheduler.by_right("v1", AT + 20_000, 5000, AT + hour) is not None
    assert scheduler.by_right("v1", AT + hour, 5000, AT + 2 * hour) is None
    stopped_before = AT - 90_000  # services end before their kernel does
    assert scheduler.by_right("v1", stopped_before, 5000, AT + hour) is not None
    assert scheduler.by_right("v1", stopped_before - 300_000, 5000, AT + hour) is None
    scheduler.take([LogRecord(AT + 2 * hour, "kernel", "reboot: Restarting system", node="v1")])
    assert scheduler.by_right("v1", AT + 2 * hour, 5000, AT + 3 * hour) is not None
    again = Scheduler(Fleet())
    again.load(scheduler.snapshot())
    assert again.by_right("v1", AT + 4 * hour, 5000, AT + 5 * hour) is None


@pytest.mark.parametrize(
    ("name", "user", "gpus", "only_keeps"),
    [
        ("MAINT weekly firmware window", "root", 0, True),
        ("maintenance_0415", "root", None, True),
        ("reservation: rack 7", "ops", 0, True),
        ("predictive-maintenance-train", "ines", 8, False),
        ("maintain-ema", "root", 0, False),
        ("llama-70b", "root", 8, False),
    ],
)
def test_a_job_of_an_administrator_or_without_gpus_may_only_keep_its_nodes(
    name: str, user: str, gpus: int | None, only_keeps: bool
) -> None:
    assert is_maintenance(name, user, gpus) == only_keeps


def test_a_job_that_keeps_a_node_for_maintenance_is_no_work_and_takes_it_out_while_it_lasts() -> None:
    fleet = Fleet()
    scheduler = Scheduler(fleet)
    kept = Job("m1", ("v1",), AT, 0, maintenance=True)
    scheduler.take([LogRecord(AT - 1000, "scheduler", "update_node: node v1 state set to DRAINED")])
    fleet.happen(JobEvent(AT, "start", kept))
    word = scheduler.by_right("v1", AT + 5000, 10_000, AT + 9000)
    assert word is not None
    assert word.at == AT
    assert scheduler.on_purpose("v2", AT) is None
    assert fleet.job_of("v1") is None
    assert Fleet.restore(None, fleet.snapshot()).maintenance_of("v1") == replace(kept, gpus_per_node=None)
    scheduler.take([LogRecord(AT + 9000, "scheduler", "update_node: node v1 state set to IDLE")])
    fleet.happen(JobEvent(AT + 10_000, "end", kept))
    assert scheduler.on_purpose("v1", AT + 11_000) is None
