import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.recording.importers.parts.series.pivot import Wide, interval_s

SAMPLE = st.tuples(
    st.sampled_from(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"]),
    st.integers(0, 3),
    st.integers(0, 5),
    st.floats(allow_nan=True),
)


@given(parts=st.lists(st.lists(SAMPLE, max_size=12), max_size=6))
@settings(deadline=None)
def test_rows_hold_the_first_sample_of_every_cell(parts: list[list[tuple[str, int, int, float]]]) -> None:
    wide, repeated = Wide("dcgm"), 0
    wanted: dict[tuple[int, int, str], float] = {}
    for part in parts:
        for column in sorted({sample[0] for sample in part}):
            chosen = [sample for sample in part if sample[0] == column]
            entities = np.array([wide.entity((f"n{gpu % 2}", gpu)) for _, gpu, _, _ in chosen], np.int64)
            times = np.array([at for _, _, at, _ in chosen], np.int64)
            wide.add(column, entities, times, np.array([value for *_, value in chosen]))
            for _, gpu, at, value in chosen:
                repeated += (at, gpu, column) in wanted
                wanted.setdefault((at, gpu, column), value)
    batch = wide.rows()
    assert wide.rows() is None
    assert wide.repeated == repeated
    if batch is None:
        assert not wanted
        return
    rows = batch.to_pylist()
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
    found = {
        (round(row["timestamp"].timestamp() * 1000), row["gpu"], name): value
        for row in rows
        for name, value in row.items()
        if name.startswith("DCGM") and value is not None
    }
    assert found.keys() == wanted.keys()
    assert all(found[key] == value or (math.isnan(found[key]) and math.isnan(value)) for key, value in wanted.items())
    assert len({(row["timestamp"], row["gpu"]) for row in rows}) == len(rows)


def test_a_column_is_as_wide_as_its_values_need() -> None:
    for value, wanted in ((1.5, "float"), (2.0**24 + 1, "double"), (math.nan, "float"), (1e300, "double")):
        wide = Wide("dcgm")
        wide.add("DCGM_FI_DEV_GPU_TEMP", np.array([wide.entity(("n1", 0))]), np.array([1]), np.array([value]))
        batch = wide.rows()
        assert batch is not None
        assert str(batch.schema.field("DCGM_FI_DEV_GPU_TEMP").type) == wanted


def test_the_interval_is_that_of_an_entity() -> None:
    wide = Wide("dcgm")
    for gpu in range(2):
        times = np.arange(10) * 5000 + gpu * 123
        wide.add("X", np.full(10, wide.entity(("n1", gpu))), times, np.zeros(10))
    batch = wide.rows()
    assert batch is not None
    assert interval_s(batch, ("node", "gpu")) == 5
