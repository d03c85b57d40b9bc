"""A score that was written to a file and read again is the same score."""

import json
from dataclasses import replace

from services.score.incidents import IncidentTally
from services.score.matching import judge
from services.score.stored import from_json, to_json
from services.score.suite import Scorecard, Scored
from services.score.tally import Tally, manners
from services.score.test_matching import finding, label


def scored() -> Scored:
    labels = [label(job_id="812"), label(2000, 2100), label(3000, 3100, id="maybe", optional=True)]
    findings = [finding(110), finding(150), finding(3010), finding(9000)]
    outcomes = judge(findings, labels)
    good = manners(findings, labels, outcomes, {"812": {"n1"}}, 10_000_000)
    controls = {"random": Tally(hits=1, misses=2, delays_s=[3.5])}
    incidents = IncidentTally(labelled=2, reported=1, wrong=["a: gpu_lost is the root"])
    return Scored("a-recording", 7, "vela", 0.25, outcomes, good, controls, {"dcgm": 5.0}, incidents)


def test_it_comes_back_as_it_was() -> None:
    before = scored()
    after = from_json(json.loads(json.dumps(to_json(before))))
    slim = [
        replace(one, finding=replace(one.finding, recommended_action="", evidence={})) if one.finding else one
        for one in before.outcomes
    ]
    assert after == replace(before, outcomes=slim)
    assert Scorecard([after]).as_json() == Scorecard([before]).as_json()


def test_controls_of_several_recordings_add_up() -> None:
    total = Scorecard([scored(), scored()]).controls["random"]
    assert (total.hits, total.misses, total.delays_s) == (2, 4, [3.5, 3.5])
