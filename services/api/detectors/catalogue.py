"""The detectors there are, their versions, settings and runbooks, and which are in shadow."""

from collections.abc import Sequence
from importlib import resources

from detectors import contract
from detectors.engine.engine import Choice
from detectors.registry import discover
from services import __version__
from services.api.detectors.models import Detector, Setting
from services.api.store import Store
from services.kit.problems import missing


class Catalogue:
    """What is known of every detector."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[Detector]:
        """Return every detector, by name, without its runbook."""
        stored = {str(row["detector"]) for row in self._store.all("SELECT detector FROM shadow")}
        return [_detector_of(kind, shadow=name in stored) for name, kind in sorted(discover().items())]

    def one(self, name: str) -> Detector:
        """Return a detector and its runbook; RefusedError (404) where there is none."""
        found = next((detector for detector in self.all() if detector.name == name), None)
        if found is None:
            raise missing("detector", name, "GET /api/v1/detectors lists those there are")
        return found.model_copy(update={"runbook": runbook(name)})

    def set_shadow(self, name: str, *, shadow: bool) -> Detector:
        """Put a detector in shadow, or out of it, for runs that are started from now on."""
        self.one(name)
        with self._store.writing() as db:
            if shadow:
                db.execute("INSERT OR IGNORE INTO shadow VALUES (?)", (name,))
            else:
                db.execute("DELETE FROM shadow WHERE detector = ?", (name,))
        return self.one(name)


def versions(choices: Sequence[Choice]) -> dict[str, str]:
    """Return the versions of hindcast and of each detector that is chosen, by name."""
    return {"hindcast": __version__} | {kind.spec.name: str(kind.spec.version) for kind, _ in choices}


def runbook(name: str) -> str | None:
    """Return a detector's runbook; None where it has none."""
    path = resources.files(f"detectors.{name}") / "runbook.md"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _detector_of(kind: type[contract.Detector], *, shadow: bool) -> Detector:
    spec = kind.spec
    return Detector(
        name=spec.name,
        version=spec.version,
        faults=list(spec.faults),
        reads=list(spec.reads),
        latency_s=spec.latency_s,
        settings=[
            Setting(name=name, value=default.value, unit=default.unit, source=default.source)
            for name, default in spec.defaults.items()
        ],
        config_schema=kind.config_type.model_json_schema(),
        shadow=shadow,
        runbook=None,
    )
