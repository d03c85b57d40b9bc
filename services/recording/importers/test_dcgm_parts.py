"""Fields of DCGM made of their parts, and the series that these are."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from services.recording.importers.parts.census import Census, Place
from services.recording.importers.parts.dcgm_parts import with_whole_fields
from services.recording.importers.parts.pivot import Wide

_NS = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_{}_NS"


def _made(columns: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    before = pa.RecordBatch.from_pydict({name: pa.array(values, pa.float64()) for name, values in columns.items()})
    return {name: values for name, values in with_whole_fields(before).to_pydict().items() if name not in columns}


def test_time_throttled_is_that_of_its_reasons() -> None:
    soft, hard, cap = (_NS.format(name) for name in ("SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN", "SW_POWER_CAP"))
    assert _made({soft: [1.0, None, 5.0], hard: [10.0, 20.0, 30.0], cap: [7.0, 8.0, None]}) == {
        "DCGM_FI_DEV_POWER_VIOLATION": [7.0, 8.0, None],
        # A part that is missing for once would look as if the counter had begun anew.
        "DCGM_FI_DEV_THERMAL_VIOLATION": [11.0, None, 35.0],
    }


def test_a_field_that_is_there_stays_as_it_is() -> None:
    assert _made({_NS.format("SW_POWER_CAP"): [7.0], "DCGM_FI_DEV_POWER_VIOLATION": [9.0]}) == {}
    assert _made({"DCGM_EXP_XID_ERRORS_COUNT_79": [1.0], "DCGM_FI_DEV_XID_ERRORS": [0.0]}) == {}


def test_counts_by_code_become_the_last_code() -> None:
    """Of a program's error (31) and a failed row remap (64) it is the one that somebody has to see to."""
    counts: Mapping[int, Sequence[float | None]] = {31: [1.0, 2.0, 2.0, None], 64: [0.0, None, 1.0, 0.0]}
    made = _made({f"DCGM_EXP_XID_ERRORS_COUNT_{code}": values for code, values in counts.items()})
    assert made == {"DCGM_FI_DEV_XID_ERRORS": [31.0, 31.0, 64.0, None]}


def test_dcgm_exporters_counts_are_columns_by_code() -> None:
    labels = {"Hostname": "n01", "gpu": "3", "xid": "79", "window_size_in_ms": "300000"}
    place = Census().place("DCGM_EXP_XID_ERRORS_COUNT", labels)
    assert isinstance(place, Place)
    assert (place.reading.stream, place.reading.column) == ("dcgm", "DCGM_EXP_XID_ERRORS_COUNT_79")
    assert place.key == ("n01", 3)
    wide = Wide("dcgm")
    wide.add(place.reading.column, np.array([wide.entity(place.key)]), np.array([1_700_000_000_000]), np.ones(1))
    rows = wide.rows()
    assert rows is not None
    assert rows.column("DCGM_FI_DEV_XID_ERRORS").to_pylist() == [79.0]
