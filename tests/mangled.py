"""Damaged bytes: a good sample that is cut, flipped, repeated, filled with nonsense, as a fuzz test wants them."""

from hypothesis import strategies as st

_NONSENSE = (
    b"",
    b"\x00",
    b"\xff\xfe\x80",
    b"9" * 400,
    b"-1",
    b"1e999",
    b"nan",
    b"NaN",
    b"Infinity",
    b"\\ud800",
    b"9999-12-31T23:59:59",
    b"0001-01-01T00:00:00+23:59",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"n[0-999999999]",
    b"|",
    b"\r\n",
    "ٳ٤\u2028é".encode(),
    b'"',
    b"null",
)


@st.composite
def mangled(draw: st.DrawFn, sample: bytes) -> bytes:
    """Return ``sample`` after one to six damages, each at a place of its own."""
    data = sample
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, len(data)))
        last = min(len(data), first + draw(st.integers(0, 60)))
        kind = draw(
            st.sampled_from(("flip", "cut", "drop", "insert", "replace", "repeat lines", "swap lines", "random"))
        )
        if kind == "flip" and first < len(data):
            data = data[:first] + bytes([data[first] ^ draw(st.integers(1, 255))]) + data[first + 1 :]
        elif kind == "cut":
            data = data[:first]
        elif kind == "drop":
            data = data[:first] + data[last:]
        elif kind == "insert":
            data = data[:first] + draw(st.sampled_from(_NONSENSE)) + data[first:]
        elif kind == "replace":
            data = data[:first] + draw(st.sampled_from(_NONSENSE)) + data[last:]
        elif kind == "random":
            data = data[:first] + draw(st.binary(max_size=40)) + data[last:]
        else:
            lines = data.splitlines(keepends=True)
            if lines:
                one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
                if kind == "repeat lines":
                    lines.insert(other, lines[one])
                else:
                    lines[one], lines[other] = lines[other], lines[one]
                data = b"".join(lines)
    return data
