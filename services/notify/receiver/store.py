"""Keeps every notification as it came, in a file of JSON lines."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from services.kit.errors import UsageError
from services.kit.times import format_time

Received = dict[str, Any]


class Store:
    """Notifications in the order of their arrival: in memory, and on disk before each is acknowledged."""

    def __init__(self, state_dir: Path) -> None:
        self._lock = threading.Lock()
        path = state_dir / "received.jsonl"
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror}",
                remedy="set HINDCAST_RECEIVER_STATE_DIR to a folder that can be written",
            ) from error
        self._received = self._load()

    def _load(self) -> list[Received]:
        self._file.seek(0)
        whole = self._file.read()
        kept = whole[: whole.rfind(b"\n") + 1]
        # A crash may leave half a line; it was never acknowledged, so Alertmanager sends it again.
        self._file.truncate(len(kept))
        return [json.loads(line) for line in kept.splitlines()]

    def add(self, body: Received) -> None:
        """Keep `body` with the wall time of its arrival; returns once it is on disk."""
        with self._lock:
            entry = {"received_at": format_time(time.time_ns() // 1_000_000), "body": body}
            whole = os.fstat(self._file.fileno()).st_size
            try:
                self._write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            except OSError:
                self._file.truncate(whole)  # half a line, where the disk is full
                raise
            self._received.append(entry)

    def _write(self, line: bytes) -> None:
        while line:  # unbuffered: what a full disk does not take must not be tried again with the next
            line = line[os.write(self._file.fileno(), line) :]
        os.fsync(self._file.fileno())

    def entries(self, replay: str | None) -> list[Received]:
        """Return all that was received, or what names `replay` in one of its alerts."""
        with self._lock:
            return [entry for entry in self._received if replay is None or replay in _replays(entry["body"])]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _replays(body: Received) -> set[str]:
    return {alert["labels"].get("replay", "") for alert in body["alerts"]}
