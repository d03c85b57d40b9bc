"""What detects, for a unit: this service's own configuration, with a replay's own settings on top."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detectors.engine.engine import Choice
from detectors.incidents.knowledge import IncidentConfig
from services.detect.choices import calibration_of, choices_of, incident_config_of, over
from services.kit.errors import UserError
from services.kit.replays import ReplayState, plain
from services.kit.wire import WireError

Chosen = tuple[Sequence[Choice], IncidentConfig]


class Configured:
    """The configuration of the service. Raises UserError (exit code 2) that lists everything wrong with it.

    `path` is where `overrides` came from.
    """

    def __init__(self, overrides: Mapping[str, Any], path: Path | None) -> None:
        self._overrides = overrides
        self._calibration = calibration_of(overrides, path)
        self._own: Chosen = (choices_of(overrides, path, self._calibration), incident_config_of(overrides, path))

    def of(self, replay: ReplayState | None) -> Chosen:
        """Return what detects in a replay, None for a live feed; raise WireError where its settings are no good."""
        if replay is None or not (replay.detectors or replay.calibration):
            return self._own
        overrides = over(self._overrides, replay.detectors)
        calibration = plain(replay.calibration) or self._calibration
        try:
            return choices_of(overrides, None, calibration), incident_config_of(overrides)
        except UserError as error:
            raise WireError(f"the detectors' settings of replay {replay.replay} are no good: {error.message}") from None
