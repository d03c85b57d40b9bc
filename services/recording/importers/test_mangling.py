"""What every parser must survive: bytes of a real source, mangled. Other tests of importers use this."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.importers.contract import Report
from services.recording.validate import validate_recording

FUZZ = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

_SPLINTERS = (
    b"\x00", b"\xff\xfe\x80", b"\xed\xa0\x80", b'"\\ud800"', b"9" * 400, b"-1e999", b"NaN", b"99999999999999999999",
    b"[" * 3000, b'{"a":' * 2000, b"\n", b"\r", b"|", b" : ", b"[ 9999999999.999999]", b"Feb 30 25:61:61", b"null",
    b"{}", b"[]", b"true", b"0x", b"-0", b"1970-01-01T00:00:00Z", b"9999-12-31T23:59:59Z", b"\xe2\x80\xae", b"\xc2\xb2",
)  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn, sample: bytes) -> bytes:
    """Return the sample with some of its bytes flipped, cut, replaced, repeated or moved."""
    content = bytearray(sample)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.integers(0, 60)))
        kind = draw(st.sampled_from(("flip", "cut", "insert", "replace", "repeat", "truncate", "digits")))
        if kind == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[at:end]
        elif kind == "insert":
            content[at:at] = draw(st.sampled_from(_SPLINTERS))
        elif kind == "replace":
            content[at:end] = draw(st.sampled_from(_SPLINTERS) | st.binary(max_size=20))
        elif kind == "repeat":
            content[at:at] = bytes(content[max(0, at - 400) : at]) * draw(st.integers(1, 3))
        elif kind == "truncate":
            del content[max(at, 1) :]
        elif kind == "digits":
            number = draw(st.integers(-(2**70), 2**70))
            content[at:end] = str(number).encode()
    return bytes(content)


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


@given(content=mangled(b"one line\nand another: 17\n" * 20))
@settings(max_examples=20)
def test_mangling_keeps_to_bytes_of_a_bounded_length(content: bytes) -> None:
    assert len(content) < 40_000
