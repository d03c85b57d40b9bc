"""How real the generator's telemetry is: beside a 64-node H100 run, step logs of 8 H100, and 348 days of faults.

    python -m benchmarks.realism [--picture FILE.png] [--worlds 8]

Needs the public data that CONTRIBUTING.md names; without it, says so and ends. What is compared is dimensionless where
machines differ (power by its median, step times by theirs): shape, spread between peers, memory over time. The last
column says how far the generator is off; nothing here is fitted at run time. With `--worlds`: whether the real figures
lie within what so many worlds give.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from services.recording.importers import mlperf_power, training_log
from services.recording.reader import Recording
from services.synth.library import LIBRARY
from services.synth.make import AS_WRITTEN, Variant, make_recording
from tests.data import DATA
from tests.small import written

Floats = NDArray[np.float64]

_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_SETTLED_MS = 600_000
"""Left out at both ends of a run: start and end are no steady state."""
_TOLERANCE = 0.25
_WARM_UP = 20
"""Steps left out at the beginning."""
MLPERF = DATA / "mlperf-smc-64node-h100-power" / "gpt3"
NANOGPT = DATA / "nanogpt-8xh100-steplogs" / "2024-10-20_ScaleUp1B"
FAULTS = DATA / "infinitehbd-fault-trace" / "fault_trace.json"


@dataclass(frozen=True)
class Row:
    """One figure, of the real data and of the generator; `scale` is what a deviation is measured by."""

    name: str
    real: float
    made: float
    scale: float

    @property
    def off(self) -> float:
        """Return the deviation as a share of `scale`."""
        return (self.made - self.real) / self.scale


@dataclass(frozen=True)
class Comparison:
    """Figures side by side, and what to draw: a title, and values by name."""

    title: str
    rows: list[Row]
    curves: Mapping[str, Floats]
    axis: str


def main() -> None:
    """Compare, print, draw."""
    parser = argparse.ArgumentParser(description="Compare the generator with real data.")
    parser.add_argument("--picture", type=Path, help="write the distributions there, as PNG")
    parser.add_argument("--worlds", type=int, default=0, help="compare with the range over so many worlds instead")
    asked = parser.parse_args()
    picture = asked.picture
    missing = [str(path) for path in (MLPERF, NANOGPT, FAULTS) if not path.exists()]
    if missing:
        sys.exit(f"realism: not compared, the public data is not here: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        if asked.worlds:
            for line in over_worlds(Path(folder), asked.worlds):
                print(line)
            return
        comparisons = compare(Path(folder))
    for comparison in comparisons:
        _print(comparison)
    short = [
        f"{c.title}: {row.name} {row.off:+.0%}" for c in comparisons for row in c.rows if abs(row.off) > _TOLERANCE
    ]
    print(f"\nfalls short by more than {_TOLERANCE:.0%} in {len(short)} figures:")
    print("\n".join(f"  {line}" for line in short) or "  none")
    if picture is not None:
        draw(comparisons, picture)
        print(f"\n{picture}: written")


def compare(folder: Path) -> list[Comparison]:
    """Return all comparisons; recordings are imported and made in `folder`."""
    real = folder / "mlperf-gpt3"
    mlperf_power.convert(MLPERF, real)
    made = _make(folder, "made-gpt3", _GPT3, nodes=64, duration_s=3400, bmc_interval_s=2)
    real_steps = folder / "nanogpt"
    (log,) = sorted(NANOGPT.glob("*.txt"))[:1]
    training_log.convert(log, real_steps, start="2024-10-20T00:00:00Z")
    made_steps = _make(folder, "made-nanogpt", _NANOGPT, nodes=1, duration_s=12_000, bmc_interval_s=600)
    return [
        _power(Recording.open(real), Recording.open(made)),
        _steps("step times, GPT-3 on 512 H100", Recording.open(real), Recording.open(made)),
        _steps("step times, nanoGPT 1B on 8 H100", Recording.open(real_steps), Recording.open(made_steps)),
        _faults(),
    ]


def _power(real: Recording, made: Recording) -> Comparison:
    both = {"real": _node_power(real), "made": _node_power(made)}
    figures: dict[str, Callable[[list[Floats]], float]] = {
        f"q{share:.0%} of a node's power, by its median": partial(_typical_quantile, share) for share in _QUANTILES
    }
    figures["spread of the nodes' medians (relative deviation)"] = lambda nodes: float(
        np.std([np.median(n) for n in nodes]) / np.mean([np.median(n) for n in nodes])
    )
    figures["deviation within a node (relative)"] = lambda nodes: float(
        np.median([np.std(n) / np.median(n) for n in nodes])
    )
    rows = [
        Row(name, of(both["real"]), of(both["made"]), 1.0 if name.startswith("q") else of(both["real"]))
        for name, of in figures.items()
    ]
    rows += [
        Row(f"autocorrelation at {2 * lag} s", _memory(both["real"], lag), _memory(both["made"], lag), 1.0)
        for lag in (1, 2, 3, 5, 10, 30)
    ]
    rows.append(Row("correlation between nodes", _together(both["real"]), _together(both["made"]), 1.0))
    curves = {name: np.concatenate([n / np.median(n) for n in nodes]) for name, nodes in both.items()}
    return Comparison("node power, GPT-3 on 64 x 8 H100, every 2 s", rows, curves, "power by the node's median")


def over_worlds(folder: Path, worlds: int) -> Iterator[str]:
    """Yield the real run's figures that do not depend on cadence beside the least and the greatest of the worlds.

    A figure outside is one that no world shows.
    """
    real = folder / "mlperf-gpt3"
    mlperf_power.convert(MLPERF, real)
    found = _figures(Recording.open(real))
    made: dict[str, list[float]] = {name: [] for name in found}
    for world in range(1, worlds + 1):
        variant = Variant(world=world, duration_s=3400, scale=0.25)
        name = f"gpt3-in-{world}"
        made_here = _make(folder, name, _GPT3, nodes=64, duration_s=3400, bmc_interval_s=30, variant=variant)
        for figure, value in _figures(Recording.open(made_here)).items():
            made[figure].append(value)
    yield f"{'':56}{'real':>10}{'least':>10}{'greatest':>10}{'worlds':>8}"
    for name, value in found.items():
        ends = (min(made[name]), max(made[name])) if made[name] else (np.nan, np.nan)
        outside = "" if ends[0] <= value <= ends[1] else "  outside"
        yield f"  {name:<54}{value:>10.4f}{ends[0]:>10.4f}{ends[1]:>10.4f}{len(made[name]):>8}{outside}"


def _figures(recording: Recording) -> dict[str, float]:
    """Return the figures of a run that do not depend on its cadence, as far as it is gathered there."""
    found: dict[str, float] = {}
    if "bmc" in recording.streams():
        nodes = _node_power(recording)
        medians = [float(np.median(values)) for values in nodes]
        found["spread of the nodes' medians (relative deviation)"] = float(np.std(medians) / np.mean(medians))
        found["deviation within a node (relative)"] = float(np.median([np.std(n) / np.median(n) for n in nodes]))
        found |= {f"q{share:.0%} of a node's power": _typical_quantile(share, nodes) for share in (0.05, 0.25, 0.95)}
    if "steps" in recording.streams():
        steps = _step_times(recording)
        found |= {f"q{share:.0%} of step times": _quantile(share, steps) for share in (0.05, 0.95, 0.99)}
        found["longest step by the median"] = _quantile(1.0, steps)
    return found


def _node_power(recording: Recording) -> list[Floats]:
    """Return the power of every node in the middle of the run, in order of time."""
    table = pa.Table.from_batches(recording.batches("bmc")).unify_dictionaries()
    sensors = np.array(table["sensor"].to_pylist())
    keep = sensors == "node_power"
    nodes = np.array(table["node"].to_pylist())[keep]
    times = table["timestamp"].cast(pa.int64()).to_numpy()[keep]
    watts = table["reading"].to_numpy()[keep]
    middle = (times > times.min() + _SETTLED_MS) & (times < times.max() - _SETTLED_MS)
    return [watts[middle & (nodes == node)] for node in np.unique(nodes)]


def _steps(title: str, real: Recording, made: Recording) -> Comparison:
    both = {name: _step_times(recording) for name, recording in (("real", real), ("made", made))}
    figures: dict[str, tuple[Callable[[Floats], float], float]] = {
        f"q{share:.0%} by the median": (partial(_quantile, share), 0.1) for share in _QUANTILES
    }
    figures["steps over 1.5 medians"] = lambda s: float(np.mean(s > 1.5 * np.median(s))), 0.01
    figures["autocorrelation at 1"] = lambda s: _memory([s], 1), 1.0
    figures["autocorrelation at 10"] = lambda s: _memory([s], 10), 1.0
    rows = [Row(name, of(both["real"]), of(both["made"]), scale) for name, (of, scale) in figures.items()]
    curves = {name: s / np.median(s) for name, s in both.items()}
    return Comparison(title, rows, curves, "step time by the median")


def _step_times(recording: Recording) -> Floats:
    table = pa.Table.from_batches(recording.batches("steps", columns=["step_time_s"]))
    whole = table["rank"].to_numpy() == -1
    return np.asarray(table["step_time_s"].to_numpy()[whole], dtype=np.float64)[_WARM_UP:]


def _faults() -> Comparison:
    """Compare the mix and the lengths of the library's faults with those of a cluster of 400 nodes over 348 days."""
    from services.synth.library import scenario_paths
    from services.synth.make import scenario_and_world

    events = json.loads(FAULTS.read_text(encoding="utf-8"))
    real_mix, real_hours = _real_faults(events)
    made_mix: dict[str, int] = {}
    made_hours: list[float] = []
    for path in scenario_paths().values():
        scenario, world = scenario_and_world(path)
        for happening in scenario.happenings:
            for fact in happening.truths(world):
                family = _FAMILY.get(fact.truth.fault, "other")
                made_mix[family] = made_mix.get(family, 0) + 1
                made_hours.append((fact.span[1] - fact.span[0]) / 3600)
    rows = [
        Row(
            f"share of {family}",
            real_mix.get(family, 0) / sum(real_mix.values()),
            made_mix.get(family, 0) / max(sum(made_mix.values()), 1),
            1.0,
        )
        for family in sorted(real_mix | made_mix)
    ]
    made = np.array(made_hours)
    rows += [
        Row(
            f"q{share:.0%} of a fault's length, h",
            float(np.quantile(real_hours, share)),
            float(np.quantile(made, share)),
            float(np.quantile(real_hours, share)),
        )
        for share in (0.25, 0.5, 0.75)
    ]
    return Comparison(
        "the library's faults beside 348 days of a cluster", rows, {"real": real_hours, "made": made}, "hours"
    )


_FAMILY = {
    "ecc_uncorrectable": "GPU memory", "ecc_correctable_storm": "GPU memory", "row_remap_pending": "GPU memory",
    "row_remap_failure": "GPU memory", "loss_anomaly": "GPU memory", "gpu_lost": "GPU lost", "pcie_degraded": "PCIe",
    "nvlink_fault": "NVLink", "power_throttle": "power", "thermal_throttle": "cooling", "node_down": "node",
    "link_down": "network", "link_flap": "network", "link_errors": "network", "fabric_congestion": "network",
    "storage_slow": "storage",
}  # fmt: skip
_REAL_FAMILY = {
    "GPU DBE(Double Bit ECC) > Threshold": "GPU memory", "GPU SBE(Single Bit ECC) > Threshold": "GPU memory",
    "Silent Data Corruption": "GPU memory", "GPU Lost": "GPU lost", "GPU device not found": "GPU lost",
    "nvidia-smi Timeout": "GPU lost", "GPU PCI link width low": "PCIe", "GPU P2P Bandwidth Low": "NVLink",
    "GPU Temperature High": "cooling", "Speed Critical (Sensor)": "cooling", "Redundancy Lost": "power",
    "Power Supply Failure detected": "power", "Link Down": "network", "NIC Link Speed low": "network",
    "NIC Lost": "network", "Rnic Gid Error": "network", "Kernel Panic": "node", "Motherboard Failed": "node",
    "Machine Check Exception ( Uncorrectable )": "node", "FS Readonly": "storage",
    "FS: Multiple Disk FS Error": "storage",
}  # fmt: skip


def _real_faults(events: list[dict[str, Any]]) -> tuple[dict[str, int], Floats]:
    """Return how many faults of each family there were, and their lengths in hours."""
    mix: dict[str, int] = {}
    began: dict[tuple[str, str], list[float]] = {}
    hours: list[float] = []
    for event in sorted(events, key=lambda event: float(event["event_time"])):
        what = event["fault_type"]["Desc"]
        key = event["node_id"], what
        if event["event_type"] == "fault_start":
            family = _REAL_FAMILY.get(what, "other")
            mix[family] = mix.get(family, 0) + 1
            began.setdefault(key, []).append(float(event["event_time"]))
        elif began.get(key):
            hours.append((float(event["event_time"]) - began[key].pop(0)) * 24)
    return mix, np.array(hours)


def _quantile(share: float, values: Floats) -> float:
    return float(np.quantile(values, share) / np.median(values))


def _typical_quantile(share: float, series: list[Floats]) -> float:
    return float(np.median([_quantile(share, values) for values in series]))


def _memory(series: list[Floats], lag: int) -> float:
    """Return the median autocorrelation of several series at a lag."""
    found = []
    for values in series:
        centred = values - values.mean()
        found.append(float((centred[:-lag] * centred[lag:]).mean() / (centred**2).mean()))
    return float(np.median(found))


def _together(series: list[Floats]) -> float:
    """Return the median correlation of pairs of series: nodes of one job breathe together."""
    length = min(len(values) for values in series)
    matrix = np.corrcoef(np.array([values[:length] for values in series]))
    return float(np.median(matrix[np.triu_indices(len(series), 1)]))


def _make(
    folder: Path,
    name: str,
    training: dict[str, Any],
    *,
    nodes: int,
    duration_s: float,
    bmc_interval_s: float,
    variant: Variant = AS_WRITTEN,
) -> Path:
    """Make a recording of one job on H100 nodes, as the run that it is compared with had them."""
    profile = yaml.safe_load((LIBRARY / "profiles" / "blue-vela.yaml").read_text(encoding="utf-8"))
    profile |= {"nodes": nodes, "bmc_interval_s": bmc_interval_s, "collector_interval_s": 60}
    job = {"id": "1", "name": name, "user": "bench", "nodes": "all", "submit": 0.0, "start": 1.0, "training": training}
    scenario = {
        "name": name, "title": name, "summary": name, "source": {"document": "benchmarks/realism.py"},
        "profile": "h100", "seed": 1, "start": "2024-05-17T00:00:00Z", "duration": duration_s, "jobs": [job],
    }  # fmt: skip
    return make_recording(written(folder / f"{name}-scenario", scenario, profile), folder / name, variant)


_COMMON: dict[str, Any] = {
    "launch_s": 20, "load_s": 10, "clock_bound": 0.9, "warm_up": [1.1], "checkpoint_s": 20, "log_every": 10,
    "first_iteration": 1, "last_iteration": 1_000_000, "tokens_per_step": 4_194_304, "loss": 2.8,
    "loss_per_1000_steps": 0.01, "grad_norm": 0.3, "fb_used_mib": 70_000, "tensor_active": 0.45, "dram_active": 0.35,
    "nvlink_gb_s": 180, "pcie_gb_s": 4,
}  # fmt: skip
_GPT3 = _COMMON | {
    "compute_s": 9.6, "collective_s": 1.0, "collective_jitter": 0.002, "data_wait_s": 0.002, "jitter": 0.0008,
    "checkpoint_every": 1_000_000, "pipeline_stages": 8, "intensity": 0.82,
}  # fmt: skip
_NANOGPT = _COMMON | {
    "compute_s": 1.6, "collective_s": 0.1, "data_wait_s": 0.001, "jitter": 0.002, "checkpoint_every": 1_000_000,
}  # fmt: skip


def _print(comparison: Comparison) -> None:
    print(f"\n{comparison.title}\n{'':56}{'real':>10}{'made':>10}{'off':>8}")
    for row in comparison.rows:
        print(f"  {row.name:<54}{row.real:>10.4f}{row.made:>10.4f}{row.off:>+8.0%}")


def draw(comparisons: list[Comparison], path: Path) -> None:
    """Draw every comparison's distributions, real and made, into one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(comparisons), figsize=(6 * len(comparisons), 4), constrained_layout=True)
    for axis, comparison in zip(axes, comparisons, strict=True):
        ends = np.quantile(np.concatenate(list(comparison.curves.values())), [0.002, 0.998])
        for (name, values), style in zip(comparison.curves.items(), ("-", "--"), strict=True):
            levels = np.sort(values)
            axis.plot(levels, np.linspace(0, 1, len(levels)), style, label=name)
        axis.set(title=comparison.title, xlabel=comparison.axis, ylabel="share at or below", xlim=tuple(ends))
        axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
