"""Which model of novelty earns its place: a PCA's error, an isolation forest, both, or no model at all.

All see the same: the distances of `services.model.peers` over development recordings, fitted on healthy stretches of
other seeds. Two questions. By window: how well does the score separate a faulty GPU's windows from healthy ones (area
under the ROC curve, average precision)? By event, with k-of-n continuity: how many faults of nodes and GPUs does it
point at with a threshold that a given number of healthy quarter hours of a node exceed?
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.preprocessing import RobustScaler

from benchmarks.ablation import FITTED_ON, path_of
from detectors.contract import BoolArray, FloatArray
from services.model.continuity import Continuity
from services.model.fit import LEAST_SCALE
from services.model.healthy import faults, healthy
from services.model.peers import Compared, comparisons
from services.model.windows import Gpus
from services.recording.model import Label
from services.recording.reader import Recording
from services.synth.library import scenario_paths

LEFT_OUT = frozenset({"sakuraone-fault-year"})
"""A year of it takes longer than all the others together."""
ALLOWED = (1, 3, 10)
"""Healthy quarter hours of a node that may exceed the threshold."""
_QUARTER_MS = 900_000

Scorer = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Judged:
    """One recording's windows, whether each is healthy, its GPUs, and its faults."""

    name: str
    windows: list[Compared]
    clear: list[bool]
    gpus: Gpus
    labels: list[Label]

    @classmethod
    def of(cls, path: Path) -> "Judged":
        """Read a recording."""
        recording = Recording.open(path)
        gpus, labels = Gpus.of(recording), faults(recording)
        found = list(comparisons(recording, gpus))
        return cls(recording.manifest.name, found, [healthy(window, labels) for window in found], gpus, labels)

    def of_label(self, window: Compared, label: Label) -> BoolArray:
        """Return which rows of a window are of the label's culprit, while it lasts."""
        if "node" not in label.entity or not label.onset < window.end or window.start > label.end:
            return np.zeros(len(window.gpus), bool)
        keys = [self.gpus.keys[gpu] for gpu in window.gpus.tolist()]
        index = label.entity.get("gpu")
        return np.array([node == label.entity["node"] and index in {None, gpu} for node, gpu in keys], bool)


def candidates(features: FloatArray) -> dict[str, Scorer]:
    """Return the candidates, fitted on healthy features (n, f)."""
    scaler = RobustScaler(quantile_range=(1.0, 99.0)).fit(features)
    scaler.scale_ = np.maximum(scaler.scale_, LEAST_SCALE)
    scaled = scaler.transform(features)
    found: dict[str, Scorer] = {"no model: sum of squares": lambda x: (scaler.transform(x) ** 2).sum(axis=1)}
    for share in (0.8, 0.9, 0.95):
        found[f"PCA, {share:.0%} of the variance"] = _rebuilt(scaler, PCA(share, svd_solver="full").fit(scaled))
    forest = IsolationForest(n_estimators=200, max_samples=8192, random_state=0).fit(scaled)
    found["isolation forest"] = lambda x: -forest.score_samples(scaler.transform(x))
    one, other = found["PCA, 90% of the variance"], found["isolation forest"]
    ranks = np.sort(one(features)), np.sort(other(features))
    found["both, the higher rank"] = lambda x: np.maximum(_tail(ranks[0], one(x)), _tail(ranks[1], other(x)))
    found["both, the lower rank"] = lambda x: np.minimum(_tail(ranks[0], one(x)), _tail(ranks[1], other(x)))
    return found


def _rebuilt(scaler: RobustScaler, components: PCA) -> Scorer:
    def score(features: FloatArray) -> FloatArray:
        scaled = scaler.transform(features)
        return np.asarray(((scaled - components.inverse_transform(components.transform(scaled))) ** 2).sum(axis=1))

    return score


def _tail(ranked: FloatArray, scores: FloatArray) -> FloatArray:
    """Return how rare scores are among healthy ones: -log of the share above, and beyond the last by its excess."""
    above = np.maximum(len(ranked) - np.searchsorted(ranked, scores), 1) / len(ranked)
    return np.asarray(-np.log(above) + np.log(np.maximum(scores / ranked[-1], 1)))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help="scenarios of the library, or recordings; else all scenarios")
    parser.add_argument("--fit", nargs="*", default=[], help="scenarios or recordings to fit on; else a fixed set")
    given = parser.parse_args()
    fitted = [Judged.of(path_of(*one)) for one in [(name,) for name in given.fit] or FITTED_ON]
    features = np.concatenate(
        [w.features for one in fitted for w, clear in zip(one.windows, one.clear, strict=True) if clear]
    )
    names = given.name or [name for name in scenario_paths() if name not in LEFT_OUT]
    shown = [Judged.of(path_of(name)) for name in names]
    print(f"fitted on {len(features)} healthy windows of {len(fitted)} recordings, shown {len(shown)} of other seeds")
    for title, scorer in candidates(features).items():
        _by_window(title, scorer, shown)
        _by_event(scorer, shown)


def _by_window(title: str, scorer: Scorer, shown: list[Judged]) -> None:
    quiet: list[FloatArray] = []
    loud: dict[str, list[FloatArray]] = {}
    for one in shown:
        for window, clear in zip(one.windows, one.clear, strict=True):
            scores = scorer(window.features)
            if clear:
                quiet.append(scores)
            for label in one.labels:
                here = one.of_label(window, label)
                if here.any():
                    loud.setdefault(label.fault, []).append(scores[here])
    healthy_scores = np.concatenate(quiet)
    print(f"\n{title}")
    cells = []
    for fault, parts in sorted(loud.items()):
        faulty = np.concatenate(parts)
        truth = np.r_[np.ones(len(faulty)), np.zeros(len(healthy_scores))]
        scores = np.r_[faulty, healthy_scores]
        cells.append(f"{fault} {roc_auc_score(truth, scores):.2f}/{average_precision_score(truth, scores):.2f}")
    print("  by window, AUC/AP: " + ", ".join(cells))


def _by_event(scorer: Scorer, shown: list[Judged]) -> None:
    quiet: dict[tuple[str, str, int], float] = {}
    loud: dict[tuple[str, str], float] = {}
    for one in shown:
        continuity = Continuity()
        for window, clear in zip(one.windows, one.clear, strict=True):
            held = continuity.hold(window, scorer(window.features))
            if clear:
                for gpu, score in zip(window.gpus.tolist(), held.tolist(), strict=True):
                    key = one.name, one.gpus.keys[gpu][0], window.start // _QUARTER_MS
                    quiet[key] = max(score, quiet.get(key, -np.inf))
            for label in one.labels:
                here = one.of_label(window, label)
                if here.any():
                    of = label.fault, f"{one.name}/{label.id}"
                    loud[of] = max(float(held[here].max()), loud.get(of, -np.inf))
    ranked = sorted(quiet.values(), reverse=True)
    for allowed in ALLOWED:
        hits = Counter(fault for (fault, _), score in loud.items() if score > ranked[allowed])
        by_fault = ", ".join(f"{fault} {count}" for fault, count in sorted(hits.items()))
        print(f"  by event, {allowed} of {len(ranked)} exceed: {sum(hits.values())} of {len(loud)} ({by_fault})")


if __name__ == "__main__":
    main()
