"""Tables of nvidia-smi and dcgmi, made as the tools print them over drivers and options: what is written is read."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.conftest import rows_in
from services.recording.importers import dcgmi_dmon, nvidia_smi
from services.recording.importers.contract import Report
from services.recording.validate import validate_recording
from tests.mangled import FUZZ, fuzzed, survives

START = datetime(2024, 4, 1, 8, tzinfo=UTC)
ZURICH = ZoneInfo("Europe/Zurich")
Samples = list[list[dict[str, float | None]]]
"""Of each moment, of each GPU: readings by DCGM field without DCGM_FI_."""

QUERY: dict[str, tuple[str, str]] = {
    # DCGM's field: how --query-gpu's header names it and its unit.
    "DEV_GPU_TEMP": ("temperature.gpu", ""), "DEV_POWER_USAGE": ("power.draw", "W"),
    "DEV_GPU_UTIL": ("utilization.gpu", "%"), "DEV_SM_CLOCK": ("clocks.current.sm", "MHz"),
    "DEV_FB_USED": ("memory.used", "MiB"), "DEV_CLOCK_THROTTLE_REASONS": ("clocks_event_reasons.active", "hex"),
    "DEV_ROW_REMAP_PENDING": ("remapped_rows.pending", "flag"),
    "DEV_ECC_DBE_VOL_TOTAL": ("ecc.errors.uncorrected.volatile.total", ""),
    "DEV_PCIE_LINK_WIDTH": ("pcie.link.width.current", ""),
}  # fmt: skip
OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active", "clocks.current.sm": "clocks.sm"}
DMON = {
    "DEV_POWER_USAGE": ("pwr", "W"), "DEV_GPU_TEMP": ("gtemp", "C"), "DEV_MEMORY_TEMP": ("mtemp", "C"),
    "DEV_GPU_UTIL": ("sm", "%"), "DEV_MEM_CLOCK": ("mclk", "MHz"), "DEV_SM_CLOCK": ("pclk", "MHz"),
}  # fmt: skip
DCGMI = {
    "DEV_GPU_UTIL": "GPUTL", "DEV_POWER_USAGE": "POWER", "PROF_SM_ACTIVE": "SMACT", "DEV_XID_ERRORS": "XIDER",
    "DEV_TOTAL_ENERGY_CONSUMPTION": "TOTEC",
}  # fmt: skip
WHOLE = st.one_of(st.none(), st.integers(0, 2000).map(float))


@st.composite
def samples(draw: st.DrawFn, fields: Sequence[str], flags: frozenset[str] = frozenset()) -> Samples:
    gpus, moments = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    value = {name: st.sampled_from([None, 0.0, 1.0]) if name in flags else WHOLE for name in fields}
    return [[draw(st.fixed_dictionaries(value)) for _ in range(gpus)] for _ in range(moments)]


def cell(value: float | None, unit: str, *, units: bool) -> str:
    if value is None:
        return "[N/A]"
    if unit == "hex":
        return f"0x{int(value):016x}"
    if unit == "flag":
        return "Yes" if value else "No"
    number = f"{value:.2f}" if unit == "W" else f"{value:.0f}"
    return f"{number} {unit}" if unit and units else number


def query(taken: Samples, fields: Sequence[str], *, old: bool, units: bool, identity: str, header: bool = True) -> str:
    """Return what ``nvidia-smi --query-gpu=timestamp,... --format=csv -l 5`` prints."""
    names = [QUERY[name] for name in fields]
    heads = [
        (OLD_NAMES.get(name, name) if old else name) + (f" [{unit}]" if unit in {"W", "%", "MHz", "MiB"} else "")
        for name, unit in names
    ]
    lines = [", ".join(["timestamp", identity, *heads])] if header else []
    for moment, gpus in enumerate(taken):
        for gpu, values in enumerate(gpus):
            at = (START + timedelta(seconds=5 * moment, milliseconds=gpu)).astimezone(ZURICH)
            who = str(gpu) if identity == "index" else f"GPU-{gpu:08x}"
            cells = [cell(values[name], unit, units=units) for name, (_, unit) in zip(fields, names, strict=True)]
            lines.append(", ".join([f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}", who, *cells]))
    return "\n".join(lines) + "\n"


def dmon(taken: Samples, fields: Sequence[str], *, dated: bool) -> str:
    """Return what ``nvidia-smi dmon`` prints, with ``-o DT`` where `dated`; its heading comes again and again."""
    when = ("#Date       Time        gpu", "#YYYYMMDD   HH:MM:SS    Idx") if dated else ("# gpu", "# Idx")
    heads = [f"{first}  {'  '.join(DMON[name][part] for name in fields)} " for part, first in enumerate(when)]
    lines = []
    for moment, gpus in enumerate(taken):
        lines += heads if moment % 3 == 0 else []
        at = (START + timedelta(seconds=5 * moment)).astimezone(ZURICH)
        for gpu, values in enumerate(gpus):
            cells = ["-" if values[name] is None else f"{values[name]:.0f}" for name in fields]
            lines.append((f" {at:%Y%m%d   %H:%M:%S}" if dated else "") + f"  {gpu}     {'   '.join(cells)} ")
    return "\n".join(lines) + "\n"


def dcgmi(taken: Samples, fields: Sequence[str]) -> str:
    """Return what ``dcgmi dmon -e ... -d 5000`` prints."""
    lines = []
    for moment, gpus in enumerate(taken):
        lines += ["#Entity   " + "  ".join(DCGMI[name] for name in fields), "ID    W   mJ"] if moment % 4 == 0 else []
        for gpu, values in enumerate(gpus):
            cells = ["N/A" if values[name] is None else f"{values[name]:.3f}" for name in fields]
            lines.append(f"GPU {gpu}     {'      '.join(cells)}")
    return "\n".join(lines) + "\n"


def read(convert: Callable[..., Report], text: str, **options: Any) -> tuple[Samples, list[int], Report]:
    """Return the samples of the file's recording in its order of time, the times of GPU 0, and the report."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "g7.txt").write_text(text)
        report = convert(Path(folder) / "g7.txt", Path(folder) / "out", **options)
        assert validate_recording(Path(folder) / "out") == []
        rows = rows_in(Path(folder) / "out")
    assert {row["node"] for row in rows} == {"g7"}
    times = [round(row["timestamp"].timestamp() * 1000) for row in rows if row["gpu"] == 0]
    found: Samples = [[] for _ in times]
    for row in sorted(rows, key=lambda row: (row["timestamp"], row["gpu"])):
        values = {name.removeprefix("DCGM_FI_"): value for name, value in row.items() if name.startswith("DCGM_FI_")}
        found[sum(row["gpu"] <= len(one) - 1 for one in found)].append(values)
    return found, times, report


def same(found: Samples, written: Samples) -> bool:
    plain = [
        [{k: v for k, v in gpu.items() if v is not None} for gpu in moment]
        for moments in (found, written)
        for moment in moments
    ]
    return plain[: len(found)] == plain[len(found) :]


TIMES = [round((START + timedelta(seconds=5 * moment)).timestamp() * 1000) for moment in range(5)]


@given(
    taken=samples(list(QUERY), frozenset({"DEV_ROW_REMAP_PENDING"})),
    fields=st.permutations(list(QUERY)),
    count=st.integers(1, len(QUERY)),
    old=st.booleans(),
    units=st.booleans(),
    identity=st.sampled_from(["index", "uuid"]),
    header=st.booleans(),
)
@FUZZ
def test_any_query_is_read_with_units_or_without(
    taken: Samples, fields: list[str], count: int, old: bool, units: bool, identity: str, header: bool
) -> None:
    fields = fields[:count]
    text = query(taken, fields, old=old, units=units, identity=identity, header=header)
    options = {} if header else {"fields": ",".join(["timestamp", identity, *(QUERY[name][0] for name in fields)])}
    found, times, report = read(nvidia_smi.convert, text, timezone="Europe/Zurich", **options)
    assert times == TIMES[: len(taken)]
    assert same(found, [[{name: gpu[name] for name in fields} for gpu in moment] for moment in taken])
    assert not report.skipped
    assert any("numbered in the order" in note for note in report.notes) is (identity == "uuid")


@given(taken=samples(list(DMON)), dated=st.booleans())
@FUZZ
def test_dmon_is_read_with_times_or_without(taken: Samples, dated: bool) -> None:
    text = dmon(taken, list(DMON), dated=dated)
    options = {} if dated else {"start": "2024-04-01T08:00:00Z", "every": 5.0}
    found, times, report = read(nvidia_smi.convert, text, timezone="Europe/Zurich", **options)
    assert times == TIMES[: len(taken)]
    assert same(found, taken)
    assert not report.skipped


@given(taken=samples(list(DCGMI)))
@FUZZ
def test_dcgmi_is_read(taken: Samples) -> None:
    found, times, report = read(dcgmi_dmon.convert, dcgmi(taken, list(DCGMI)), start="2024-04-01T08:00:00Z", every=5.0)
    assert times == TIMES[: len(taken)]
    assert same(found, taken)
    assert not report.skipped


ONE: Samples = [[dict.fromkeys([*QUERY, *DMON, *DCGMI], 1.0)] * 2] * 2


def test_what_is_not_known_is_named_and_never_guessed() -> None:
    written = query(ONE, ["DEV_GPU_TEMP"], old=False, units=True, identity="index").splitlines()
    lines = [f"{line}, {extra}" for line, extra in zip(written, ["vbios_version", *["96.00"] * 4], strict=True)]
    lost = "Unable to determine the device handle for GPU0000:2A:00.0: GPU is lost."
    lines += [lost, f"{lines[1].rpartition(', ')[0]}, x, y"]
    _, _, report = read(nvidia_smi.convert, "\n".join(lines), timezone="Europe/Zurich")
    assert dict(report.skipped) == {
        "a column that holds no field of DCGM: vbios_version": 1,
        "nvidia-smi could not read a GPU (lost, or it requires a reset)": 1,
        "a row with more or fewer columns than its header": 1,
    }
    _, _, report = read(nvidia_smi.convert, dmon(ONE, list(DMON), dated=True).replace("mtemp", "jpg"))
    assert dict(report.skipped) == {"a column that holds no field of DCGM: jpg": 1}
    text = dcgmi(ONE, list(DCGMI)).replace("XIDER", "ZZZZZ") + "GPU-I 0     1  1  1  1  1\n"
    _, _, report = read(dcgmi_dmon.convert, text, start="2024-04-01T08:00:00Z", every=5.0)
    assert dict(report.skipped) == {
        "a column whose tag is not known: ZZZZZ": 1, "a row of no whole GPU (MIG instance, switch, CPU)": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("convert", "text"),
    [(nvidia_smi.convert, dmon(ONE, list(DMON), dated=False)), (dcgmi_dmon.convert, dcgmi(ONE, list(DCGMI)))],
)
def test_rows_without_times_are_not_dated_by_the_file(
    convert: Callable[..., Report], text: str, tmp_path: Path
) -> None:
    (tmp_path / "g7.txt").write_text(text)
    for options in ({}, {"start": "2024-04-01T08:00:00Z"}):
        with pytest.raises(UserError, match=r"g7\.txt: its rows have no times: these cannot be known"):
            convert(tmp_path / "g7.txt", tmp_path / "out", **options)


def test_a_clock_without_its_day_goes_past_midnight() -> None:
    lines = ["#Time        gpu    pwr", "#HH:MM:SS    Idx    W", " 23:59:59  0  1", " 00:00:01  0  2"]
    _, times, _ = read(nvidia_smi.convert, "\n".join(lines), start="2024-04-01T00:00:00+02:00", timezone="+02:00")
    first = datetime(2024, 4, 1, 21, 59, 59, tzinfo=UTC).timestamp() * 1000
    assert times == [first, first + 2000]


def test_the_hour_that_comes_twice_when_summer_time_ends_is_known_by_the_order_of_rows() -> None:
    rows = [f"2026/10/25 {stamp}, 0, 300.00 W" for stamp in ("02:59:55.100", "02:00:00.100")]
    _, times, _ = read(
        nvidia_smi.convert, "\n".join(["timestamp, index, power.draw [W]", *rows]), timezone="Europe/Zurich"
    )
    assert [at - times[0] for at in times] == [0, 5_000]
    # In spring an hour is left out; a time in it is no second one.
    early = [f"2026/03/29 {stamp}, 0, 300.00 W" for stamp in ("01:59:55.000", "03:00:00.000")]
    _, times, _ = read(
        nvidia_smi.convert, "\n".join(["timestamp, index, power.draw [W]", *early]), timezone="Europe/Zurich"
    )
    assert [at - times[0] for at in times] == [0, 5_000]


@pytest.mark.parametrize(
    "stamp",
    [
        "2024-04-01T08:00:00.250Z",
        "2024-04-01 10:00:00.250000+02:00",
        "1711958400.25",
        "1711958400250",
        "2024-04-01 10:00:00.25",
    ],
)
def test_a_table_that_a_script_wrote_anew_has_its_times(stamp: str) -> None:
    text = f"timestamp,index,power.draw [W]\n{stamp},0,300.00 W\n"
    _, times, _ = read(nvidia_smi.convert, text, timezone="+02:00")
    assert times == [1_711_958_400_250]


def test_a_query_of_no_gpu_is_refused_with_what_to_ask_for(tmp_path: Path) -> None:
    (tmp_path / "g7.csv").write_text("timestamp, power.draw [W]\n2024/04/01 10:00:00.000, 300.00 W\n")
    with pytest.raises(UserError, match="ask for index or uuid"):
        nvidia_smi.convert(tmp_path / "g7.csv", tmp_path / "out")


@fuzzed(query(ONE, list(QUERY), old=True, units=True, identity="uuid").encode())
def test_mangled_queries(content: bytes) -> None:
    survives(nvidia_smi.convert, {"g7.csv": content})


@fuzzed(dmon(ONE, list(DMON), dated=True).encode())
def test_mangled_dmon(content: bytes) -> None:
    survives(nvidia_smi.convert, {"g7.txt": content})


@fuzzed(dcgmi(ONE, list(DCGMI)).encode())
def test_mangled_dcgmi(content: bytes) -> None:
    survives(lambda source, out: dcgmi_dmon.convert(source, out, start="2024-04-01T08:00:00Z", every=1), {"g": content})
