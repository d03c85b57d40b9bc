"""Rule files that somebody sends, read by Prometheus' own parser before anything else, and hindcast's own."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from services.kit.errors import UsageError, UserError
from services.kit.problems import RefusedError
from services.kit.shipped import shipped
from services.rules.evaluation import reads_of
from services.rules.files import rule_files
from services.stack.build import cached
from services.stack.recipes import EVALUATOR
from services.stack.settings import load_settings


def shipped_rules() -> list[Path]:
    """Return hindcast's own rule files. UserError (exit code 2) where there are none."""
    folder = shipped("alert-rules")
    files = rule_files(folder)
    if not files:
        raise UsageError(f"{folder}: has no rule files", remedy="do without the rules")
    return files


def built_evaluator() -> Path:
    """Return the rule engine's program; a service builds none. RefusedError (409) where it is not there."""
    folder = cached(EVALUATOR, load_settings().cache_dir)
    if folder is None:
        remedy = "on the server: hindcast stack build; or leave out rules"
        raise RefusedError(409, "the evaluator of rules is not built here", remedy=remedy)
    return folder / EVALUATOR


def written(path: Path, text: str) -> Path:
    """Write a rule file and return where it is. UserError (exit code 2) names each wrong line, and what is wrong in it.

    RefusedError (409) where there is no evaluator.
    """
    evaluator = built_evaluator()
    path.write_text(text, encoding="utf-8")
    try:
        reads_of(evaluator, [path])
    except UserError as error:
        raise UsageError("; ".join(_wrong(error, path, text)), remedy=error.remedy) from None
    if not alerts_in([path]):
        raise UsageError(
            f"{path.name}: there is no alert in it", remedy="give a group of rules with one: `- alert: NAME`"
        )
    return path


def alerts_in(files: list[Path]) -> list[str]:
    """Return the names of the alerts of rule files that can be read, each once, in order."""
    found: dict[str, None] = {}
    for file in files:
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - of strings alone
        for group in (document or {}).get("groups") or ():
            found |= {rule["alert"]: None for rule in group.get("rules") or () if rule.get("alert")}
    return list(found)


def _wrong(error: UserError, path: Path, text: str) -> Iterator[str]:
    """Yield what Prometheus says is wrong, each once, with its line: some of its errors name a rule alone."""
    words = error.message.removeprefix("the rules cannot be read: ").replace(str(path), path.name)
    words = re.sub(r"unmarshal errors:\n\s+", "", words)
    for line in dict.fromkeys(one.strip() for one in words.splitlines()):
        placed = re.sub(rf"^{re.escape(path.name)}: (\d+):(\d+): ", rf"{path.name}, line \1, column \2: ", line)
        near = None if re.search(r"\bline \d", placed) else _line_of(re.findall(r'"([^"]+)"', placed), text)
        yield placed if near is None else placed.replace(f"{path.name}: ", f"{path.name}, near line {near}: ", 1)


def _line_of(named: list[str], text: str) -> int | None:
    """Return the first line that has the last of the words, looked for from each one's line on."""
    lines, at = text.splitlines(), 0
    for word in named:
        at = next((place for place in range(at, len(lines)) if word in lines[place]), at)
    return at + 1 if named else None
