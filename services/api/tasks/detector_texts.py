"""A detectors.yaml that somebody sends: read as the command line reads it, and refused with the wrong line."""

from collections.abc import Iterator
from typing import Any

import yaml

from services.detect.choices import CALIBRATION, choices_of, incident_config_of
from services.kit.documents import NOT_YAML, parse_yaml
from services.kit.errors import UsageError, UserError

_REMEDY = "`hindcast config init` writes a detectors.yaml with every setting, its unit and its default"


def settings_in(name: str, text: str) -> dict[str, Any]:
    """Return what a detectors.yaml says. UserError (exit code 2) names each wrong line, and what is wrong in it."""
    try:
        # Of aliases a few lines make a document that fills the memory.
        alias = next((token for token in yaml.scan(text) if isinstance(token, yaml.AliasToken)), None)
        if alias is not None:
            raise _wrong(name, alias.start_mark.line + 1, "has an alias (*)", "write it out")
        node = yaml.compose(text, yaml.SafeLoader)
        content = {} if node is None else parse_yaml(text)
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        reason = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise _wrong(name, None if mark is None else mark.line + 1, f"not YAML: {reason}", _REMEDY) from None
    if not isinstance(content, dict):
        raise _wrong(name, None, "not a mapping of detectors to their settings", _REMEDY)
    settings = {str(key): value for key, value in content.items()}
    lines = dict(_lines(node))
    if CALIBRATION in settings:
        remedy = "leave the line out; `hindcast backtest --config` takes a file with it"
        raise _wrong(name, lines[CALIBRATION], "names a calibration, which is a file of your own machine", remedy)
    try:
        choices_of(settings)
        incident_config_of(settings)
    except UserError as error:
        _, *problems = error.message.splitlines()  # the first line counts them
        found = [f"{_where(name, _line_of(one.strip(), lines))}: {one.strip()}" for one in problems]
        raise UsageError("; ".join(found) or f"{name}: {error.message}", remedy=_REMEDY) from None
    return settings


def _wrong(name: str, line: int | None, words: str, remedy: str) -> UserError:
    return UsageError(f"{_where(name, line)}: {words}", remedy=remedy)


def _where(name: str, line: int | None) -> str:
    return name if line is None else f"{name}, line {line}"


def _lines(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Yield the line of each detector, and of each of its settings as ``detector.setting``."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield str(key.value), key.start_mark.line + 1
        for own, _ in value.value if isinstance(value, yaml.MappingNode) else ():
            yield f"{key.value}.{own.value}", own.start_mark.line + 1


def _line_of(problem: str, lines: dict[str, int]) -> int | None:
    """Return the line of what a problem begins with: of a setting, or of its detector."""
    place = problem.partition(": ")[0]
    return lines.get(".".join(place.split(".")[:2]), lines.get(place.partition(".")[0]))
