"""Delete the tenants of removed replays, before Receive starts: `purge.py RECEIVE_FOLDER BUCKET MARK`.

While Receive runs it holds every tenant's database open and fails when one vanishes, so `hindcast replay rm` only marks
the folder. What Receive has uploaded of a marked tenant goes too. Run as a file by `python -I -S`.
"""

import json
import shutil
import sys
from pathlib import Path


def purge(receive: Path, bucket: Path, mark: str) -> None:
    """Delete every tenant's folder that holds a file `mark`, and the tenant's blocks in the bucket."""
    removed = {path.parent.name for path in receive.glob(f"*/{mark}")}
    for meta in bucket.glob("*/meta.json") if removed else ():
        if json.loads(meta.read_text(encoding="utf-8"))["thanos"]["labels"].get("tenant_id") in removed:
            shutil.rmtree(meta.parent)
    for tenant in removed:
        shutil.rmtree(receive / tenant)


if __name__ == "__main__":
    purge(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
