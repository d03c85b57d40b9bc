"""The small recordings that come with the project, as cases."""

from pathlib import Path

import pytest

from detectors.registry import choose
from services.postmortem.case import Case, investigate
from services.postmortem.report import Report, evidence_of
from services.recording.reader import Recording

SMALL = Path(__file__).resolve().parents[2] / "replay-data" / "small"


@pytest.fixture(scope="session")
def brake() -> Case:
    """A node whose power supply fails."""
    return investigate(Recording.open(SMALL / "vela-power-brake"), choose())


@pytest.fixture(scope="session")
def hang() -> Case:
    """A job whose collective never ends."""
    return investigate(Recording.open(SMALL / "sakuraone-job-hang"), choose())


@pytest.fixture(scope="session")
def made(brake: Case) -> tuple[Case, Report]:
    """The brake with its evidence, without trials."""
    from services.postmortem.appendix import Asked

    shown, lines = evidence_of(brake)
    return brake, Report(brake, Asked(price=2.0, what_if=False), shown=shown, lines=lines)
