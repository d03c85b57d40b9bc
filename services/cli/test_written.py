"""Texts at the places that users name, and places where nothing can be written."""

from pathlib import Path

import pytest

from services.cli.written import write_file, write_files
from services.kit.errors import UserError


def test_files_are_written_into_a_folder_that_is_made(tmp_path: Path) -> None:
    write_files(tmp_path / "a" / "b", {"one": "1", "two": "é"})
    assert [(tmp_path / "a" / "b" / name).read_text(encoding="utf-8") for name in ("one", "two")] == ["1", "é"]


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be made: .+"):
        write_files(tmp_path / "file", {"one": "1"})
    for place in (tmp_path, tmp_path / "nowhere" / "one", tmp_path / "file" / "one"):
        with pytest.raises(UserError, match=r": cannot be written: \w.+") as refused:
            write_file(place, "1")
        assert refused.value.exit_code == 2
