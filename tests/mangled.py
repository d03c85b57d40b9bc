"""Damaged bytes: a good sample that is cut, flipped, spliced, filled with nonsense; what every parser must survive.

A test under `fuzzed` is a property test in `make test`, and a target of `make fuzz` (tests/fuzzing.py), which finds it
by its mark. What fuzzing found once is in tests/fuzzed/, and tried first ever after.
"""

import copy
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.importers.contract import Report
from services.recording.validate import validate_recording

FUZZ = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
FOUND = Path(__file__).with_name("fuzzed")

_NONSENSE = (
    b"", b"\x00", b"\xff\xfe\x80", b"\xed\xa0\x80", b'"\\ud800"', b"9" * 400, b"-1", b"-0", b"0x", b"1e999", b"-1e999",
    b"nan", b"NaN", b"Infinity", b"99999999999999999999", b"[" * 3000, b'{"a":' * 3000, b"n[0-999999999]", b"|", b" : ",
    b'"', b"\n", b"\r", b"\r\n", "ٳ٤\u2028é\u202e²".encode(), b"null", b"true", b"{}", b"[]",
    b"[ 9999999999.999999]", b"Feb 30 25:61:61", b"1970-01-01T00:00:00Z", b"9999-12-31T23:59:59",
    b"0001-01-01T00:00:00+23:59",
)  # fmt: skip
_NUMBERS = (
    "0", "-0", "-1", "1e308", "-1e308", "5e-324", "NaN", "Infinity", "9" * 400, "0.1e-9999", "07", "1_0", "0x7f", "²",
    *(str(sign * 2**bits + one) for bits in (31, 32, 53, 63, 64, 70) for sign in (1, -1) for one in (-1, 0)),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, -(2**70), 1e308, "", "x", "\ud800", "\x00", [], {}, [[]], {"": None}, "9" * 400,
    "9999-12-31T23:59:59Z", "n[0-999999999]", [None] * 50,
)  # fmt: skip
_ENCODINGS = ("utf-16", "utf-16-le", "utf-8-sig", "latin-1", "cp037")
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[^\s,;:=|\"'{}\[\]<>()]+")


def _anywhere(data: bytes, rng: Random) -> bytes:
    """Damage bytes wherever they are."""
    first = rng.randint(0, len(data))
    last = min(len(data), first + rng.randint(0, 60))
    kind = rng.randint(0, 6)
    if kind == 0 and first < len(data):
        return data[:first] + bytes([data[first] ^ rng.randint(1, 255)]) + data[first + 1 :]
    if kind == 1:
        return data[: max(first, 1)]
    if kind == 2:
        return data[:first] + data[last:]
    if kind == 3:
        return data[:first] + rng.choice(_NONSENSE) + data[rng.choice((first, last)) :]
    if kind == 4:
        return data[:first] + bytes(rng.randint(0, 255) for _ in range(rng.randint(0, 40))) + data[last:]
    if kind == 5:
        return data[:first] + str(rng.randint(-(2**70), 2**70)).encode() + data[last:]
    return data[:first] + data[max(0, first - 400) : first] * rng.randint(1, 3) + data[first:]


def _number(data: bytes, rng: Random) -> bytes:
    """Put a number at the edge of what can be written in the place of another."""
    return _put(data, _NUMBER, rng, lambda _: rng.choice(_NUMBERS).encode())


def _word(data: bytes, rng: Random) -> bytes:
    """Put a word of the sample in the place of another."""
    return _put(data, _WORD, rng, lambda found: rng.choice(found)[0])


def _put(data: bytes, what: re.Pattern[bytes], rng: Random, by: Callable[[list[re.Match[bytes]]], bytes]) -> bytes:
    if not (found := list(what.finditer(data))):
        return data
    place = rng.choice(found)
    return data[: place.start()] + by(found) + data[place.end() :]


def _lines(data: bytes, rng: Random) -> bytes:
    """Repeat, swap, drop or join lines."""
    if not (lines := data.splitlines(keepends=True)):
        return data
    one, other, kind = rng.randrange(len(lines)), rng.randrange(len(lines)), rng.randint(0, 3)
    if kind == 0:
        lines.insert(other, lines[one])
    elif kind == 1:
        lines[one], lines[other] = lines[other], lines[one]
    elif kind == 2:
        del lines[min(one, other) : max(one, other)]
    else:
        lines[one] = lines[one].rstrip(b"\r\n")
    return b"".join(lines)


def _encoding(data: bytes, rng: Random) -> bytes:
    """Write the same text in another encoding, or with other ends of lines."""
    name = rng.choice((*_ENCODINGS, ""))
    return data.decode(errors="replace").encode(name, "replace") if name else data.replace(b"\n", b"\r\n")


def _document(data: bytes, rng: Random) -> bytes:
    """Change a place of a JSON document: of the whole, or of a line that is one."""
    lines = data.splitlines(keepends=True)
    number = rng.randrange(len(lines) + 1) if lines else 0
    part = data if number == len(lines) else lines[number]
    try:
        document = json.loads(part)
        places = list(_places(document))
    except (ValueError, RecursionError):
        return data
    if not places:
        return data
    (holder, key), (there, at), kind = rng.choice(places), rng.choice(places), rng.randint(0, 3)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = [holder[key]]
    else:
        holder[key] = copy.deepcopy(there[at] if kind == 2 else rng.choice(_VALUES))
    changed = json.dumps(document).encode()
    return changed if number == len(lines) else b"".join([*lines[:number], changed, b"\n", *lines[number + 1 :]])


def _places(document: Any) -> Iterable[tuple[Any, Any]]:
    """Return every (holder, key or index) of a document."""
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else []
    for key in keys:
        yield document, key
        yield from _places(document[key])


_DAMAGES = (_anywhere, _anywhere, _number, _word, _lines, _document, _encoding)


def damaged(data: bytes, rng: Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Return `data` after one to six damages; a piece of one of `others` may have been put into it first."""
    if others and not rng.randint(0, 7):
        other, first = rng.choice(others), rng.randint(0, len(data))
        data = data[:first] + other[rng.randint(0, len(other)) :] + data[first:] * rng.randint(0, 1)
    for _ in range(rng.randint(1, 6)):
        data = rng.choice(_DAMAGES)(data, rng)
    return data


def fuzzed(*samples: bytes) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of `content` a test of `samples` damaged in every way, and of what was found by fuzzing before.

    The function returns where the content is read or refused as it should be, and raises otherwise.
    """
    contents = st.builds(
        damaged, st.sampled_from(samples), st.randoms(use_true_random=False), st.just(samples if samples[1:] else ())
    )

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        found = given(content=contents)(test)
        for path in kept(test):
            found = example(content=path.read_bytes())(found)
        made: Callable[..., None] = pytest.mark.fuzz(*samples)(FUZZ(found))
        return made

    return decorate


def kept(test: Callable[..., None]) -> list[Path]:
    """Return what fuzzing found for a test: tests/fuzzed/MODULE.FUNCTION/NAME."""
    return sorted((FOUND / f"{Path(test.__code__.co_filename).stem}.{test.__name__}").glob("*"))


def survives(convert: Callable[[Path, Path], Report], files: dict[str, bytes]) -> None:
    """Convert a folder of these files: it must give a clean recording or a UserError, and nothing else."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        for name, content in files.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            convert(source, Path(folder) / "out")
        except UserError:
            assert not (Path(folder) / "out").exists()
            return
        assert validate_recording(Path(folder) / "out") == []
