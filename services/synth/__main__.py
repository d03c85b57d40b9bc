"""The generator as a process of its own (see `portable`): one recording, as the JSON of its only argument says.

Each line of its output is JSON: the share done, or an object that says why the recording can't be made.
"""

import json
import sys
from pathlib import Path

from services.kit.errors import UserError
from services.synth.make import Variant, make_recording


def main() -> None:
    """Make the recording; exit 1 if it can't be made."""
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
        _say({"message": error.message, "remedy": error.remedy, "exit_code": error.exit_code})
        raise SystemExit(1) from None


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
