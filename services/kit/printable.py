"""Text that others wrote, made safe to print: a log line must not steer the terminal of whoever reads it."""

import re
from typing import Annotated

from pydantic import AfterValidator

# Control characters but tab and line feed, and those that turn the direction in which the rest is read.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return `text` with characters that would steer a terminal or a page written out, as Python does."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


Printable = Annotated[str, AfterValidator(printable)]
"""Text of a document that others wrote, such as a log line or a job's name."""
