"""The XID catalogue, the kernel's lines, and the de-duplication of lines and gauge."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from detectors.contract import Batch, LogRecord
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import GpuLayout
from detectors.signals.xid import OURS, SITE, XIDS, XidCatalogue, XidOverrides, asked, normal_address, parse_line
from detectors.signals.xid_watch import GAUGE, KERNEL, SAME_MS, TOTAL, WINDOW, XidWatch

DATA = Path(os.environ.get("HINDCAST_DATA", Path(__file__).parents[3] / "shared" / "data"))
OVERRIDES: TypeAdapter[dict[str, dict[str, str]]] = TypeAdapter(XidOverrides)
TOPOLOGY = {
    "nodes": [{"name": "v001", "gpus": [{"gpu": gpu, "pci_bus_id": f"00000000:0{gpu}:00.0"} for gpu in (1, 2)]}]
}


@pytest.mark.parametrize(
    ("message", "code", "address", "text"),
    [
        ("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
         79, "00000000:05:00.0", "GPU has fallen off the bus."),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "00000000:03:00.0", "Channel 00000001"),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)",
         149, "00000018:01:00.0", "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"),
        ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", 79, "00000000:18:00.0", "GPU has fallen off the bus."),
        ("NVRM: GPU at 0000:B1:00.0 has fallen off the bus.", 79, "00000000:b1:00.0", "GPU has fallen off the bus."),
        ("[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s",
         119, "00000000:9b:00.0", "Timeout after 6s"),
        ("NVRM: Xid (PCI:0000:07:00 GPU-I:05): 94, pid=7194, name=python, Contained: SM (0x1).",
         94, "00000000:07:00.0", "Contained: SM (0x1)."),
    ],
)  # fmt: skip
def test_lines_in_every_form_of_the_driver(message: str, code: int, address: str, text: str) -> None:
    line = parse_line(message)
    assert line is not None
    assert (line.code, line.address, line.text) == (code, address, text)


@pytest.mark.parametrize(
    "message",
    [
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
        "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0000000000002081",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
        "NVRM: Xid (PCI:zz): seventy-nine",
        "something has fallen off the bus",
        "",
    ],
)
def test_other_lines_are_not_about_xids(message: str) -> None:
    assert parse_line(message) is None


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    parse_line(text)
    parse_line(f"NVRM: Xid ({text}): 79, {text}")
    parse_line(f"NVRM: {text} fallen off the bus")
    normal_address(text)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F))
def test_addresses_of_kernel_and_topology_are_the_same(domain: int, bus: int, device: int) -> None:
    address = normal_address(f"PCI:{domain:04x}:{bus:02X}:{device:02x}")
    assert (
        address == normal_address(f"{domain:08X}:{bus:02x}:{device:02x}.0") == f"{domain:08x}:{bus:02x}:{device:02x}.0"
    )


@pytest.mark.parametrize(
    ("path", "codes"),
    [
        ("components/accelerator/nvidia/xid/testdata/dmesg-with-xid-119.log", [119] * 5),
        ("components/memory/testdata/dmesg.decode.iso.log", [13] * 16 + [43]),
    ],
)
def test_real_kernel_logs(path: str, codes: list[int]) -> None:
    source = DATA / "fixtures-nvidia" / "gpud" / path
    if not source.is_file():
        pytest.skip(f"no kernel log at {source}; set HINDCAST_DATA to the folder that has fixtures-nvidia")
    lines = [parse_line(line) for line in source.read_text(encoding="utf-8").splitlines()]
    found = [line for line in lines if line is not None]
    assert [line.code for line in found] == codes
    assert len({line.address for line in found}) == 1


def test_the_catalogue_has_the_codes_of_the_faults() -> None:
    catalogue = XidCatalogue({})
    assert {48, 94, 95} <= catalogue.codes("uncorrectable_memory")
    assert catalogue.codes("remap_recorded", "remap_failed") == {63, 64}
    assert {79, 119, 120} <= catalogue.codes("gpu_lost")
    assert {74, *range(144, 151)} <= catalogue.codes("nvlink", "nvlink_leveled")
    assert {13, 31, 43, 45} == catalogue.codes("follow_on")


def test_where_the_sources_disagree_all_are_shown_and_one_that_agrees_with_us_is_quoted() -> None:
    evidence = XIDS[63].evidence()
    assert (evidence["xid_action"], evidence["xid_action_source"]) == ("reboot", "gpud")
    assert "nvidia: IGNORE" in str(evidence["xid_other_actions"])
    assert XIDS[48].quoted == "XID 48: WORKFLOW_XID_48, by nvidia"


@pytest.mark.parametrize("code", sorted(XIDS))
def test_no_code_quotes_a_word_against_what_is_recommended(code: int) -> None:
    xid = XIDS[code]
    action, source = xid.action
    steps = asked(action)
    if xid.group not in {"information", "link", "follow_on", "application"}:
        assert xid.ours != "none"
        assert "none" not in steps, action
    if source != OURS:
        assert steps, f"nobody knows what {action} asks for"
    if xid.ours == "restart_app":
        assert not steps & {"reset", "reboot", "replace"}


def test_what_asks_for_a_reset_or_for_support_is_some_faults() -> None:
    faults = XidCatalogue({}).codes(
        "uncorrectable_memory", "remap_recorded", "remap_failed", "gpu_lost", "nvlink", "nvlink_leveled", "pcie"
    )
    # What to do at once comes first, what to look into later behind a slash.
    at_once = {code: asked(xid.actions.get("nvidia", "").partition("/")[0]) for code, xid in XIDS.items()}
    asks = {code for code, steps in at_once.items() if steps & {"reset", "reboot", "inspect"}}
    assert asks - faults == {151, 156}, "a key's rotation, and a retired part, for which there is no fault"
    assert {46, 54, 61, 62, 109, 110, 142, 143, 158, 167, 169} <= faults
    assert not faults & {121, 157}, (
        "IGNORE: corrected errors of the link to the CPU; a retirement for which no part is left"
    )
    assert not faults & {8, 13, 31, 39, 43, 45, 69}, "a user's program that crashes"
    assert not faults & {38, 93, 141, 152, 153}, "IGNORE"


def test_a_site_overrules_class_and_action() -> None:
    given_ = OVERRIDES.validate_python(
        {63: {"class": "information"}, "94": {"action": "DRAIN"}, 999: {"class": "nvlink"}}
    )
    catalogue = XidCatalogue(given_)
    assert catalogue.of(63).group == "information"
    assert catalogue.of(94).action == ("DRAIN", SITE)
    assert catalogue.of(94).actions["nvidia"] == "RESTART_APP"
    assert 999 in catalogue.codes("nvlink")
    assert XidCatalogue({}).of(63).group == "remap_recorded", "the catalogue itself is as it was"


@pytest.mark.parametrize(
    "wrong",
    [{"x": {"class": "nvlink"}}, {63: {"class": "nonsense"}}, {63: {}}, {63: {"kind": "nvlink"}}, {63: 5}, [63]],
)
def test_what_a_site_gets_wrong_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        OVERRIDES.validate_python(wrong)


def _watch() -> XidWatch:
    fleet = Fleet(TOPOLOGY)
    layout = GpuLayout(fleet)
    layout.extend()
    watch = XidWatch({48, 79}, layout)
    watch.grow(2)
    return watch


def _gauge(watch: XidWatch, at: int, *values: float) -> None:
    watch.take_gauge(np.arange(2), np.full(2, at), np.array(values))


def _line(watch: XidWatch, at: int, code: int, bus: str = "01") -> None:
    watch.take_lines([LogRecord(at, "kernel", f"NVRM: Xid (PCI:0000:{bus}:00): {code}, text", node="v001")])


def test_the_gauges_first_reading_and_a_code_that_stays_are_no_news() -> None:
    watch = _watch()
    for at in (5000, 10_000, 15_000):
        _gauge(watch, at, 48, 0)
        assert watch.drain(at) == []


def test_a_change_of_the_gauge_is_news_between_its_readings() -> None:
    watch = _watch()
    _gauge(watch, 5000, 0, 0)
    _gauge(watch, 10_000, 0, 79)
    (event,) = watch.drain(10_000)
    assert (event.at, event.gpu, event.node, event.code, event.seen_in) == (7500, 1, "v001", 79, GAUGE)


@pytest.mark.parametrize("line_first", [True, False])
def test_line_and_gauge_are_one_event(line_first: bool) -> None:
    watch = _watch()
    _gauge(watch, 5000, 0, 0)
    if line_first:
        _line(watch, 6000, 48)
        first = watch.drain(10_000)
        _gauge(watch, 36_000, 48, 0)
    else:
        _gauge(watch, 9000, 48, 0)
        first = watch.drain(10_000)
        _line(watch, 11_000, 48)
    second = watch.drain(40_000)
    assert [(event.gpu, event.again) for event in first + second] == [(0, False), (0, True)]


def test_the_same_code_later_is_another_event() -> None:
    watch = _watch()
    _line(watch, 6000, 48)
    watch.drain(10_000)
    _line(watch, 20_000 + SAME_MS, 48)
    assert [event.again for event in watch.drain(25_000 + SAME_MS)] == [False]


def test_a_line_that_cannot_be_placed_is_reported_on_its_node_and_the_gauge_after_it_is_the_same() -> None:
    watch = _watch()
    _gauge(watch, 5000, 0, 0)
    _line(watch, 6000, 48, bus="99")
    (event,) = watch.drain(10_000)
    assert (event.gpu, event.node, event.address, event.seen_in) == (-1, "v001", "00000000:99:00.0", KERNEL)
    _gauge(watch, 11_000, 48, 0)
    assert [(event.gpu, event.again) for event in watch.drain(15_000)] == [(0, True)]


def test_codes_nobody_asked_for_and_lines_of_other_logs_are_not_reported() -> None:
    watch = _watch()
    _line(watch, 6000, 43)
    watch.take_lines([LogRecord(6000, "job", "NVRM: Xid (PCI:0000:01:00): 48, text", node="v001")])
    assert watch.drain(10_000) == []


def test_a_gauge_that_falls_back_to_0_is_noted() -> None:
    watch = _watch()
    _gauge(watch, 5000, 48, 0)
    _gauge(watch, 10_000, 0, 0)
    assert watch.cleared_at.tolist() == [10_000, -1]


def _counters(watch: XidWatch, at: int, **counted: float) -> list[tuple[int, int, str]]:
    """Let two GPUs report, the second with some counters (``TOTAL_79=1``); return the events: time, code, source."""
    valid = np.array([[False, True]])
    names = {f"DCGM_EXP_XID_ERRORS_{name}": value for name, value in counted.items()}
    watch.take(
        Batch(
            "dcgm",
            np.arange(2),
            np.full((1, 2), at),
            np.ones((1, 2), bool),
            {name: np.array([[0.0, value]]) for name, value in names.items()},
            dict.fromkeys(names, valid),
        ),
        0,
        slice(None),
    )
    events = watch.drain(at)
    assert all((event.node, event.gpu) == ("v001", 1) for event in events)
    return [(event.at, event.code, event.seen_in) for event in events]


def _heard(watch: XidWatch, until: int) -> None:
    for at in range(5000, until, 5000):
        assert _counters(watch, at) == []


def test_a_counter_that_begins_or_grows_is_news_each_time() -> None:
    watch = _watch()
    _heard(watch, 100_000)
    assert _counters(watch, 100_000, TOTAL_48=1) == [(97_500, 48, TOTAL)], "between the two readings"
    assert _counters(watch, 105_000, TOTAL_48=1) == []
    assert _counters(watch, 110_000, TOTAL_48=1) == []
    assert _counters(watch, 300_000, TOTAL_48=1) == []
    for at in range(305_000, 400_000, 5000):
        assert _counters(watch, at, TOTAL_48=1) == []
    assert _counters(watch, 400_000, TOTAL_48=2, TOTAL_79=1, TOTAL_13=1) == [(397_500, 48, TOTAL), (397_500, 79, TOTAL)]


def test_what_counters_stand_at_when_a_gpu_is_first_heard_is_no_news() -> None:
    watch = _watch()
    assert _counters(watch, 5000, TOTAL_79=3, COUNT_79=1) == []
    assert _counters(watch, 10_000, TOTAL_79=3, COUNT_79=1) == []
    assert _counters(watch, 15_000, TOTAL_79=4, COUNT_79=1) == [(12_500, 79, TOTAL)]


def test_a_window_from_which_an_error_falls_is_no_news_and_the_next_error_in_it_is() -> None:
    watch = _watch()
    _heard(watch, 100_000)
    assert _counters(watch, 100_000, COUNT_79=2) == [(97_500, 79, WINDOW)]
    for at in range(105_000, 400_000, 5000):
        assert _counters(watch, at, COUNT_79=2) == []
    assert _counters(watch, 400_000, COUNT_79=1) == []
    for at in range(405_000, 600_000, 5000):  # the window is empty, and the series ends
        assert _counters(watch, at) == []
    assert _counters(watch, 600_000, COUNT_79=1) == [(597_500, 79, WINDOW)]


def test_a_total_that_fails_to_come_for_a_while_is_no_news_and_one_of_an_exporter_started_anew_is() -> None:
    watch = _watch()
    _heard(watch, 100_000)
    assert len(_counters(watch, 100_000, TOTAL_79=3)) == 1
    for at in range(105_000, 300_000, 5000):
        assert _counters(watch, at) == []
    assert _counters(watch, 300_000, TOTAL_79=3) == []
    for at in range(305_000, 500_000, 5000):
        assert _counters(watch, at) == []
    assert _counters(watch, 500_000, TOTAL_79=1) == [(497_500, 79, TOTAL)]


def test_two_exporters_that_count_from_different_starts_make_no_events() -> None:
    watch = _watch()
    _heard(watch, 100_000)
    assert len(_counters(watch, 100_000, TOTAL_79=3)) == 1
    found = [_counters(watch, at, TOTAL_79=1 + 2 * (at // 5000 % 2)) for at in range(105_000, 400_000, 5000)]
    assert found == [[]] * len(found)


def test_line_gauge_and_counters_are_one_event() -> None:
    watch = _watch()
    _heard(watch, 100_000)
    _line(watch, 101_000, 79, bus="02")
    assert [event.again for event in watch.drain(105_000)] == [False]
    _gauge(watch, 130_000, 0, 79)
    watch.drain(130_000)
    watch.take(
        Batch("dcgm", np.array([1]), np.array([[131_000]]), np.ones((1, 1), bool),
              {f"{TOTAL}_79": np.ones((1, 1))}, {f"{TOTAL}_79": np.ones((1, 1), bool)}),
        0, slice(None),
    )  # fmt: skip
    assert [(event.seen_in, event.again) for event in watch.drain(135_000)] == [(TOTAL, True)]


def test_what_counters_stand_at_survives_a_snapshot_and_other_numbers_of_gpus() -> None:
    watch = _watch()
    _heard(watch, 100_000)
    assert len(_counters(watch, 100_000, TOTAL_79=3)) == 1
    again = _watch()
    again.load(*watch.snapshot())
    assert _counters(again, 400_000, TOTAL_79=3) == []
    assert len(_counters(again, 405_000, TOTAL_79=4)) == 1
