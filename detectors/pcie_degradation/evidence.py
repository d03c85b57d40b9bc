"""What a finding says: how the link is beside how it should be, and what it moves beside what its peers do."""

from collections.abc import Sequence

import numpy as np

from detectors.pcie_degradation.readings import Links
from detectors.pcie_degradation.samples import Samples
from detectors.pcie_degradation.traffic import Traffic

_GB = 1e9
LINK, REPLAYS, BANDWIDTH, SAMPLES = "link", "replays", "bandwidth", "samples"
_SCORE = {LINK: 0.9, REPLAYS: 0.7, BANDWIDTH: 0.7, SAMPLES: 0.8}


def score(signs: Sequence[str]) -> float:
    """Return how sure this is: the surest sign, and a little for every other."""
    return min(1.0, max(_SCORE[sign] for sign in signs) + 0.1 * (len(signs) - 1))


def summary(where: str, gpu: int, signs: Sequence[str], links: Links, traffic: Traffic, samples: Samples) -> str:
    """Return one sentence."""
    said = []
    if LINK in signs:
        said.append(
            f"link at {_link(links.gen[gpu], links.width[gpu])} instead of "
            f"{_link(links.should_gen[gpu], links.should_width[gpu])} while busy"
        )
    if REPLAYS in signs:
        bar = links.replay_bar(np.array([gpu]))[0]
        said.append(f"{links.rate[gpu]:.0f} packets a minute sent again, {bar:.0f} are allowed")
    if BANDWIDTH in signs:
        said.append(f"moves {traffic.now[gpu] / _GB:.1f} GB/s at most where its peers move {_gb(traffic, gpu):.1f}")
    if SAMPLES in signs:
        said.append(f"the mean of the last tests is {samples.mean()[gpu] / _GB:.1f} GB/s")
    return f"{where}: PCIe {'; '.join(said)}"


def evidence(
    gpu: int, signs: Sequence[str], links: Links, traffic: Traffic, samples: Samples
) -> dict[str, float | int | str]:
    """Return the numbers, each with its unit in its name."""
    numbers = {
        "pcie_gen": links.gen[gpu],
        "pcie_gen_expected": links.should_gen[gpu],
        "pcie_width": links.width[gpu],
        "pcie_width_expected": links.should_width[gpu],
        "replays_per_min": links.rate[gpu],
        "replays_per_min_allowed": links.replay_bar(np.array([gpu]))[0],
        "pcie_peak_gb_s": traffic.now[gpu] / _GB,
        "pcie_peak_peers_gb_s": traffic.peers_now[gpu] / _GB,
        "pcie_peak_before_gb_s": traffic.own[gpu] / _GB,
        "pcie_peak_peer_deviations": traffic.distance[gpu],
    }
    if SAMPLES in signs:
        numbers["pcie_samples_mean_gb_s"] = samples.mean()[gpu] / _GB
    told: dict[str, float | int | str] = {"signs": ", ".join(signs)}
    told |= {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
    if BANDWIDTH in signs:
        told["switch_shared"] = int(traffic.shared()[gpu])
    return told


def _gb(traffic: Traffic, gpu: int) -> float:
    return float(traffic.peers_now[gpu] / _GB)


def _link(gen: float, width: float) -> str:
    shown = [f"gen {gen:.0f}"] if np.isfinite(gen) else []
    return " ".join([*shown, *([f"x{width:.0f}"] if np.isfinite(width) else [])])
