"""What a scenario leaves open, settled by the seed: so that another seed is another case of the same incident.

Anywhere in a scenario's jobs, happenings and distractors a value may be written ``{between: [a, b]}`` (numbers, or
offsets ``+HH:MM:SS``) or ``{one_of: [a, b, ...]}``. `settle` replaces each by a value drawn for its place in the file.
"""

from typing import Any

from services.recording.instants import parse_offset
from services.synth.randomness import generator


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
    return {key: settle(value, seed, f"{place}/{key}") for key, value in content.items()}


def _between(ends: Any, seed: int, place: str) -> int | float:
    if not isinstance(ends, list) or len(ends) != 2:
        raise ValueError(f"{place}: between needs two ends, as in [1, 3]")
    chance = generator(seed, f"vary {place}")
    if all(isinstance(end, int) for end in ends):
        return int(chance.integers(ends[0], ends[1] + 1))
    low, high = (parse_offset(end) / 1000 if isinstance(end, str) else float(end) for end in ends)
    return round(float(chance.uniform(low, high)), 3)
