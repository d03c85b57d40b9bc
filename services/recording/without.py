"""What can be taken away from a recording, by the words of ``--without``."""

from collections.abc import Sequence
from typing import Final

from services.kit.errors import UsageError

WORDS: Final[dict[str, str]] = {
    "default-fields": "DCGM: all but what dcgm-exporter reports by default",
    "rank-steps": "single ranks' steps; a job's row stays, or is made",
    "steps": "all that training loops report",
    "jobs": "the scheduler's list of jobs",
    "logs": "all log lines",
    "kernel-logs": "lines of nodes' kernels",
    "sel": "lines of BMCs' event logs",
    "scheduler-logs": "lines of the scheduler",
    "job-logs": "what jobs print",
    "fabric-manager-logs": "lines of the fabric manager",
    "bmc": "BMCs' sensors",
    "nic": "counters of network cards",
    "switch": "counters of switches",
    "storage": "counters of file systems",
    "scrapes": "an exporter's, 3 to 8 in a row, every two hours or so",
    "pauses": "all scrapes for 20 to 90 s, every two hours or so",
}
"""What can be taken away, by the word for it."""
ALSO: Final[dict[str, str]] = {"all-but-default-fields": "default-fields"}


def parse_words(given: Sequence[str]) -> tuple[str, ...]:
    """Return the words of lists by commas, each once. UserError (exit code 2) names all that are none."""
    words = [ALSO.get(word, word) for text in given for word in (part.strip() for part in text.split(",")) if word]
    unknown = sorted({word for word in words if word not in WORDS})
    if unknown or not words:
        wrong = ", ".join(repr(word) for word in unknown) or "nothing"
        raise UsageError(f"--without: {wrong} cannot be taken away", remedy=f"there are: {', '.join(WORDS)}")
    return tuple(dict.fromkeys(words))
