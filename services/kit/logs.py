"""Logs of the services: lines of text, or of JSON with each `name=value` of a message as a field of its own."""

import json
import logging
import re
import sys
from typing import Literal

from pydantic_settings import SettingsConfigDict

from services.kit.settings import Settings
from services.kit.times import format_time

_PLACES = re.compile(r"(?:(\w+)=)?%[-+#0 ]*\d*(?:\.\d+)?[a-zA-Z]")
_OWN = frozenset({"at", "level", "service", "message", "traceback"})


class LogSettings(Settings):
    """How services log: HINDCAST_LOG_* in the environment."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_LOG_", extra="forbid")

    format: Literal["text", "json"] = "text"
    """Lines of text, or a JSON object a line: at, level, service, message, and what the message gives by name."""


class JsonLines(logging.Formatter):
    """One JSON object a record; a line break in a message stays within its string."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "at": format_time(int(record.created * 1000)),
            "level": record.levelname,
            "service": self._service,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in _named(record).items() if name not in _OWN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _named(record: logging.LogRecord) -> dict[str, object]:
    """Return the arguments that stand behind `name=` in the message."""
    if not isinstance(record.args, tuple):
        return {}
    names = [match[1] for match in _PLACES.finditer(str(record.msg).replace("%%", ""))]
    if len(names) != len(record.args):
        return {}
    return {name: value for name, value in zip(names, record.args, strict=True) if name}


def configure(service: str, settings: LogSettings) -> None:
    """Have everything of this process logged to standard error, as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    text = f"%(asctime)s level=%(levelname)s service={service} %(message)s"
    handler.setFormatter(JsonLines(service) if settings.format == "json" else logging.Formatter(text))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # kafka-python says pages while a broker is away; what it means for a service, the service says.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
