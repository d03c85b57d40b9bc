"""Real public data that some tests use where it is: it is not part of the repository."""

import os
from pathlib import Path

import pytest

from services.recording.importers.mlperf_power import convert as import_mlperf_power

DATA = Path(os.environ.get("HINDCAST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def mlperf_power(out: Path) -> Path:
    """Return the imported MLPerf run; skip where its files are absent."""
    source = DATA / "mlperf-smc-64node-h100-power"
    if not source.is_dir():
        pytest.skip(f"the MLPerf power run is not at {source}; set HINDCAST_DATA to the folder that has it")
    import_mlperf_power(source, out)
    return out
