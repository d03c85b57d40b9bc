"""What a scenario leaves open, settled by the seed: so that another seed is another case of the same incident.

Anywhere in a scenario's jobs, happenings and distractors a value may be written ``{between: [a, b]}`` (numbers, or
offsets ``+HH:MM:SS``) or ``{one_of: [a, b, ...]}``. `settle` replaces each by a value drawn for its place in the file.

What is needed at several places is drawn once, under `let`, and named with a dollar sign: ``node: $victim``, or within
a text, ``nodes: "v001..v086, not $victim"``. ``{sum: [$crash, 40]}`` adds numbers and offsets.
"""

import re
from collections.abc import Mapping
from typing import Any

from services.recording.instants import parse_offset
from services.synth.randomness import generator

_NAMED = re.compile(r"\$(\w+)")


def settle(content: Any, seed: int, place: str = "") -> Any:
    """Return a scenario's content with every open value drawn. ValueError: a choice that is none."""
    if isinstance(content, list):
        return [settle(item, seed, f"{place}/{number}") for number, item in enumerate(content)]
    if not isinstance(content, dict):
        return content
    if set(content) == {"between"}:
        return _between(content["between"], seed, place)
    if set(content) == {"one_of"}:
        options = content["one_of"]
        if not isinstance(options, list) or not options:
            raise ValueError(f"{place}: one_of needs a list of values")
        return options[int(generator(seed, f"vary {place}").integers(len(options)))]
    if set(content) == {"sum"}:
        return _sum([settle(item, seed, f"{place}/{number}") for number, item in enumerate(content["sum"])], place)
    return {key: settle(value, seed, f"{place}/{key}") for key, value in content.items()}


def name(content: Any, values: Mapping[str, Any]) -> Any:
    """Return a scenario's content with every ``$name`` replaced by its value. ValueError: a name that has none."""
    if isinstance(content, list):
        return [name(item, values) for item in content]
    if isinstance(content, dict):
        return {key: name(value, values) for key, value in content.items()}
    if not isinstance(content, str) or "$" not in content:
        return content
    whole = _NAMED.fullmatch(content)
    return _value(whole, values) if whole else _NAMED.sub(lambda found: str(_value(found, values)), content)


def _value(found: re.Match[str], values: Mapping[str, Any]) -> Any:
    if found[1] not in values:
        raise ValueError(f"${found[1]}: not under let")
    return values[found[1]]


def _sum(parts: list[Any], place: str) -> float:
    try:
        return sum(parse_offset(part) / 1000 if isinstance(part, str) else float(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: sum needs numbers and offsets") from error


def _between(ends: Any, seed: int, place: str) -> int | float:
    if not isinstance(ends, list) or len(ends) != 2:
        raise ValueError(f"{place}: between needs two ends, as in [1, 3]")
    chance = generator(seed, f"vary {place}")
    if all(isinstance(end, int) for end in ends):
        return int(chance.integers(ends[0], ends[1] + 1))
    low, high = (parse_offset(end) / 1000 if isinstance(end, str) else float(end) for end in ends)
    return round(float(chance.uniform(low, high)), 3)
