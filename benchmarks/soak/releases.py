"""Other releases of the detectors for the soak: a copy with the next version of each, and other settings.

What is open must be the same under each: a release's states are those of the one before (`state` in detector.yaml says
so), and only a setting of a detector that has nothing to say of the soak's recordings differs.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
_VERSION = re.compile(r"^version: (\d+)$", re.MULTILINE)
_WAIT_RISE = 0.01
"""Of the detector storage, which reads no stream that is played here; each release has a little more."""


class Releases:
    """Makes releases in `folder`, each newer than all before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def make(self) -> dict[str, str]:
        """Make the next release, and return the environment with which detect is that."""
        self._count += 1
        release = self._folder / f"release-{self._count}"
        shutil.copytree(
            ROOT / "detectors", release / "detectors", ignore=shutil.ignore_patterns("test*", "__pycache__")
        )
        for about in (release / "detectors").glob("*/detector.yaml"):
            newer, found = _VERSION.subn(self._newer, about.read_text(encoding="utf-8"))
            if found != 1:
                raise ValueError(f"{about} does not say which version it is")
            about.write_text(newer, encoding="utf-8")
        settings = release / "detectors.yaml"
        settings.write_text(f"storage: {{wait_rise: {_WAIT_RISE + self._count / 1e6}}}\n", encoding="utf-8")
        return {
            "PYTHONPATH": f"{release}:{ROOT}",
            "PYTHONSAFEPATH": "1",  # else the folder that it is started in comes first
            "HINDCAST_DETECT_CONFIG": str(settings),
        }

    def _newer(self, version: re.Match[str]) -> str:
        return f"version: {int(version[1]) + self._count}"
