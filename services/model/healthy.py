"""Which stretches of a recording are healthy: all of it but the labelled faults and what surrounds them.

Distractors (checkpoints, warm-up, an idle node) are healthy: the model has to know them.
"""

from typing import Final

from services.model.peers import Compared
from services.recording.model import Label
from services.recording.reader import Recording

BEFORE_MS: Final = 300_000
"""A label's onset is an estimate where a recording was captured (judgement)."""
AFTER_MS: Final = 900_000
"""What a fault leaves behind: warm cards, a job that restarts, a habit to be learnt again (judgement)."""


def faults(recording: Recording) -> list[Label]:
    """Return the labels of a recording of faults."""
    return [label for label in recording.labels() if not label.distractor]


def healthy(window: Compared, labels: list[Label]) -> bool:
    """Return whether no fault was in the cluster in a window, shortly before or after.

    The whole cluster is left out: a fault's victims are not healthy either.
    """
    return all(window.end <= label.onset - BEFORE_MS or window.start > label.end + AFTER_MS for label in labels)
