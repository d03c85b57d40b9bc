"""docs/reference/xids.md: what hindcast makes of each XID, from detectors/signals/xid.yaml."""

from collections import defaultdict
from importlib import resources

import yaml

from services.cli.reference.tables import code, page, table

_ABOUT = """\
What hindcast makes of the errors that NVIDIA's driver reports in the kernel's log. The sources do not always agree; a
site decides otherwise by `xid_overrides` in detectors.yaml. Sources: {sources}."""


def xids() -> str:
    """Return the page."""
    document = yaml.safe_load((resources.files("detectors.signals") / "xid.yaml").read_text(encoding="utf-8"))
    of_class: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for number, one in document["xids"].items():
        recommended = one.get("ours", document["ours"][one["class"]])
        theirs = "; ".join(f"{source}: {one[source]}" for source in document["order"] if source in one)
        of_class[one["class"]].append((code(number), one["meaning"], recommended, theirs))
    parts = [
        f"## {name.replace('_', ' ')}\n\n" + table(("XID", "meaning", "what hindcast recommends", "the sources"), rows)
        for name, rows in of_class.items()
    ]
    sources = "; ".join(f"{name}: {where}" for name, where in document["sources"].items())
    return page("XIDs", _ABOUT.format(sources=sources), *parts)
