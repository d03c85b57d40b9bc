"""A fitted model, and the file it is kept in: versioned, hashed, without a pickle.

The file is a line with the format's version, a line with the SHA-256 of the rest, the length of the facts (8 bytes,
little-endian), the facts as JSON, and the scikit-learn pipeline as skops writes it.
"""

import hashlib
import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from detectors.contract import FloatArray
from services.kit.errors import UsageError, UserError
from services.model.peers import FEATURES

FORMAT: Final = "hindcast.novelty/v1"
_FAMILY: Final = b"hindcast.novelty/"
_AGAIN: Final = "fit it again: hindcast fit RECORDING... --out FILE"


class FittedOn(BaseModel):
    """A recording that the model was fitted on: its manifest's hash, which holds those of its streams."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    sha256: str
    rows: int
    left_out: int
    """Rows in which, or shortly before or after which, a fault is labelled."""


class Facts(BaseModel):
    """What a model was fitted on and how it decides. `threshold` is what k of n windows must reach."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    scikit_learn: str
    features: tuple[str, ...]
    recordings: tuple[FittedOn, ...]
    components: int
    explained_variance: float = Field(gt=0, le=1)
    quantile: float = Field(gt=0, lt=1)
    margin: float = Field(gt=0)
    threshold: float = Field(gt=0)
    needed: int
    window: int

    @property
    def rows(self) -> int:
        """GPU-windows that the model was fitted on."""
        return sum(one.rows for one in self.recordings)


@dataclass(frozen=True)
class Model:
    """A scaler and a PCA; what the PCA cannot rebuild of a GPU's readings in a window is how novel it is."""

    pipeline: Any
    facts: Facts

    def novelty(self, features: FloatArray) -> FloatArray:
        """Return what each feature has in the score (n, features): the score is its sum over the features.

        The score is the squared length of the residual r of the scaled features z, which is also their product: a
        feature that is as the peers' has no part in it, though the PCA could not rebuild it for others' sake.
        """
        scaler, components = self.pipeline[0], self.pipeline[1]
        scaled = scaler.transform(features) - components.mean_
        residual = scaled - (scaled @ components.components_.T) @ components.components_
        return np.asarray(scaled * residual)


def save(model: Model, path: Path) -> str:
    """Write a model, whole or not at all; return its SHA-256. Raises UserError where the file cannot be written."""
    import skops.io  # takes seconds, as scikit-learn does

    facts = model.facts.model_dump_json().encode()
    payload = b"".join((len(facts).to_bytes(8, "little"), facts, skops.io.dumps(model.pipeline)))
    digest = hashlib.sha256(payload).hexdigest()
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_bytes(b"\n".join((FORMAT.encode(), digest.encode(), payload)))
        staged.replace(path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", remedy="name a file in a folder that is there"
        ) from None
    return digest


def load(path: Path) -> tuple[Model, str]:
    """Return a model and its SHA-256.

    Raises UserError for a file that is no model, is damaged, was written by another version of the format or of
    scikit-learn or for other features, or holds anything but the two steps that `hindcast fit` writes.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", remedy="give a model's file") from None
    first, _, rest = content.partition(b"\n")
    if not first.startswith(_FAMILY) or len(first) > 64:
        raise UserError(f"{path}: not a model of hindcast's", remedy=_AGAIN)
    if first != FORMAT.encode():
        format_ = first.decode("utf-8", "replace")
        raise UserError(f"{path}: format is {format_!r}, and this program reads {FORMAT!r}", remedy=_AGAIN)
    digest, _, payload = rest.partition(b"\n")
    if digest.decode("ascii", "replace") != hashlib.sha256(payload).hexdigest():
        raise UserError(
            f"{path}: damaged: its hash is not that of its content",
            remedy=f"copy it again from its origin, or {_AGAIN}",
        )
    length = int.from_bytes(payload[:8], "little")
    try:
        facts = Facts.model_validate_json(payload[8 : 8 + length])
    except ValidationError as error:
        raise UserError(f"{path}: its facts are malformed: {error.errors()[0]['msg']}", remedy=_AGAIN) from None
    here = importlib.metadata.version("scikit-learn")
    if _release(facts.scikit_learn) != _release(here):
        raise UserError(f"{path}: fitted by scikit-learn {facts.scikit_learn}, and this is {here}", remedy=_AGAIN)
    if facts.features != FEATURES:
        raise UserError(f"{path}: fitted for other features than this version's", remedy=_AGAIN)
    return Model(_pipeline(path, payload[8 + length :]), facts), digest.decode()


def _pipeline(path: Path, payload: bytes) -> Any:
    """Return the pipeline, of which nothing but known types is ever made."""
    import skops.io

    try:
        foreign = skops.io.get_untrusted_types(data=payload)
        pipeline = None if foreign else skops.io.loads(payload, trusted=[])
    except Exception as error:  # noqa: BLE001  # skops lets through what zipfile, json and numpy raise on bad bytes
        raise UserError(f"{path}: its pipeline cannot be read: {error}", remedy=_AGAIN) from None
    if foreign:
        raise UserError(f"{path}: holds {', '.join(map(str, foreign))}, which is not trusted", remedy=_AGAIN)
    if not _is_ours(pipeline):
        raise UserError(f"{path}: is not the pipeline that `hindcast fit` writes", remedy=_AGAIN)
    return pipeline


def _is_ours(pipeline: Any) -> bool:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import RobustScaler

    if not isinstance(pipeline, Pipeline) or [type(step) for _, step in pipeline.steps] != [RobustScaler, PCA]:
        return False
    scaler, components = pipeline[0], pipeline[1]
    arrays = (scaler.center_, scaler.scale_, components.mean_, components.components_)
    shapes = {np.shape(array)[-1:] for array in arrays}
    return shapes == {(len(FEATURES),)} and all(np.isfinite(array).all() for array in arrays)


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])
