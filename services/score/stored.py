"""A scored recording as JSON and back: so that a long run can be interrupted, resumed, and added up later."""

from dataclasses import replace
from typing import Any

from detectors.contract import Finding
from services.recording.model import Label
from services.score.incidents import IncidentTally
from services.score.matching import Outcome
from services.score.suite import Scored
from services.score.tally import Manners, Tally


def to_json(scored: Scored) -> dict[str, Any]:
    """Return all that the figures are made of; of findings neither evidence nor advice."""
    return vars(scored) | {
        "outcomes": [_outcome(outcome) for outcome in scored.outcomes],
        "manners": vars(scored.manners),
        "controls": {name: vars(counts) for name, counts in scored.controls.items()},
        "incidents": vars(scored.incidents),
    }


def from_json(stored: dict[str, Any]) -> Scored:
    """Return what `to_json` was given. KeyError, TypeError or ValueError: that is not what this is."""
    return Scored(
        **stored
        | {
            "outcomes": [
                Outcome(
                    one["kind"],
                    one["fault"],
                    Label.model_validate(one["label"]) if "label" in one else None,
                    Finding(**one["finding"]) if "finding" in one else None,
                )
                for one in stored["outcomes"]
            ],
            "manners": Manners(**stored["manners"]),
            "controls": {name: Tally(**counts) for name, counts in stored["controls"].items()},
            "incidents": IncidentTally(**stored.get("incidents", {})),
        }
    )


def _outcome(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": outcome.kind, "fault": outcome.fault}
    if outcome.label is not None:
        found["label"] = outcome.label.model_dump(mode="json", exclude_unset=True)
    if outcome.finding is not None:
        slim = replace(outcome.finding, recommended_action="", evidence={})
        found["finding"] = {name: getattr(slim, name) for name in slim.__dataclass_fields__}
    return found
