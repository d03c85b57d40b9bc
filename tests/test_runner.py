"""The test runner itself: `conftest.py` in the root."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_one_that_ends_its_worker_fails_once_and_all_others_run(tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_here.py").write_text(
        "def test_a(): pass\ndef test_b(): __import__('os').abort()\ndef test_c(): pass\n"
    )
    (tmp_path / "test_there.py").write_text("def test_d(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-p", "no:cacheprovider", "-n", "2", "."]
    # CI's options are for plugins that are not loaded there.
    fewer = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    answer = subprocess.run(command, cwd=tmp_path, env=fewer, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "1 failed, 3 passed" in answer.stdout
    assert "test_here.py::test_b" in answer.stdout
