"""The head of an imported recording, the same for all importers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def imported(
    out: Path,
    cluster: str,
    *,
    title: str,
    summary: str,
    document: str,
    notes: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return the header for `Draft.finish`: `document` names the kind of source, `notes` what was assumed.

    `more` are further keys of recording.yaml, such as ``clock_skew_s``.
    """
    return {
        "name": out.resolve().name,
        "title": title,
        "summary": summary,
        "origin": "imported",
        "source": {"document": document, "licence": "unknown: the source is the user's own", "notes": list(notes)},
        "cluster": {"name": cluster},
        **more,
    }
