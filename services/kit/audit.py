"""Who did what, and when: a line of JSON for each request that changed something, or was refused for who asked."""

import json
import logging
import os
from pathlib import Path
from urllib.parse import quote

from starlette.types import Scope

from services.kit.times import format_time

_log = logging.getLogger(__name__)
_access = logging.getLogger("hindcast.access")
_REFUSED = (401, 403)
_LONGEST = 500


class Trail:
    """Writes down what was asked: changes and refusals to `file` (JSON lines), and each answer to the log."""

    def __init__(self, file: Path | None, *, access_log: bool) -> None:
        """Raise ValueError, which names the file, where it cannot be written."""
        self._file = file
        self._access_log = access_log
        try:
            self._append(b"")
        except OSError as error:
            raise ValueError(f"AUDIT_FILE {file} cannot be written: {error.strerror}") from None

    def note(self, scope: Scope, status: int, *, seconds: float, at_ms: int, changes: bool) -> None:
        """Note an answer; `changes`: the request was to change something."""
        caller = scope.get("state", {}).get("caller")
        client = scope.get("client")
        entry = {
            "at": format_time(at_ms),
            "who": caller.name if caller else None,
            "role": caller.role if caller else None,
            "from": client[0] if client else None,
            "method": scope["method"],
            "path": quote(scope["path"])[:_LONGEST],
            "status": status,
        }
        if self._access_log:
            _access.info(
                "answered method=%s path=%s status=%d seconds=%.3f who=%s from=%s",
                *(entry[name] for name in ("method", "path", "status")),
                seconds,
                json.dumps(entry["who"]),
                entry["from"],
            )
        if self._file is not None and (changes or status in _REFUSED):
            line = json.dumps(entry)
            try:
                self._append(line.encode() + b"\n")
            except OSError as error:
                _log.error("not in the audit trail file=%s error=%s entry=%s", self._file, error.strerror, line)

    def _append(self, line: bytes) -> None:
        """Open, append, close: so the file may be rotated at any time."""
        if self._file is None:
            return
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
