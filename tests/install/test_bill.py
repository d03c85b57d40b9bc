"""`make sbom` names everything that is installed with hindcast, each with its hash."""

import json
import re
import subprocess
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.install


def test_all_that_the_wheel_needs_is_named_with_its_version_and_hash(tmp_path: Path) -> None:
    subprocess.run(["make", "--silent", "--old-file=setup", "sbom", f"SBOM={tmp_path}"], cwd=ROOT, check=True)
    bill = json.loads((tmp_path / "hindcast.cdx.json").read_text())
    parts = {one["name"]: one for one in bill["components"]}
    asked = [line for line in requires("hindcast-gpu") or () if "extra ==" not in line]
    needed = {re.split(r"[^\w-]", line)[0].lower() for line in asked}
    assert len(needed) > 10
    assert needed - set(parts) == set()
    assert "pytest" not in parts, "what only tests need is no part of the wheel"
    for part in parts.values():
        assert part["version"]
        assert all(file["hashes"] for file in part["externalReferences"])
