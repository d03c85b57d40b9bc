"""Small recordings that are committed, so that tests need not make any: `hindcast generate` writes them.

Each is a stretch of a library scenario, made with a few nodes. They carry no fingerprint of the generator's code: they
change when what it makes changes, and only then.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from services.recording.cut import cut_recording
from services.recording.reader import Recording
from services.synth.library import LIBRARY, find_scenario
from services.synth.make import Variant
from services.synth.portable import make_portably

FOLDER = LIBRARY / "small"
MOST_BYTES = 300_000
"""Of one recording: repositories grow."""


@dataclass(frozen=True)
class Small:
    """A scenario's name, how it is made, and the stretch of it (seconds from its start) that is kept."""

    name: str
    variant: Variant
    start: float
    end: float


SMALL = (
    Small("vela-power-brake", Variant(scale=0.03, interval_s=15), 5040.0, 6600.0),
    Small("sakuraone-job-hang", Variant(scale=0.03, interval_s=30), 4140.0, 6400.0),
    Small("vela-healthy", Variant(scale=0.04, interval_s=30), 3600.0, 5100.0),
)


def make_small(small: Small, folder: Path) -> Path:
    """Make a small recording anew as ``folder/NAME`` and return that."""
    target = folder / small.name
    with tempfile.TemporaryDirectory() as place:
        made = make_portably(find_scenario(small.name), Path(place) / "whole" / small.name, small.variant)
        whole = Recording.open(made)
        start, end = (whole.manifest.start + round(seconds * 1000) for seconds in (small.start, small.end))
        cut = cut_recording(whole, Path(place) / "cut" / small.name, start=start, end=end, name=small.name)
        manifest = yaml.safe_load((cut / "recording.yaml").read_text(encoding="utf-8"))
        for code_dependent in ("generator", "cut_of"):
            manifest.pop(code_dependent, None)
        text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=120)
        (cut / "recording.yaml").write_text(text, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(cut, target)
    return target
