"""Real public data that some tests use where it is: it is not part of the repository."""

import os
from pathlib import Path

import pytest

from services.recording.importers.mlperf_power import convert as import_mlperf_power

DATA = Path(os.environ.get("HINDCAST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def public(name: str) -> Path:
    """Return a file or folder of the public data; skip the test where it is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"there is no {path}; set HINDCAST_DATA to the folder of public data that has it")
    return path


def mlperf_power(out: Path) -> Path:
    """Return the imported MLPerf run; skip where its files are absent."""
    import_mlperf_power(public("mlperf-smc-64node-h100-power"), out)
    return out
