"""What libyaml reads is what PyYAML reads, and whatever nests is an error and not the end of the process."""

from pathlib import Path

import pytest
import yaml

from services.kit.documents import _DEEPEST, NOT_YAML, _deepest, parse_yaml, read_yaml
from services.kit.errors import UserError
from services.kit.shipped import shipped
from tests.mangled import fuzzed

LIBRARY = shipped("replay-data")

SAMPLES = tuple(
    (LIBRARY / name).read_bytes() for name in ("vela-power-brake/scenario.yaml", "small/vela-healthy/recording.yaml")
)
NESTED = [
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "{a: " * 100_000 + "1" + "}" * 100_000,
    "- " * 100_000 + "1",
    "? " * 100_000 + "1",
    "".join(f"{' ' * depth}a:\n" for depth in range(5000)),
    "".join(f"{' ' * depth}a:\n{' ' * depth}-\n" for depth in range(2500)),
]


@pytest.mark.parametrize("text", NESTED, ids=lambda text: text[:6].strip())
def test_what_nests_too_deep_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"deep\.yaml: not YAML"):
        read_yaml(path)


@pytest.mark.parametrize("path", sorted(LIBRARY.glob("**/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_library_is_read_the_quick_way_and_says_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert _deepest(text) <= _DEEPEST
    assert parse_yaml(text) == yaml.safe_load(text)


@fuzzed(*SAMPLES)
def test_what_pyyaml_reads_or_refuses_is_read_alike_or_refused(content: bytes) -> None:
    text = content.decode(errors="replace")
    try:
        expected = yaml.safe_load(text)
    except NOT_YAML:
        with pytest.raises(NOT_YAML):
            parse_yaml(text)
        return
    assert repr(parse_yaml(text)) == repr(expected), "NaN equals nothing"


def test_an_error_shows_the_line() -> None:
    with pytest.raises(yaml.YAMLError, match=r"(?s)line 2.*b: \]"):
        parse_yaml("a: 1\nb: ]\n")
