"""Months of a simulated cluster against their tickets: `python -m benchmarks.tickets [--days 90] [--nodes 96]`.

Two training jobs share the cluster, readings come every 60 s, and 32 faults are spread over the time. A ticket is
opened for each of them, and eight more for what no telemetry shows. `hindcast backtest` looks at it, and:

- the first days (`--first`) come to the same bytes in one process, in two, and on a Ray cluster of this machine of
  which a worker is killed in the middle of a task (left out where Ray is not installed);
- the whole goes on from the results of those days, and its figures are those that are counted here from the labels
  and the findings, without the product's matching;
- it takes at most 18 CPU-hours for a year of 768 GPUs, and after a change of one detector's setting at most a fifth of
  that. What the dearest detector's setting costs is measured over the first days.

It prints what that took beside the bars; exit code 1 where figures are otherwise or a bar is missed. `--short`: a few
nodes and hours, of which no bar says anything.
"""

import argparse
import csv
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured import children_cpu_s
from detectors.contract import Finding
from services.backtest.history import detected
from services.backtest.pieces import parts_of, pieces_of
from services.backtest.results import Results
from services.backtest.windows import Cuts
from services.detect.choices import load_choices
from services.kit.wait import until
from services.recording.instants import format_instant, parse_offset
from services.recording.model import Label
from services.recording.reader import Recording
from services.synth.make import make_recording
from tests.small import braked_vela, written

SEED = 13
INTERVAL_S = 60
STEP_S = 28.0
"""Of the jobs."""
GRID_S = 30
BAR_CPU_H, BAR_AGAIN = 18, 0.2
CHANGED, DEAREST = "power_throttle: {confirm_readings: 3}\n", "straggler: {effect_share: 0.12}\n"
CLOSED_MS = 600_000
"""How long after its trouble was over a ticket is closed."""
# What breaks, one kind after the other: how long it lasts (minutes), the fields of the happening, its label's fault,
# and what a person would write.
KINDS: tuple[tuple[float, dict[str, Any], str, str], ...] = (
    (17, {"kind": "power_brake", "gpu_cap_w": 150}, "power_throttle", "clocks dropped, power brake"),
    (70, {"kind": "straggler", "gpu": 3, "factor": 1.35}, "straggler", "job runs slow, GPU 3 looks like a straggler"),
    (60, {"kind": "fan_failure", "fans": [2, 3]}, "thermal_throttle", "GPUs overheating, two fans stand still"),
    (45, {"kind": "link_down", "nic": 1}, "link_down", "port mlx5_1 link down"),
    (50, {"kind": "sbe_storm", "gpu": 5, "per_s": 8.0}, "ecc_correctable_storm", "single-bit errors by the thousand"),
    (90, {"kind": "row_remap", "gpu": 2, "rows": 2}, "row_remap_pending", "row remap pending on GPU 2"),
    (
        60,
        {"kind": "pcie_degraded", "gpu": 6, "gb_s": 3.4, "gen": 1},
        "pcie_degraded",
        "GPU 6 at PCIe gen 1, slow copies",
    ),
    (
        50,
        {"kind": "nvlink_errors", "gpu": 4, "crc_per_s": 180.0, "replays_per_s": 1.5, "bandwidth_left": 0.8},
        "nvlink_fault",
        "NVLink errors on GPU 4",
    ),
)
# Tickets of which telemetry has nothing: what they say, and what they count as.
NOTHING = (
    *[("please update the BIOS", "unclear")] * 3,
    *[("user cannot log in", "unclear")] * 2,
    *[("GPU 2 has fallen off the bus", "missed")] * 2,
    ("out of paper", "outside"),
)


@dataclass(frozen=True)
class Asked:
    """How large the history is, and how many days of it every executor goes through."""

    days: float
    nodes: int
    first: float
    window: str
    """As `hindcast backtest --window` takes it."""
    warm_up: str
    faults: int
    """How many there are of them, spread over the time."""

    @property
    def cuts(self) -> Cuts:
        """The windows that the command makes of this."""
        return Cuts(parse_offset(f"+{self.window}"), parse_offset(f"+{self.warm_up}"), GRID_S * 1000)


def make(asked: Asked, folder: Path) -> Recording:
    """Return the history, made by the generator."""
    scenario, profile = braked_vela()
    job = scenario["jobs"][0]
    names = [profile["node_name"].format(number + 1) for number in range(asked.nodes)]
    split = len(names) * 2 // 3
    training = job["training"] | {"compute_s": STEP_S, "checkpoint_every": 120, "last_iteration": 10_000_000}
    shares = {"812": f"{names[0]}..{names[split - 1]}", "813": f"{names[split]}..{names[-1]}"}
    alike = {"submit": 0.0, "start": 1.0, "training": training}
    jobs = [job | alike | {"id": number, "nodes": nodes} for number, nodes in shares.items()]
    scenario |= {
        "name": "months",
        "start": "2024-04-01T00:00:00Z",
        "duration": asked.days * 86_400,
        "interval_s": INTERVAL_S,
        "distractors": [],
        "jobs": jobs,
        "happenings": _happenings(asked, names),
    }
    network = profile["network"] | {"nic_interval_s": INTERVAL_S, "switch_interval_s": INTERVAL_S}
    profile |= {"nodes": asked.nodes, "storage_interval_s": INTERVAL_S, "network": network}
    return Recording.open(make_recording(written(folder / "scenario", scenario, profile), folder / "months"))


def _happenings(asked: Asked, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the faults, one in each stretch of equal length, that none may hide another."""
    random = np.random.default_rng(SEED)
    stretch_s = asked.days * 86_400 / asked.faults
    found = []
    for number, node in enumerate(random.choice(names, asked.faults, replace=len(names) < 2 * asked.faults).tolist()):
        minutes, happening, fault, _ = KINDS[number % len(KINDS)]
        lasts_s = min(minutes * 60, 0.6 * stretch_s)
        at = round(number * stretch_s + random.uniform(0.1, 0.3) * stretch_s, 1)
        truth = {"id": f"f{number}", "fault": fault, "within_s": 900, "root": True, "cause": happening["kind"]}
        truth |= {"incident": f"i{number}", "note": happening["kind"]}
        found.append(happening | {"node": node, "at": at, "until": round(at + lasts_s, 1), "truth": truth})
    return found


def write_tickets(recording: Recording, path: Path) -> dict[str, int]:
    """Write a ticket for every label, opened some minutes after its onset, and those for nothing; return when each of
    the former was opened (ms), by its label.
    """
    random = np.random.default_rng(SEED + 1)
    words = {fault: text for _, _, fault, text in KINDS}
    rows, opened = [["id", "created", "resolved", "host", "summary", "gpu_hours_lost"]], {}
    labels = faults_of(recording)
    for label in labels:
        opened[label.id] = label.onset + int(random.uniform(0.2, 0.9) * (label.end - label.onset))
        lost = "" if label.impact is None else repr(label.impact["gpu_hours_lost"])
        times = (format_instant(at) for at in (opened[label.id], label.end + CLOSED_MS))
        rows.append([label.id, *times, str(label.entity["node"]), words[label.fault], lost])
    quiet = sorted({node.name for node in recording.topology.nodes} - {str(label.entity["node"]) for label in labels})
    start, end = recording.manifest.start, recording.manifest.end
    for number, (text, _) in enumerate(NOTHING):
        host = "printer-7" if text == "out of paper" else quiet[number % len(quiet)]
        at = start + int((number + 0.5) / len(NOTHING) * (end - start))
        rows.append([f"n{number}", format_instant(at), format_instant(at + 3 * CLOSED_MS), host, text, ""])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return opened


def faults_of(recording: Recording) -> list[Label]:
    """Return the labels that are faults."""
    return [label for label in recording.labels() if not label.distractor]


class Bench:
    """The command over one history, each time in a process of its own."""

    def __init__(self, recording: Recording, asked: Asked, folder: Path, tickets: Path) -> None:
        self._folder = folder
        self._common = [str(recording.path), "--window", asked.window, "--warm-up", asked.warm_up]
        self._common += ["--grid", f"{GRID_S}s"]
        self.tickets = ("--incidents", str(tickets))
        last = recording.manifest.start + round(asked.first * 86_400_000) - 1
        self.first = ("--to", format_instant(last))

    def run(self, name: str, work: str, *more: str, kill: bool = False) -> tuple[dict[str, Any], float]:
        """Return what a run says, and the CPU seconds that it took; `kill`: one of Ray's workers dies in a task."""
        out = self.out(name)
        command = [sys.executable, "-m", "services.cli", "backtest", *self._common, *more]
        before = children_cpu_s()
        with subprocess.Popen(
            [*command, "--work", str(self._folder / work), "--out", str(out)],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "RAY_DISABLE_DOCKER_CPU_WARNING": "1", "RAY_worker_niceness": "0"},
        ) as child:
            if kill:
                _kill_a_worker(child.pid, self._folder / work / "results")
        if child.returncode:
            sys.exit(f"{name}: exit code {child.returncode}")
        report: dict[str, Any] = json.loads((out / "backtest.json").read_text(encoding="utf-8"))
        return report, children_cpu_s() - before

    def out(self, name: str) -> Path:
        """Return where a run's report lies."""
        return self._folder / f"out-{name}"

    def differing(self, one: str, other: str) -> list[str]:
        """Return which files of two reports differ."""
        names = ("backtest.json", "report.html", "matches.csv")
        differ = [
            name for name in names if (self.out(one) / name).read_bytes() != (self.out(other) / name).read_bytes()
        ]
        return [f"{name} of {one} and of {other} differ" for name in differ]


def _kill_a_worker(ancestor: int, results: Path) -> None:
    """Kill a process in which Ray does a task, once the first result is there."""

    def at_work() -> int:
        if not any(results.glob("*/*.json")):
            return 0
        return next((pid for pid in _descendants(ancestor) if _title(pid).startswith("ray::_called")), 0)

    os.kill(until(at_work, timeout_s=3600, what="a worker of Ray at work"), signal.SIGKILL)


def _descendants(ancestor: int) -> list[int]:
    found = [ancestor]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text().split()]
            except OSError:
                continue  # it has ended
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def findings_of(recording: Recording, asked: Asked, work: Path) -> list[Finding]:
    """Return what the detectors found in the whole history, of which all results lie in a work folder."""
    (part,) = parts_of(pieces_of(recording, asked.cuts, (recording.manifest.start, recording.manifest.end)))
    return detected(part, load_choices(None), Results(work / "results"))


def amiss(
    recording: Recording, opened: dict[str, int], findings: Sequence[Finding], report: dict[str, Any]
) -> list[str]:
    """Return where a report is not what is counted here: an alert answers for the label in whose time, up to the
    closing of its ticket, and at whose place it is; a ticket has of those the alert on its fault, else the nearest.
    """
    alerts = [one for one in findings if one.state == "firing" and one.severity != "info"]
    labels = faults_of(recording)
    of_label = {label.id: [one for one in alerts if _within(label, one)] for label in labels}
    answers = {
        label.id: min(
            of_label[label.id], key=lambda one: (one.fault != label.fault, abs(one.detected_at - opened[label.id]))
        )
        for label in labels
        if of_label[label.id]
    }
    ahead = [(one.detected_at - opened[name]) / 1000 for name, one in answers.items()]
    states = [state for _, state in NOTHING]
    explained = {one.id for those in of_label.values() for one in those}
    (one,) = report["subjects"]
    wanted: dict[str, Any] = {
        "truths": len(labels) + len(NOTHING),
        "caught": len(answers),
        "missed": len(labels) - len(answers) + states.count("missed"),
        "unclear": states.count("unclear"),
        "outside": states.count("outside"),
        "before_the_ticket": sum(seconds < 0 for seconds in ahead),
        "against_ticket_p50_s": round(statistics.median(ahead), 3) if ahead else None,
        "false": sum(one.id not in explained for one in alerts),
        "GPU-hours lost": round(sum(label.impact["gpu_hours_lost"] for label in labels if label.impact is not None), 6),
        "caught by fault": Counter(one.fault for one in answers.values()),
        "answers": {name: (answer.fault, format_instant(answer.detected_at)) for name, answer in answers.items()},
    }
    p50 = one["against_ticket_p50_s"]
    got = one | {
        "against_ticket_p50_s": None if p50 is None else round(p50, 3),
        "GPU-hours lost": round(one["gpu_hours"]["lost"], 6),
        "caught by fault": {
            name: counts["caught"] for name, counts in one["faults"].items() if counts["caught"] and name != "all"
        },
        "answers": {
            match["ticket"]: (match["alert"]["fault"], match["alert"]["at"])
            for match in one["matches"]
            if match["alert"]
        },
    }
    return [f"{name}: {got[name]}, from the labels {value}" for name, value in wanted.items() if got[name] != value]


def _within(label: Label, alert: Finding) -> bool:
    """Return whether an alert is in a label's time, and on its node or one of the places that are as right."""
    here = alert.entity.get("node") == label.entity["node"] or alert.entity in label.also
    return here and label.onset <= alert.detected_at <= label.end + CLOSED_MS


def main() -> None:
    """Make the history, look at it in every way, and compare."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--days", type=float, default=90)
    options.add_argument("--nodes", type=int, default=96)
    options.add_argument("--first", type=float, default=2, help="days that each executor goes through")
    options.add_argument("--window", default="1d", help="of the backtest")
    options.add_argument("--workers", type=int, default=2, help="of the whole")
    options.add_argument("--short", action="store_true", help="a few nodes and hours: that it runs, not how fast")
    given = options.parse_args()
    asked = Asked(given.days, given.nodes, given.first, given.window, "2h", 32)
    if given.short:
        asked, given.workers = Asked(1 / 12, 8, 1 / 24, "30m", "15m", 4), 1
    with tempfile.TemporaryDirectory() as scratch:
        wrong = shown(asked, Path(scratch), given.workers)
    if wrong:
        sys.exit("\n".join(wrong))


def shown(asked: Asked, folder: Path, workers: int) -> list[str]:
    """Show it in a folder, printing what it comes to; return what is not as it should be."""
    recording = make(asked, folder)
    size, made_s = sum(file.stat().st_size for file in recording.path.iterdir()), time.process_time()
    gpus = asked.nodes * 8
    _say(f"{asked.days:g} days of {gpus} GPUs every {INTERVAL_S} s: {size / 1e6:.0f} MB, {made_s:.0f} CPU-s")
    opened = write_tickets(recording, folder / "tickets.csv")
    bench = Bench(recording, asked, folder, folder / "tickets.csv")
    report, first_s = bench.run("one", "one", *bench.first, *bench.tickets, "--workers", "1")
    _say(f"the first {asked.first:g}, one process: {report['worked']} tasks, {first_s:.0f} CPU-s")
    bench.run("two", "two", *bench.first, *bench.tickets, "--workers", "2")
    wrong = bench.differing("one", "two")
    _say(f"one process and two: {'; '.join(wrong) or 'the same bytes'}")
    if importlib.util.find_spec("ray") is None:
        _say("Ray is not installed, and was not looked at")
    else:
        bench.run("ray", "ray", *bench.first, *bench.tickets, "--ray", "local", kill=True)
        on_ray = bench.differing("one", "ray")
        _say(f"one process, and Ray with a worker killed: {'; '.join(on_ray) or 'the same bytes'}")
        wrong += on_ray
    whole, rest_s = bench.run("whole", "one", *bench.tickets, "--workers", str(workers))
    figures = amiss(recording, opened, findings_of(recording, asked, folder / "one"), whole)
    (one,) = whole["subjects"]
    _say(
        f"{one['truths']} tickets: {one['caught']} caught, {one['missed']} missed, {one['unclear']} unclear, "
        f"{one['outside']} outside, {one['false']} false alarms, {one['gpu_hours']['lost']:.0f} GPU-hours lost; "
        + ("as counted from the labels" if not figures else "NOT as counted from the labels")
    )
    whole_s = first_s + rest_s
    year_h = whole_s / asked.days * 365 / 3600
    at_full_size = asked.nodes >= 96
    _say(
        f"the whole: {whole['worked']} more tasks, {whole_s:.0f} CPU-s in all, {year_h:.1f} CPU-hours a year"
        + (f" (bar {BAR_CPU_H}, ratio {year_h / BAR_CPU_H:.2f})" if at_full_size else "")
    )
    late = [f"a year costs {year_h:.1f} CPU-hours"] if year_h > BAR_CPU_H and at_full_size else []
    again = (("one", whole_s, (), CHANGED), ("two", first_s, bench.first, DEAREST))
    for work, before_s, part, setting in again:
        changed = folder / f"changed-{work}.yaml"
        changed.write_text(setting, encoding="utf-8")
        settings = ("--config", str(changed), "--workers", str(workers))
        report, again_s = bench.run(f"changed-{work}", work, *part, *bench.tickets, *settings)
        share = again_s / before_s
        _say(
            f"{'the first days' if part else 'the whole'} again with {setting.strip()}: {report['worked']} tasks, "
            f"{again_s:.0f} CPU-s, {share:.2f} (bar {BAR_AGAIN}, ratio {share / BAR_AGAIN:.2f})"
        )
        if share > BAR_AGAIN and at_full_size:
            late.append(f"{setting.strip()} costs {share:.2f} of a first run")
    return wrong + figures + late


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
