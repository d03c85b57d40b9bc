"""What detectors share: settings of their own kind, tails, a book of cases, and a state made up of what they name."""

from collections.abc import Sequence
from typing import ClassVar, Self

from detectors.case_book import CaseBook
from detectors.contract import DetectorConfig, DetectorSpec, Finding, LogRecord
from detectors.core.kept import Kept
from detectors.core.tails import Tails
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet


class BaseDetector(Kept):
    """A detector that names in `KEPT` what makes up its state; `tails` and its book are always part of it."""

    spec: ClassVar[DetectorSpec]
    config_type: ClassVar[type[DetectorConfig]]

    def __init_subclass__(cls) -> None:
        cls.KEPT = ("tails", "_book", *cls.KEPT)

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, self.config_type):
            raise TypeError(f"{type(config).__name__} is not a {self.config_type.__name__}")
        self._config, self._fleet = config, fleet
        self.tails = Tails(config.calibration)
        self._book = CaseBook(self.spec.name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take no notice of log lines, unless a detector does."""
        del records
        return ()

    def snapshot(self) -> bytes:
        """Return the whole state."""
        return pack(*self.saved())

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        detector = cls(config.model_copy(update={"calibration": {}}), fleet)
        detector.take_saved(*unpack(state))
        detector.restored()
        return detector

    def restored(self) -> None:
        """Derive again what follows from the state and the fleet, where a detector holds such."""
