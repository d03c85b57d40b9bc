import json
from pathlib import Path

from services.stack.purge import purge


def test_marked_tenants_go_with_their_blocks_and_nothing_else(tmp_path: Path) -> None:
    receive, bucket = tmp_path / "receive", tmp_path / "bucket"
    for number, tenant in enumerate(("gone", "kept")):
        (receive / tenant / "wal").mkdir(parents=True)
        block = bucket / f"01BLOCK{number}"
        block.mkdir(parents=True)
        (block / "meta.json").write_text(json.dumps({"thanos": {"labels": {"tenant_id": tenant}}}))
    (receive / "gone" / "removed").touch()
    purge(receive, bucket, "removed")
    assert [path.name for path in receive.iterdir()] == ["kept"]
    assert [path.name for path in bucket.iterdir()] == ["01BLOCK1"]
    purge(receive, bucket, "removed")
    assert [path.name for path in receive.iterdir()] == ["kept"]
