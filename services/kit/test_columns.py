import numpy as np
import pyarrow as pa
import pytest

from services.kit.columns import batch_of, rows_of
from services.kit.wire import WireError


def _batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([1000, 2000], pa.timestamp("ms", "UTC")),
            "node": pa.array(["v001", "v002"]).dictionary_encode(),
            "gpu": pa.array([0, 7], pa.uint8()),
            "DCGM_FI_DEV_GPU_TEMP": pa.array([40.0, None], pa.float32()),
            "DCGM_FI_DEV_SM_CLOCK": pa.array([1410, 1395], pa.int32()),
            "note": pa.array(["kept", "aside"]),
        }
    )


def test_columns_keep_values_and_what_was_not_reported() -> None:
    rows = rows_of("dcgm", _batch())
    assert rows.times.tolist() == [1000, 2000]
    assert [rows.keys["gpu"].categories[code] for code in rows.keys["gpu"].codes] == [0, 7]
    assert rows.valid["DCGM_FI_DEV_GPU_TEMP"].tolist() == [True, False]
    assert rows.values["DCGM_FI_DEV_SM_CLOCK"].tolist() == [1410.0, 1395.0]
    assert "note" not in rows.values


def test_only_the_fields_asked_for_are_converted() -> None:
    assert set(rows_of("dcgm", _batch(), {"DCGM_FI_DEV_SM_CLOCK"}).values) == {"DCGM_FI_DEV_SM_CLOCK"}


@pytest.mark.parametrize("lost", ["timestamp", "node", "gpu"])
def test_a_missing_key_column_is_named(lost: str) -> None:
    with pytest.raises(WireError, match=lost):
        rows_of("dcgm", _batch().drop_columns([lost]))


def test_rows_by_hand_become_the_same_columns() -> None:
    batch = batch_of(
        "dcgm",
        [
            {"timestamp": "2024-04-01T08:00:00Z", "node": "v001", "gpu": 0, "DCGM_FI_DEV_GPU_TEMP": 40.0},
            {"timestamp": "2024-04-01T08:00:05Z", "node": "v001", "gpu": 1},
        ],
    )
    rows = rows_of("dcgm", batch)
    assert np.diff(rows.times).tolist() == [5000]
    assert rows.valid["DCGM_FI_DEV_GPU_TEMP"].tolist() == [True, False]


@pytest.mark.parametrize("stamp", ["yesterday", None, 17, "2024-04-01T08:00:00"])
def test_a_wrong_time_names_its_row(stamp: object) -> None:
    with pytest.raises(WireError, match="row 2: timestamp"):
        batch_of("dcgm", [{"timestamp": "2024-04-01T08:00:00Z"}, {"timestamp": stamp}])
