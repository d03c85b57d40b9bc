"""Reads logs of nvidia-smi, XML or text, to flat fields: `temperature/gpu_temp` to `41 C`, GPU by GPU.

The XML parser knows no entities but the five of XML itself, follows no reference outside the file, and gives up on
what is nested deeper than any log is: a log is text from anywhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

_DEEPEST = 12
"""Elements inside each other; nvidia-smi's logs have at most eight."""
_MOST_FIELDS = 20_000
"""Of one GPU; a log with all supported clocks has some 2,000."""
_MOST_GPUS = 512
_START = re.compile(r"<\?xml|<!DOCTYPE|<nvidia_smi_log")
_END = "</nvidia_smi_log>"
_DROPPED = re.compile(
    r"supported_clocks|processes|mig_devices|accounted_processes|Supported Clocks|Processes|MIG Device"
)
"""Parts without readings of a GPU: left out while reading, they are most of a log."""
_FIELD = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z0-9][^:]*?) *(?:: (?P<value>.*))?")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")


@dataclass
class SmiLog:
    """One printed log: fields of the whole, and of each GPU in the log's order, by path."""

    fields: dict[str, str] = field(default_factory=dict)
    gpus: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class SmiProblem:
    """A log that could not be read."""

    reason: str
    line: int


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """The document has what no log of nvidia-smi has."""


def logs_of_xml(text: str) -> Iterator[SmiLog | SmiProblem]:
    """Yield the logs of a file of XML, one document behind the other."""
    at = 0
    while (found := _START.search(text, at)) is not None:
        end = text.find(_END, found.start())
        end = len(text) if end < 0 else end + len(_END)
        yield _xml(text[found.start() : end], text.count("\n", 0, found.start()) + 1)
        at = end


def _xml(document: str, line: int) -> SmiLog | SmiProblem:
    reader = _Reader()
    try:
        reader.parser.Parse(document.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        return SmiProblem("a log that is no well-formed XML", line + error.lineno - 1)
    except _Refused as error:
        return SmiProblem(str(error), line)
    return reader.log


class _Reader:
    """Collects the text of leaf elements by their path."""

    def __init__(self) -> None:
        self.log = SmiLog()
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self._path: list[str] = []
        self._dropped = 0
        self._words: list[str] = []

    def _doctype(self, _name: str, _system: str | None, _public: str | None, internal: int) -> None:
        if internal:
            raise _Refused("a log with declarations of its own (nvidia-smi writes none)")

    def _entity(self, *_: object) -> None:
        raise _Refused("a log with declarations of its own (nvidia-smi writes none)")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._words = []
        if len(self._path) > _DEEPEST:
            raise _Refused("a log nested deeper than nvidia-smi's are")
        if self._dropped or _DROPPED.fullmatch(name):
            self._dropped += 1
        elif name == "gpu" and len(self._path) == 2:
            if len(self.log.gpus) == _MOST_GPUS:
                raise _Refused("a log of more GPUs than a machine has")
            self.log.gpus.append({"id": attributes.get("id", "")})

    def _text(self, text: str) -> None:
        if not self._dropped:
            self._words.append(text)

    def _end(self, _name: str) -> None:
        if self._dropped:
            self._dropped -= 1
        else:
            value = "".join(self._words).strip()
            inside = len(self._path) > 1 and self._path[1] == "gpu"
            fields = self.log.gpus[-1] if inside else self.log.fields
            if value:
                fields.setdefault("/".join(self._path[2 if inside else 1 :]), value)
            if len(fields) > _MOST_FIELDS:
                raise _Refused("a log of more fields than nvidia-smi's have")
        self._words = []
        self._path.pop()


def logs_of_text(text: str) -> Iterator[SmiLog | SmiProblem]:
    """Yield the logs of a file of ``nvidia-smi -q`` text: indented names, values behind a colon."""
    log: SmiLog | None = None
    path: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if "NVSMI LOG" in line:
            if log is not None:
                yield log
            log, path = SmiLog(), []
            continue
        if log is None:
            continue
        gpu = _GPU.fullmatch(line.rstrip())
        if gpu is not None:
            if len(log.gpus) == _MOST_GPUS:
                yield SmiProblem("a log of more GPUs than a machine has", number)
                return
            log.gpus.append({"id": gpu[1]})
            path = []
            continue
        found = _FIELD.fullmatch(line)
        if found is not None:
            _take(log, path, found)
    if log is not None:
        yield log


def _take(log: SmiLog, path: list[tuple[int, str]], line: re.Match[str]) -> None:
    indent, name, value = len(line["indent"]), line["name"], line["value"]
    while path and path[-1][0] >= indent:
        path.pop()
    if len(path) >= _DEEPEST:
        return
    path.append((indent, name))
    fields = log.gpus[-1] if log.gpus and indent else log.fields
    dropped = any(_DROPPED.fullmatch(part) for _, part in path)
    if value is not None and not dropped and len(fields) < _MOST_FIELDS:
        fields.setdefault("/".join(part for _, part in path), value.strip())
