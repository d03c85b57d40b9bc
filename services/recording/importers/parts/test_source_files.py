import codecs
import gzip
import math
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.recording.importers.contract import Report, silent
from services.recording.importers.parts.source_files import (
    MAX_LINE_BYTES,
    SourceFiles,
    clean,
    node_by_path,
    number_of,
    parse_json,
)


def test_files_in_order_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b/2", "a", "b/1", ".git/x", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    files = SourceFiles(tmp_path, Report(), silent)
    assert [path.relative_to(tmp_path).as_posix() for path in files.paths] == ["a", "b/1", "b/2"]


def test_lines_are_cut_and_mended(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (3 * MAX_LINE_BYTES) + b"\nsecond\xff\r\n\nlast")
    report = Report()
    shares: list[float] = []
    files = SourceFiles(tmp_path / "a", report, shares.append)
    lines = list(files.lines(tmp_path / "a"))
    assert [(number, len(text)) for number, text in lines] == [(1, MAX_LINE_BYTES), (2, 7), (3, 0), (4, 4)]
    assert lines[1][1] == "second\ufffd"
    assert sum(report.skipped.values()) == 1
    assert shares[-1] == 1.0


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_the_mark_of_an_encoding_is_read_and_no_part_of_the_text(tmp_path: Path, encoding: str, name: str) -> None:
    text = '["Zürich",\r\n' + '"x",\r\n' * 40_000 + "1]"
    content = (codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b"") + text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    files = SourceFiles(tmp_path, Report(), silent)
    lines = list(files.lines(tmp_path / name))
    assert (lines[0], lines[-1]) == ((1, '["Zürich",'), (40_002, "1]"))
    assert files.document(tmp_path / name)[0] == "Zürich"
    assert files.head(tmp_path / name).startswith('["Zürich",')


def test_a_source_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        SourceFiles(tmp_path / "x", Report(), silent)
    with pytest.raises(UserError, match="holds no files"):
        SourceFiles(tmp_path, Report(), silent)


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("nvidia-smi-q.out", "node"), ("a-01-nvidia-smi-q.txt", "a-01"), ("nvidia-smi-q-gpu-a-01.txt", "gpu-a-01"),
        ("nvidia-smi-query-gpu-dgx01.csv", "dgx01"), ("smi-queue01.txt", "queue01"), ("dgx01-dmesg-T.txt", "dgx01"),
        ("dmesg-T-dgx01.txt", "dgx01"), ("sdr-elist-dgx01-20261101T0000Z.txt", "dgx01"), ("sensor-dgx01.txt", "dgx01"),
        ("dcgm-exporter-dgx01.prom", "dgx01"), ("dgx01-scrape.prom", "dgx01"), ("dgx01-metrics.prom", "dgx01"),
        ("gpu-node-3.log", "gpu-node-3"), ("ip-10-0-3-17.log", "ip-10-0-3-17"),
    ],
)  # fmt: skip
def test_the_node_that_a_files_name_has_beside_the_command(tmp_path: Path, name: str, node: str) -> None:
    assert node_by_path(tmp_path / name, tmp_path) == node


def test_numbers() -> None:
    assert [number_of(value) for value in ("1,200", 7, "-1.5e3", 2.5)] == [1200, 7, -1500, 2.5]
    bad: object
    for bad in (
        "612,5",
        "0,981",
        "1,23,456",
        "",
        "N/A",
        "nan",
        "inf",
        math.inf,
        True,
        None,
        [],
        "9" * 400,
        10**400,
        "0x10",
    ):
        assert number_of(bad) is None


def test_json_that_is_none() -> None:
    assert parse_json('{"a": [1]}') == {"a": [1]}
    for bad in ("", "{", "[" * 100_000, "9" * 10_000, "nul"):
        assert parse_json(bad) is None


def test_halves_of_characters_are_replaced() -> None:
    assert clean("a\ud800b").encode() == b"a?b"
