"""The process behind `hindcast stack up`: starts the stack, says when it is ready, runs it until SIGTERM.

On standard output it writes a line per change of a process, and `ready` or `failed` at the end; then nothing more, as
nobody reads on. Logging goes to standard error.
"""

import json
import logging
import signal
import sys
import threading

from services.kit.errors import UserError
from services.stack.hindcast_services import services
from services.stack.process import State
from services.stack.runner import Stack


def _say(**line: str) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the stack of the settings in the environment until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s level=%(levelname)s service=stack %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    ended, ready = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        if not ready.is_set() and not ended.is_set():
            ended.set()
            raise KeyboardInterrupt  # out of the start, which stops what it has started
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

    def on_change(name: str, state: State) -> None:
        if not ready.is_set():
            _say(name=name, state=state)

    try:
        stack = Stack.start(services=services, on_change=on_change)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except UserError as error:
        _say(event="failed", message=error.message, remedy=error.remedy)
        raise SystemExit(error.exit_code) from None
    with stack:
        ready.set()
        _say(event="ready")
        # A process that dies is reported in the log and by `hindcast stack status`; the others go on.
        ended.wait()


if __name__ == "__main__":
    main()
