"""link_fault on many cables that go down in one moment."""

from dataclasses import replace
from typing import Any

import pytest

from detectors.link_fault.examples import AT_S, NIC, PORT, SCENE, lowered
from detectors.link_fault.test_detector import firing, run
from detectors.tapes.cluster import line, name, tape_of, without

_LEAVES, _ITS_PORT = ["leaf-1", "leaf-2"], "Ethernet1"


def _off(*, gathered: bool, leaves: list[str], until_s: float = 1e9) -> Any:
    tape = lowered(tape_of(replace(SCENE, minutes=10)), "switch", [(AT_S, until_s)], switch=leaves, port=_ITS_PORT)
    for kind in ("dcgm", "nic"):
        tape = without(tape, kind, 0 if not gathered else 1e9, node=name(1))
    return tape


def test_all_links_of_a_node_that_nobody_gathers_are_one_finding() -> None:
    (found,) = run(_off(gathered=False, leaves=_LEAVES))
    assert dict(found.entity) == {"node": name(1)}
    assert found.evidence["cables_down"] == found.evidence["cables"] == 2
    raised, resolved = run(_off(gathered=False, leaves=_LEAVES, until_s=AT_S + 200))
    assert (raised.entity, resolved.state) == (resolved.entity, "resolved")


@pytest.mark.parametrize("gathered", [True, False])
def test_one_of_a_nodes_links_is_that_link(gathered: bool) -> None:
    assert firing(_off(gathered=gathered, leaves=_LEAVES[:1])) == [("link_down", NIC if gathered else PORT)]


def test_all_links_of_a_node_that_is_heard_are_theirs() -> None:
    assert len(firing(_off(gathered=True, leaves=_LEAVES))) == 2


def test_a_node_that_the_scheduler_took_out_is_none() -> None:
    drained = line(60, "scheduler", f'node {name(1)} state set to DRAIN reason="firmware"', node=name(1))
    assert firing(replace(_off(gathered=False, leaves=_LEAVES), logs=[drained])) == []
