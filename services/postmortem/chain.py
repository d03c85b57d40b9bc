"""The root-cause chain: from what was seen before the root to what the jobs felt, and what speaks for the root."""

from collections.abc import Iterator, Sequence

from services.postmortem.case import Case, place
from services.postmortem.chart import figure
from services.postmortem.document import Block, Items, Section, Table, Text
from services.postmortem.evidence import Shown

BY_HOST = "pauses from its host"
"""What the detector of congestion says of a port whose node floods it with pauses."""
_SEEN = "seen:"
_MOST_SEEN = 2


def chain(case: Case, shown: Sequence[Shown]) -> Section:
    """Return the section. How the root's signals moved is from the charts: a finding knows its first moment only."""
    incident = case.incident
    names = {one.id: f"{one.fault} at {place(one.entity)}" for one in incident.members}
    root, moved = names[case.root.id], _moved(shown)

    def named(end: str) -> str:
        return names.get(end, " ".join(end.removeprefix(_SEEN).replace("job:", "job ").split()))

    links = [
        f"{named(link.cause)} → {named(link.effect)}: {link.because}"
        for link in incident.chain
        if not (moved and link.cause == case.root.id and link.effect.startswith(_SEEN))
    ]
    first = next((number for number, link in enumerate(links) if link.startswith(f"{root} → ")), len(links))
    links[first:first] = [*_host(case, root), *([f"{root} → {moved}"] if moved else []), *_spread(case, root)]
    blocks: list[Block] = [Items(links, numbered=True)] if links else [Text("Nothing else was found that it led to.")]
    rows = [
        [f"{one.fault} at {place(one.entity)}", f"{one.score:.0%}", "; ".join(one.reasons)] for one in incident.causes
    ]
    blocks += [
        Text("What speaks for each possible root cause:"),
        Table(["cause", "share", "because"], rows, frozenset({1})),
    ]
    if incident.unlisted:
        blocks.append(Text(f"{incident.unlisted} more findings are part of the incident and not listed."))
    return Section("Root-cause chain", blocks)


def _moved(shown: Sequence[Shown]) -> str:
    """Return how the first signals moved that left their peers, from before to while it lasted."""
    left = [one for one in shown if one.left_at is not None][:_MOST_SEEN]
    return "; ".join(
        f"{one.signal.title} from {figure(one.before)} to {figure(one.during)} {one.signal.unit}".rstrip()
        for one in left
    )


def _host(case: Case, root: str) -> Iterator[str]:
    """Yield who jams a port, where the finding's evidence says so."""
    evidence = case.finding(case.root.id).evidence
    if evidence.get("by") == BY_HOST and "far_end" in evidence:
        yield f"{evidence['far_end']} → {root}: the node at the port sends it pauses"


def _spread(case: Case, root: str) -> Iterator[str]:
    """Yield how far a jam spread, where the finding's evidence says so."""
    evidence = case.finding(case.root.id).evidence
    ports, switches = evidence.get("ports_hot"), evidence.get("switches_hot")
    if isinstance(ports, int | float) and ports > 1:
        yield f"{root} → {ports - 1:g} more ports, {switches} switches in all: the jam spreads"
