"""Damaged bytes: a good sample that is cut, flipped, repeated, filled with nonsense; what every parser must survive."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.importers.contract import Report
from services.recording.validate import validate_recording

FUZZ = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

_NONSENSE = (
    b"", b"\x00", b"\xff\xfe\x80", b"\xed\xa0\x80", b'"\\ud800"', b"9" * 400, b"-1", b"-0", b"0x", b"1e999", b"-1e999",
    b"nan", b"NaN", b"Infinity", b"99999999999999999999", b"[" * 3000, b'{"a":' * 3000, b"n[0-999999999]", b"|", b" : ",
    b'"', b"\n", b"\r", b"\r\n", "ٳ٤\u2028é\u202e²".encode(), b"null", b"true", b"{}", b"[]",
    b"[ 9999999999.999999]", b"Feb 30 25:61:61", b"1970-01-01T00:00:00Z", b"9999-12-31T23:59:59",
    b"0001-01-01T00:00:00+23:59",
)  # fmt: skip
_DAMAGES = (
    "flip",
    "cut",
    "drop",
    "insert",
    "replace",
    "random",
    "digits",
    "repeat bytes",
    "repeat lines",
    "swap lines",
)


@st.composite
def mangled(draw: st.DrawFn, sample: bytes) -> bytes:
    """Return ``sample`` after one to six damages, each at a place of its own."""
    data = sample
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, len(data)))
        last = min(len(data), first + draw(st.integers(0, 60)))
        kind = draw(st.sampled_from(_DAMAGES))
        if kind == "flip" and first < len(data):
            data = data[:first] + bytes([data[first] ^ draw(st.integers(1, 255))]) + data[first + 1 :]
        elif kind == "cut":
            data = data[: max(first, 1)]
        elif kind == "drop":
            data = data[:first] + data[last:]
        elif kind == "insert":
            data = data[:first] + draw(st.sampled_from(_NONSENSE)) + data[first:]
        elif kind == "replace":
            data = data[:first] + draw(st.sampled_from(_NONSENSE)) + data[last:]
        elif kind == "random":
            data = data[:first] + draw(st.binary(max_size=40)) + data[last:]
        elif kind == "digits":
            data = data[:first] + str(draw(st.integers(-(2**70), 2**70))).encode() + data[last:]
        elif kind == "repeat bytes":
            data = data[:first] + data[max(0, first - 400) : first] * draw(st.integers(1, 3)) + data[first:]
        elif kind.endswith("lines") and (lines := data.splitlines(keepends=True)):
            one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
            if kind == "repeat lines":
                lines.insert(other, lines[one])
            else:
                lines[one], lines[other] = lines[other], lines[one]
            data = b"".join(lines)
    return data


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
