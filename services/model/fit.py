"""Fits the model on the healthy stretches of recordings.

A scaler and a PCA over the features of `peers`, and a threshold: a high quantile of what healthy GPUs reach in k of n
windows, times a margin, as the model has seen these GPUs and will be shown others. An isolation forest was tried on
the same features and is not here: at the same number of false alarms it finds fewer faults (benchmarks/novelty.py).
"""

import hashlib
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from detectors.contract import FloatArray
from services.kit.errors import UserError
from services.model.artefact import Facts, FittedOn, Model
from services.model.continuity import NEEDED, WINDOW, Continuity
from services.model.healthy import faults, healthy
from services.model.peers import FEATURES, Compared, comparisons
from services.model.windows import Gpus, length_of
from services.recording.reader import Recording

EXPLAINED: Final = 0.9
"""The share of the variance that the PCA keeps; with 0.8 and 0.95 it finds the same faults (benchmarks/novelty.py)."""
QUANTILE: Final = 0.9999
MARGIN: Final = 1.5
"""One GPU-window in ten thousand, and half as much again, as other GPUs than these will be judged (judgement)."""
LEAST_ROWS: Final = 5000
"""Fewer do not show what one in ten thousand does; a node of 8 GPUs gives as many in ten hours."""
_MOST_ROWS: Final = 500_000
"""Rows that the pipeline is fitted on (184 MB); of more, every second, third, ... window is taken."""
_SHARE: Final = (1.0, 99.0)
"""Percentiles of the healthy rows that are one apart after scaling."""
LEAST_SCALE: Final = 1.0
"""Robust deviations: nothing is stretched, or trifles would count in what healthy GPUs hardly vary in."""
LEAST_THRESHOLD: Final = 1.0
"""However alike the GPUs were: one reading must be off by as much as nearly all healthy ones span (judgement)."""


def fit(paths: Sequence[Path], reading: Callable[[str], None] = lambda _: None) -> Model:
    """Return a model fitted on recordings; `reading` is called with each name before it is read.

    Raises UserError where a recording cannot be read, or all of them have too few healthy stretches with peers.
    """
    recordings = [Recording.open(path) for path in paths]
    stride = 1 + sum(_expected_rows(recording) for recording in recordings) // _MOST_ROWS
    features: list[FloatArray] = []
    fitted_on: list[FittedOn] = []
    for recording in recordings:
        reading(recording.manifest.name)
        rows = left_out = 0
        for number, (window, clear) in enumerate(_windows(recording)):
            rows += len(window.gpus) if clear else 0
            left_out += 0 if clear else len(window.gpus)
            if clear and number % stride == 0:
                features.append(window.features)
        digest = hashlib.sha256((recording.path / "recording.yaml").read_bytes()).hexdigest()
        fitted_on.append(FittedOn(name=recording.manifest.name, sha256=digest, rows=rows, left_out=left_out))
    if sum(one.rows for one in fitted_on) < LEAST_ROWS:
        raise UserError(
            f"{sum(one.rows for one in fitted_on)} healthy GPU-windows with enough peers, and {LEAST_ROWS} are needed",
            remedy="give longer recordings, with jobs of more than four GPUs, away from labelled faults",
        )
    pipeline = _fitted(np.concatenate(features))
    bare = Model(pipeline, _facts(pipeline, fitted_on, threshold=1.0))
    held = np.concatenate([scores for recording in recordings for scores in _held(bare, recording)])
    threshold = max(LEAST_THRESHOLD, MARGIN * float(np.quantile(held[np.isfinite(held)], QUANTILE)))
    return Model(pipeline, _facts(pipeline, fitted_on, threshold))


def _fitted(features: FloatArray) -> Any:
    from sklearn.decomposition import PCA  # takes seconds
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import RobustScaler

    scaler = RobustScaler(quantile_range=_SHARE).fit(features)
    scaler.scale_ = np.maximum(scaler.scale_, LEAST_SCALE)
    components = PCA(EXPLAINED, svd_solver="full").fit(scaler.transform(features))
    return Pipeline([("scale", scaler), ("components", components)])


def _facts(pipeline: Any, fitted_on: list[FittedOn], threshold: float) -> Facts:
    components = pipeline[1]
    return Facts(
        scikit_learn=importlib.metadata.version("scikit-learn"),
        features=FEATURES,
        recordings=tuple(fitted_on),
        components=int(components.n_components_),
        explained_variance=float(components.explained_variance_ratio_.sum()),
        quantile=QUANTILE,
        margin=MARGIN,
        threshold=threshold,
        needed=NEEDED,
        window=WINDOW,
    )


def _held(model: Model, recording: Recording) -> Iterator[FloatArray]:
    continuity = Continuity()
    for window, clear in _windows(recording):
        scores = model.novelty(window.features).sum(axis=1)
        held = continuity.hold(window, scores)
        if clear:
            yield held


def _windows(recording: Recording) -> Iterator[tuple[Compared, bool]]:
    """Yield every window with whether it is healthy."""
    labels = faults(recording)
    for window in comparisons(recording, Gpus.of(recording)):
        yield window, healthy(window, labels)


def _expected_rows(recording: Recording) -> int:
    windows = (recording.manifest.end - recording.manifest.start) // length_of(recording)
    return int(windows) * max(recording.manifest.cluster.gpus, 1)
