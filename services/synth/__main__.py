"""The generator as a process of its own (see `portable`): one recording, as the JSON of its only argument says.

Each line of its output is JSON: the share done, or an object that says why the recording can't be made. It ends
where its input does, which is when the process ends that started it, and leaves nothing behind.
"""

import _thread
import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from services.kit.durable import NO_ROOM
from services.kit.errors import UserError
from services.kit.processes import end_in_order
from services.synth.make import Variant, make_recording


def main() -> None:
    """Make the recording; exit 1 if it can't be made."""
    end_in_order()
    threading.Thread(target=_follow, daemon=True).start()
    order = json.loads(sys.argv[1])
    asked = order["variant"]
    profile = None if asked["profile"] is None else Path(asked["profile"])
    try:
        make_recording(
            Path(order["scenario"]),
            Path(order["out"]),
            Variant(**asked | {"profile": profile}),
            _say,
            name=order["name"],
        )
    except UserError as error:
        _refuse(error)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _refuse(UserError("the disk is full", remedy="make room, or make it smaller with a scale below 1"))


def _refuse(error: UserError) -> NoReturn:
    _say({"message": error.message, "remedy": error.remedy, "exit_code": error.exit_code})
    raise SystemExit(1) from None


def _follow() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    _thread.interrupt_main(signal.SIGTERM)


def _say(what: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: it is about to end
        os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
