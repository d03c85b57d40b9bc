"""Host lists as Slurm compresses them: ``gpu[01-04,07]-ib,login1`` and the names it stands for."""

import itertools
import re

MOST_HOSTS = 100_000
"""More names than any cluster has: a range beyond it is a damaged line, not a host list."""
_LONGEST = 200_000
_BRACKET = re.compile(r"\[([^\[\]]*)\]")


class HostListError(ValueError):
    """The text is no host list."""


def expand(text: str) -> list[str]:
    """Return the names a host list stands for, in its order, each once.

    HostListError: brackets do not match, a range is not of numbers or runs backwards, or there are more than
    `MOST_HOSTS` names.
    """
    if len(text) > _LONGEST:
        raise HostListError("a host list that is too long")
    names: dict[str, None] = {}
    for item in _items(text):
        for name in _expanded(item, MOST_HOSTS - len(names)):
            names[name] = None
    return list(names)


def _items(text: str) -> list[str]:
    """Split at the commas that are outside brackets."""
    items, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[begin:place])
            begin = place + 1
        if depth not in {0, 1}:
            raise HostListError(f"brackets that do not match in {text[:80]!r}")
    if depth:
        raise HostListError(f"brackets that do not match in {text[:80]!r}")
    items.append(text[begin:])
    return [item.strip() for item in items if item.strip()]


def _expanded(item: str, most: int) -> list[str]:
    """Return the names of one item: every combination of its brackets, the last one running fastest."""
    parts: list[list[str]] = []
    count, place = 1, 0
    for bracket in _BRACKET.finditer(item):
        numbers = _numbers(bracket[1])
        parts += [[item[place : bracket.start()]], numbers]
        place = bracket.end()
        count *= len(numbers)
        if count > most:
            raise HostListError(f"more than {MOST_HOSTS} hosts in {item[:80]!r}")
    parts.append([item[place:]])
    if any(character.isspace() or not character.isprintable() for character in item):
        raise HostListError(f"{item[:80]!r} is no host name")
    return ["".join(combination) for combination in itertools.product(*parts)]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdecimal()) or (dash and not (last.isascii() and last.isdecimal())):
            raise HostListError(f"{part[:40]!r} is no number and no range of numbers")
        if len(first) > 12 or len(last) > 12:
            raise HostListError(f"{part[:40]!r} is no range of hosts")
        low, high = int(first), int(last or first)
        if high < low or high - low + len(numbers) > MOST_HOSTS:
            raise HostListError(f"{part[:40]!r} is no range of hosts")
        numbers.extend(f"{number:0{len(first)}d}" for number in range(low, high + 1))
    return numbers
