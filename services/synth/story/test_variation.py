import pytest

from services.synth.story.variation import name, settle


def test_a_name_is_one_value_wherever_it_stands() -> None:
    content = {"node": "$victim", "nodes": "v001..v086, not $victim", "at": "$crash", "cost": "5 per cent"}
    named = name(content, {"victim": "v041", "crash": 61.5})
    assert named == {"node": "v041", "nodes": "v001..v086, not v041", "at": 61.5, "cost": "5 per cent"}


def test_a_name_without_value_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\$gremlin: not under let"):
        name(["$gremlin"], {})


def test_sums_add_numbers_offsets_and_what_is_drawn() -> None:
    assert settle({"at": {"sum": [60.5, "+00:01:00"]}}, 1) == {"at": 120.5}
    drawn = settle({"sum": [{"between": [1.0, 2.0]}, 100]}, 3)
    assert 101.0 <= drawn <= 102.0
    with pytest.raises(ValueError, match="sum needs numbers"):
        settle({"sum": [1, None]}, 1)
