"""The model's file: what was written is read, and nothing else is."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.model.artefact import FORMAT, Model, load, save
from services.model.peers import FEATURES


@pytest.fixture(scope="module")
def written(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "gpus.model"
    save(model, path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    assert caught.value.remedy
    assert str(path) in caught.value.message
    return caught.value.message


def rehashed(path: Path, facts: bytes, pipeline: bytes) -> None:
    """Write a file that is whole, with a hash that is right, of other content."""
    payload = len(facts).to_bytes(8, "little") + facts + pipeline
    path.write_bytes(b"\n".join((FORMAT.encode(), hashlib.sha256(payload).hexdigest().encode(), payload)))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_is_read_scores_as_what_was_written(model: Model, written: Path, seed: int) -> None:
    features = np.random.default_rng(seed).normal(0, 5, (7, len(FEATURES)))
    again, _ = load(written)
    assert again.facts == model.facts
    np.testing.assert_array_equal(again.novelty(features), model.novelty(features))


def test_the_hash_is_that_of_the_file(model: Model, tmp_path: Path) -> None:
    digest = save(model, tmp_path / "one.model")
    assert load(tmp_path / "one.model")[1] == digest
    assert list(tmp_path.iterdir()) == [tmp_path / "one.model"]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused(written: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(written.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    path = tmp_path / "damaged.model"
    path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"\x80\x04K\x01.", b"PK\x03\x04", b"hindcast.recording/v1\n"])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    assert "not a model" in refused(path)


def test_another_version_is_refused(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "later.model"
    path.write_bytes(written.read_bytes().replace(FORMAT.encode(), b"hindcast.novelty/v9", 1))
    assert "v9" in refused(path)


def test_what_another_scikit_learn_fitted_is_refused(model: Model, tmp_path: Path) -> None:
    facts = model.facts.model_copy(update={"scikit_learn": "0.24.2"})
    path = tmp_path / "old.model"
    save(Model(model.pipeline, facts), path)
    assert "0.24.2" in refused(path)


def test_another_pipeline_is_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "other.model"
    import skops.io
    from sklearn.linear_model import LinearRegression

    rehashed(path, model.facts.model_dump_json().encode(), skops.io.dumps(LinearRegression()))
    assert "not the pipeline" in refused(path)


class Foreign:
    """A type that nobody declared trusted."""


def test_a_type_that_is_not_trusted_is_never_made(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "hostile.model"
    import skops.io

    rehashed(path, model.facts.model_dump_json().encode(), skops.io.dumps(Foreign()))
    assert "not trusted" in refused(path)


def test_facts_and_pipelines_that_are_nonsense_are_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "nonsense.model"
    rehashed(path, b"{}", b"")
    assert "facts" in refused(path)
    rehashed(path, model.facts.model_dump_json().encode(), b"no zip")
    assert "pipeline" in refused(path)


def test_a_folder_that_is_not_there_is_reported(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save(model, tmp_path / "nowhere" / "gpus.model")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "nowhere.model")
