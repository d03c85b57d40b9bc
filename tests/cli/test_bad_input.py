"""Bad input by the front door: a message that names what is wrong and what to do, an exit code, and no traceback."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.small import Brake, small_recording


def _hindcast(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *map(str, arguments)]
    inherited = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=inherited | env)


def _answers(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert "Traceback" not in output
    flat = " ".join(output.split())
    for word in words:
        assert word in flat, output


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return small_recording(tmp_path, "small", nodes=2, minutes=3, brakes=[Brake("v001", 60, 120)])


def _without_a_column(path: Path) -> None:
    pq.write_table(pq.read_table(path / "dcgm.parquet").drop_columns(["gpu"]), path / "dcgm.parquet")


def _of_another_version(path: Path) -> None:
    manifest = path / "recording.yaml"
    manifest.write_text(manifest.read_text().replace("hindcast.recording/v1", "hindcast.recording/v9"))


def _truncated(path: Path) -> None:
    file = path / "dcgm.parquet"
    file.write_bytes(file.read_bytes()[:-1000])


def _back_in_time(path: Path) -> None:
    table = pq.read_table(path / "dcgm.parquet")
    rows = [*range(100), 0, *range(101, table.num_rows)]
    column = table["timestamp"].take(pa.array(rows))
    pq.write_table(table.set_column(0, "timestamp", column), path / "dcgm.parquet")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without_a_column, ("dcgm.parquet", "'gpu'", "remedy")),
        (_of_another_version, ("recording.yaml", "hindcast.recording/v9", "remedy")),
        (_truncated, ("dcgm.parquet", "truncated", "remedy")),
    ],
)
def test_a_bad_recording_is_answers(recording: Path, spoil: Callable[[Path], None], words: tuple[str, ...]) -> None:
    spoil(recording)
    _answers(_hindcast("run", recording), 1, *words)
    _answers(_hindcast("validate", recording), 1, words[0])


def test_a_recording_with_wrong_rows_is_run_and_scored_without_them_and_repaired(recording: Path) -> None:
    _back_in_time(recording)
    words = ("rows of dcgm.parquet left out (1 that repeat an earlier one)", "1 row of dcgm.parquet put in order")
    _answers(_hindcast("run", recording), 0, *words, "hindcast repair")
    _answers(_hindcast("score", recording), 0, *words)
    _answers(_hindcast("run", recording, "--strict"), 1, "dcgm.parquet: row 100", "remedy", "hindcast repair")
    _answers(_hindcast("score", recording, "--strict"), 1, "dcgm.parquet: row 100", "remedy")
    clean = recording.with_name("clean")
    _answers(_hindcast("repair", recording, "--out", clean), 0, *words)
    _answers(_hindcast("validate", clean), 0, "valid")
    _answers(_hindcast("repair", recording, "--out", clean), 2, "exists already")


def test_a_broker_that_is_not_there_is_named() -> None:
    env = {"HINDCAST_KAFKA_BOOTSTRAP": "127.0.0.1:9", "HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S": "0.5"}
    _answers(_hindcast("topics", "create", **env), 3, "127.0.0.1:9", "remedy", "HINDCAST_KAFKA_BOOTSTRAP")


@pytest.mark.parametrize("module", ["services.sink", "services.detect", "services.notify", "services.replay"])
def test_bad_settings_are_all_listed_before_anything_is_connected(module: str) -> None:
    wrong = {"HINDCAST_KAFKA_SECURITY_PROTOCOL": "TELEGRAPH", "HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S": "soon"}
    done = subprocess.run(
        [sys.executable, "-m", module], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin"} | wrong
    )
    _answers(done, 2, *wrong, "remedy")
