"""docs/adding-a-detector.md is a whole detector in one folder: registry, laws, generator and promtool accept it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.stack import build
from services.stack.settings import load_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-detector.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^## (\w+\.\w+)\n(?:(?!## |```)[^\n]*\n)*```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
NAME = "node_voltage"
GENERATES = """
import pathlib, sys
from services.cli.generated.generate import generated
for path, text in generated().items():
    if "node_voltage" in text or "voltage_out_of_range" in text:
        print(path.name)
    if path.name == "node_voltage.yaml":
        pathlib.Path(sys.argv[1]).write_text(text, encoding="utf-8")
"""
EVERY = ("test_laws.py", "engine/test_upgrade.py")
"""Tests that run on every detector."""
EXPLAINS = """
from detectors.incidents.knowledge import TABLE
print([TABLE.rows[number].effect for number in TABLE.rows_from()["voltage_out_of_range"]])
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the detectors of this checkout and the page's beside them."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "detectors", folder / "detectors", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "detectors" / NAME).mkdir()
    for name, text in {**FILES, "__init__.py": ""}.items():
        (folder / "detectors" / NAME / name).write_text(text, encoding="utf-8")
    return folder


def python(checkout: Path, *arguments: str) -> str:
    path = os.pathsep.join((str(checkout), str(ROOT)))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout, env={**os.environ, "PYTHONPATH": path, "HINDCAST_LAW_EXAMPLES": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_the_page_has_every_file_of_a_detector() -> None:
    needed = {path.name for path in (ROOT / "detectors" / "storage").iterdir() if path.suffix in {".yaml", ".md"}}
    assert needed | {"detector.py", "examples.py", "test_detector.py"} <= set(FILES)


def test_it_keeps_to_the_rules_of_the_house(checkout: Path) -> None:
    folder, settings = str(checkout / "detectors" / NAME), ("--no-cache", "--config", str(ROOT / "pyproject.toml"))
    python(checkout, "-m", "ruff", "format", "--check", *settings, folder)
    python(checkout, "-m", "ruff", "check", *settings, folder)


def test_the_laws_and_its_own_tests_hold(checkout: Path) -> None:
    output = python(
        checkout, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-k", NAME,
        *(f"detectors/{name}" for name in (NAME, *EVERY)),
    )  # fmt: skip
    sources = [(ROOT / "detectors" / name).read_text(encoding="utf-8") for name in EVERY]
    assert output.count(f"[{NAME}]\n") == sum(source.count("\n@every_detector\n") for source in sources) > 15
    assert output.count("test_detector.py::test_") == FILES["test_detector.py"].count("def test_")


def test_generated_files_know_it_at_once_and_its_rules_do_what_their_cases_say(checkout: Path) -> None:
    rules = checkout / "alert-rules" / "detectors" / f"{NAME}.yaml"
    rules.parent.mkdir(parents=True)
    pages = python(checkout, "-c", GENERATES, str(rules)).split()
    assert {"detectors.md", "detectors-yaml.md", "alerts.md", "openapi.json", f"{NAME}.yaml"} <= set(pages)
    promtool = build.ensure(load_settings().cache_dir, ("prometheus",))["prometheus"] / "promtool"
    cases = checkout / "detectors" / NAME / "rules_test.yaml"
    done = subprocess.run([promtool, "test", "rules", cases], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_its_fault_can_cause_is_in_the_table(checkout: Path) -> None:
    assert "('node_down',)" in python(checkout, "-c", EXPLAINS)
