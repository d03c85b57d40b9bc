"""Names and values of labels (v2's symbols), each with a number that stays the same from request to request."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from services.gateway.numbers import Ints, Numbers
from services.gateway.protobuf import MalformedError

_AT_ONCE = 10_000
"""Keys that are looked at together: some 3 MB."""


class Symbols:
    """Gives texts their numbers; when there are more than `most`, it is time for `keep`."""

    def __init__(self, most: int = 1_000_000) -> None:
        self._most = most
        self._texts: Numbers[bytes] = Numbers()

    def numbers(self, symbols: Sequence[bytes]) -> Ints:
        """Return the numbers of texts; raise MalformedError where one is not UTF-8."""
        known = self._texts.of
        for symbol in symbols:
            if symbol not in known:
                try:
                    symbol.decode()
                except UnicodeDecodeError:
                    raise MalformedError(f"a label is not UTF-8: {symbol[:60]!r}") from None
                self._texts.number(symbol)
        return np.fromiter((known[symbol] for symbol in symbols), np.int64, len(symbols))

    def text(self, number: int) -> str:
        """Return the text of a number."""
        return self._texts.keys[number].decode()

    @property
    def full(self) -> bool:
        """Return whether so many texts are known that some should be forgotten."""
        return len(self._texts.of) > self._most

    def keep(self, keys: Iterable[bytes]) -> bool:
        """Forget the texts that are in none of these keys of series; return whether a sixteenth is free then.

        Their numbers are given to other texts: to be called between requests only.
        """
        used = np.zeros(len(self._texts.keys), np.bool_)
        left = iter(keys)
        while some := list(islice(left, _AT_ONCE)):
            used[np.frombuffer(b"".join(some), np.int64)] = True
        self._texts.keep(used)
        return len(self._texts.of) <= self._most - self._most // 16
