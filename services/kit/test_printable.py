"""Text that others wrote cannot steer a terminal, and all else of it stays."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from services.kit.printable import printable


@given(st.text())
def test_nothing_that_steers_is_left_and_nothing_else_is_changed(text: str) -> None:
    made = printable(text)
    assert not any(unicodedata.category(one) == "Cc" and one not in "\t\n" for one in made)
    assert not any(
        unicodedata.bidirectional(one) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        for one in made
    )
    assert printable(made) == made
    if text.isprintable():
        assert made == text


def test_an_escape_sequence_is_written_out() -> None:
    assert printable("up\x1b]0;owned\x07\tand\non \u202efig") == "up\\x1b]0;owned\\x07\tand\non \\u202efig"
