"""Each quantity that a happening can change is read, and each piece of physics is asked what jobs feel of it."""

import importlib
import pkgutil
from pathlib import Path

import pytest

from services.synth import faults, physics
from services.synth.make import FELT
from services.synth.physics.effects import QUANTITIES

SYNTH = Path(physics.__path__[0]).parent
NO_READERS = {Path(faults.__path__[0]), SYNTH / "story"}
"""What makes effects, and what only asks which of them were gathered."""
READERS = [
    path.read_text(encoding="utf-8")
    for path in SYNTH.rglob("*.py")
    if path.parent not in NO_READERS and path.name != "effects.py" and not path.name.startswith("test_")
]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_quantity_is_read_by_what_shows_it(quantity: str) -> None:
    read = any(f'"{quantity}"' in text for text in READERS)
    assert read, "nothing in physics, jobs or telemetry reads it: a happening with it would show nowhere"


def test_what_jobs_feel_is_asked_of_every_module() -> None:
    modules = [
        importlib.import_module(f"{physics.__name__}.{module.name}")
        for module in pkgutil.iter_modules(physics.__path__)
        if not module.name.startswith("test_")
    ]
    felt = {module.felt for module in modules if hasattr(module, "felt")}
    assert felt == set(FELT), "name it in FELT, in services/synth/make.py"
