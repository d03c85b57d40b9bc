from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from detectors import registry
from detectors.engine.engine import Engine
from detectors.power_throttle.detector import PowerThrottle
from detectors.registry import BUDGET, XIDS, RegistryError, choose, discover


def test_every_folder_with_a_detector_yaml_is_found() -> None:
    assert discover()["power_throttle"] is PowerThrottle


def test_the_defaults_are_those_of_detector_yaml() -> None:
    choices = dict(choose())
    config = choices[PowerThrottle].model_dump(exclude={"calibration", BUDGET, XIDS})
    assert config == {name: default.value for name, default in PowerThrottle.spec.defaults.items()}


def test_the_budget_is_shared_out_among_the_detectors() -> None:
    shares = [kind.spec.budget_share for kind in discover().values()]
    assert sum(shares) >= 1 - 1e-9, "part of the budget is nobody's"
    shared = [config for kind, config in choose({BUDGET: 2}) if kind.spec.budget_share]
    assert sum(config.false_alarms_per_100_node_days for config in shared) == pytest.approx(2)
    with pytest.raises(RegistryError, match=BUDGET):
        choose({BUDGET: 0})


def test_what_a_site_says_of_xids_is_one_setting_of_all_detectors() -> None:
    overrides = {121: {"class": "gpu_lost"}}
    assert {tuple(config.xid_overrides) for _, config in choose({XIDS: overrides})} == {("121",)}
    with pytest.raises(RegistryError) as caught:
        choose({XIDS: {121: {"klass": "gpu_lost"}}})
    assert [problem for problem in caught.value.problems if "XID 121" in problem] == caught.value.problems
    assert len(caught.value.problems) == 1


def test_what_a_new_detector_takes_of_the_budget_is_taken_from_all_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = registry.allowances(2)

    class New(PowerThrottle):
        spec = PowerThrottle.spec.model_copy(update={"budget_share": 0.25})

    known = {**discover(), "new": New}
    monkeypatch.setattr(registry, "discover", lambda: known)
    after = registry.allowances(2)
    assert sum(after.values()) == pytest.approx(sum(before.values())) == pytest.approx(2)
    assert after.pop("new") == pytest.approx(2 * 0.25 / 1.25)
    assert after == {name: pytest.approx(share / 1.25) for name, share in before.items()}


def test_a_folder_that_python_does_not_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "detector.yaml").write_text("name: new\n", encoding="utf-8")
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    with pytest.raises(RegistryError, match=r"detectors\.new: .*make an empty one"):
        discover.__wrapped__()


def test_an_override_counts_and_a_detector_can_be_left_out() -> None:
    (_, config), *_ = [c for c in choose({"power_throttle": {"confirm_readings": 3}}) if c[0] is PowerThrottle]
    assert config.model_dump()["confirm_readings"] == 3
    assert PowerThrottle not in dict(choose({"power_throttle": {"enabled": False}}))


def test_everything_that_is_wrong_is_listed() -> None:
    wrong: dict[str, Any] = {
        "power_throttel": {},
        "power_throttle": {"clock_ratio": 1.5, "colour": "red", "confirm_readings": "many", "enabled": "perhaps"},
    }
    with pytest.raises(RegistryError) as raised:
        choose(wrong)
    text = str(raised.value)
    for name in ("power_throttel", "clock_ratio", "colour", "confirm_readings", "enabled"):
        assert name in text
    assert len(raised.value.problems) == 5


def test_what_is_fixed_now_is_refused_and_the_message_says_so() -> None:
    with pytest.raises(RegistryError) as raised:
        choose({"straggler": {"release_s": 270, "colour": "red"}})
    assert raised.value.problems == [
        "straggler.release_s: no setting any more, fixed at 270 s since 0.1.0: remove it",
        "straggler.colour: no such setting",
    ]


def test_a_class_that_does_not_keep_to_its_yaml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = PowerThrottle.spec
    defaults = {name: default for name, default in spec.defaults.items() if name != "confirm_readings"}
    broken = spec.model_copy(update={"name": "other", "reads": ("dcgm",), "defaults": defaults})

    class Broken(PowerThrottle):
        pass

    Broken.spec = broken
    problems = registry._disagreements("power_throttle", Broken)
    text = "\n".join(problems)
    assert "other" in text
    assert "no default for confirm_readings" in text
    assert "fields of bmc" in text


def test_what_is_inferred_can_be_calibrated() -> None:
    """A detector with a share of the budget has tails where the engine looks, and begins with a site's own."""
    usual = {"x": {"bins": [3], "counts": [5.0]}}
    shared = {kind.spec.name for kind, _ in choose() if kind.spec.budget_share}
    choices = choose(calibration=dict.fromkeys(shared, usual))
    known = Engine(None, choices, ("dcgm",)).calibration()
    assert set(known) == shared
    assert all(tails["x"] == usual["x"] for tails in known.values())
