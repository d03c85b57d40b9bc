import json
import shutil
from pathlib import Path

from services.cli.conftest import hindcast
from services.recording.conftest import batch, documents, header, rewrite, topology
from services.recording.writer import RecordingWriter


def test_the_command_says_it_by_table_json_and_exit_code(tmp_path: Path) -> None:
    made = tmp_path / "first" / "small"
    with RecordingWriter(made) as writer:
        writer.write("dcgm", batch("dcgm"), interval_s=5)
        documents(writer)
        writer.finish(header("small"), topology())
    other = Path(shutil.copytree(made, tmp_path / "small"))
    same = hindcast("diff", made, other)
    assert (same.exit_code, "the same" in same.stdout) == (0, True)
    rewrite(other, "dcgm", lambda table: table.slice(3))
    result = hindcast("diff", made, other, "--only", "streams")
    assert result.exit_code == 1
    assert "only in A: 2024-04-01T08:00:00Z node=n1 gpu=0" in result.stdout
    counted = json.loads(hindcast("diff", made, other, "--json").stdout)
    assert counted["same"] is False
    assert counted["streams"]["dcgm"]["only_a"] == 3
    assert hindcast("diff", made, other, "--only", "jobs").exit_code == 0
