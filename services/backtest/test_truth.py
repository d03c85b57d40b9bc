"""Tickets: read as tools write them, matched by time, host and words, and corrected by hand."""

from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from detectors.contract import Finding
from detectors.faults import faults
from services.backtest.judged import Judged, judged
from services.backtest.test_windows import alarm
from services.backtest.tickets import Ticket, read_tickets
from services.backtest.truth import Correction, Places, Truth, faults_in, of_labels, of_tickets, read_corrections
from services.kit.errors import UserError
from services.recording.model import Label, Nic, Node, Switch, Topology

MINUTE = 60_000
TOPOLOGY = Topology(
    nodes=[Node(name="n1", rack="r1", nics=[Nic(nic="mlx5_0", switch="s1", port="e8")]), Node(name="n2", rack="r1")],
    switches=[Switch(name="s1")],
)


def written(folder: Path, text: str) -> Path:
    path = folder / "tickets.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_pagerduty_and_jira_write_is_read(tmp_path: Path) -> None:
    pager = "id,incident_number,description,created_on,resolved_on\n"
    pager += "Q1,812,n1: GPU off the bus,2026-03-04T09:12:00Z,2026-03-04T10:00:00Z\n"
    (one,) = read_tickets(written(tmp_path, pager))
    assert (one.id, one.words, one.opened_at) == ("Q1", "n1: GPU off the bus", 1772615520000)
    assert one.closed_at == one.opened_at + 48 * MINUTE
    jira = "Summary,Issue key,Created,Resolved,Description\nslow job,OPS-7,04/Mar/26 9:12 AM,,on n2\n"
    (one,) = read_tickets(written(tmp_path, jira), ZoneInfo("Europe/Zurich"))
    assert (one.id, one.closed_at, one.words) == ("OPS-7", None, "slow job on n2")
    assert one.opened_at == 1772615520000 - 60 * MINUTE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,title\n1,x\n", "no column says when a ticket was opened; there are id, title"),
        ("id,opened\n1,2026-03-04T09:12:00Z\n2,yesterday\n", "line 3: 'yesterday' is not a time"),
        ("id,opened,fault\n1,2026-03-04T09:12:00Z,gremlins\n", "line 2: no fault 'gremlins'"),
        ("id,opened,closed\n1,2026-03-04T09:12:00Z,2026-03-04T09:11:00Z\n", "line 2: closed before it was opened"),
        ("id,opened\n1,2026-03-04T09:12:00Z\n1,2026-03-04T09:13:00Z\n", "ticket 1 is there twice"),
        ("id,opened,gpu_hours_lost\n1,2026-03-04T09:12:00Z,lots\n", "line 2: 'lots' is no number"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_tickets(written(tmp_path, text), UTC)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("GPU has fallen off the bus on n1", "gpu_lost"),
        ("kernel: NVRM: Xid (PCI:0000:07:00): 79, pid=1 -- see xid 79", "gpu_lost"),
        ("XID 94 storm? no: Xid: 48", "ecc_uncorrectable"),
        ("port flapping on leaf", "link_flap"),
        ("power_throttle again", "power_throttle"),
        ("please add my ssh key", None),
        ("suburban", None),
    ],
)
def test_words_name_a_fault(text: str, fault: str | None) -> None:
    assert next(iter(faults_in(text)), None) == fault


def test_every_fault_goes_to_whom_alertmanager_routes_it() -> None:
    text = (Path(__file__).parents[2] / "alert-rules" / "alertmanager.yaml").read_text(encoding="utf-8")
    live = next(one for one in yaml.safe_load(text)["route"]["routes"] if one["receiver"] == "tickets")
    (pages,) = (one for one in live["routes"] if one["matchers"] == ['severity="page"'])
    teams = dict.fromkeys(faults(), pages["receiver"].removeprefix("page-"))
    for route in pages["routes"]:
        listed = route["matchers"][0].partition("=~")[2].strip('"').split("|")
        teams |= {fault: route["receiver"].removeprefix("page-") for fault in listed if fault in teams}
    assert {name: facts.team for name, facts in faults().items()} == teams


def ticket(words: str = "gpu fallen off the bus", host: str = "n1.cluster.example", **more: Any) -> Ticket:
    return replace(Ticket("t1", 200 * MINUTE, 260 * MINUTE, None, host, words), **more)


def verdicts(tickets: list[Ticket], findings: list[Finding], **corrections: Correction) -> Judged:
    truths = of_tickets(tickets, findings, Places(TOPOLOGY), 120 * MINUTE, corrections)
    return judged(findings, truths)


def test_a_ticket_is_matched_by_time_host_and_words() -> None:
    raised = alarm(190 * MINUTE)
    (one,) = verdicts([ticket()], [raised]).answers
    assert (one.verdict, one.truth.how, one.against_s) == ("caught", "time, host, words", -600.0)
    for others in ([alarm(70 * MINUTE)], [alarm(190 * MINUTE, node="n2")], [alarm(261 * MINUTE)]):
        found = verdicts([ticket()], others)
        assert ([one.verdict for one in found.answers], found.false) == (["missed"], others)


def test_a_ticket_whose_words_say_something_else_is_matched_by_time_and_host_alone() -> None:
    raised = alarm(190 * MINUTE)
    for words in ("n1 is slow_", "the port is flapping"):
        (one,) = verdicts([ticket(words)], [raised]).answers
        assert (one.verdict, one.truth.how) == ("caught", "time and host alone")
    assert [one.verdict for one in verdicts([ticket("n1: please update the BIOS")], []).answers] == ["unclear"]
    assert [one.verdict for one in verdicts([ticket("password?", "mars")], [raised]).answers] == ["outside"]


def test_two_tickets_about_one_trouble_are_caught_by_one_alert() -> None:
    raised = [alarm(190 * MINUTE), alarm(195 * MINUTE, 194 * MINUTE)]
    found = verdicts([ticket(), ticket(id="t2", opened_at=210 * MINUTE)], raised[:1])
    assert [one.verdict for one in found.answers] == ["caught", "caught"]
    assert found.false == []
    assert verdicts([ticket()], raised).repeats == 1


def test_a_corrected_match_holds(tmp_path: Path) -> None:
    path = tmp_path / "matches.csv"
    path.write_text("of,ticket,correct\ndefaults,t1,node=n2\ndefaults,t2,link_flap\ndefaults,t3,none\nd,t4,\n")
    corrected = read_corrections(path)
    assert corrected == {
        "t1": Correction(None, {"node": "n2"}),
        "t2": Correction("link_flap"),
        "t3": Correction(apart=True),
    }
    raised = [alarm(190 * MINUTE)]
    assert [one.verdict for one in verdicts([ticket()], raised, **corrected).answers] == ["missed"]
    assert [one.verdict for one in verdicts([ticket(id="t2")], raised, **corrected).answers] == ["missed"]
    assert [one.verdict for one in verdicts([ticket(id="t3")], raised, **corrected).answers] == ["outside"]
    path.write_text("of,ticket,correct\nd,t1,gremlins\n")
    with pytest.raises(UserError, match="line 2: 'gremlins' is no fault"):
        read_corrections(path)


def test_an_alert_of_a_rule_that_names_no_fault_answers_for_what_it_is_about() -> None:
    named = replace(alarm(190 * MINUTE), fault="MyNodeAlert", detector="MyNodeAlert")
    (one,) = verdicts([ticket()], [named]).answers
    assert (one.verdict, one.truth.label.fault) == ("caught", "MyNodeAlert")
    label = Label(id="f1", fault="gpu_lost", entity={"node": "n1"}, onset=180 * MINUTE, end=260 * MINUTE, within_s=3600)
    found = judged([named], of_labels([label]))
    assert ([one.verdict for one in found.answers], found.false) == (["caught"], [])


def test_labels_count_as_the_scorer_counts_them() -> None:
    def labelled(name: str, **more: object) -> Truth:
        fields = {
            "id": name,
            "fault": "gpu_lost",
            "entity": {"node": "n1"},
            "onset": 0,
            "end": 9 * MINUTE,
            "within_s": 300,
        }
        return of_labels([Label.model_validate(fields | more)])[0]

    truths = [
        labelled("f1"),
        labelled("f2", entity={"node": "n2"}),
        labelled("d", distractor=True),
        labelled("o", entity={"node": "x"}, optional=True),
    ]
    found = judged([alarm(MINUTE), alarm(8 * MINUTE, node="n3")], truths)
    assert [(one.truth.label.id, one.verdict) for one in found.answers] == [
        ("f1", "caught"), ("f2", "missed"), ("o", "not required"),
    ]  # fmt: skip
    assert [one.entity for one in found.false or []] == [{"node": "n3"}]
    assert judged([alarm(1)], None).false is None
