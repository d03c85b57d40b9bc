"""Makes, scores and deletes recordings, one a worker; each result is a line of a file as soon as it is there."""

import concurrent.futures
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.held_out.case import Case, Class, code_version, outline
from detectors.registry import BUDGET, choose
from services.kit.errors import UserError
from services.kit.processes import pool_of
from services.score.stored import from_json, to_json
from services.score.suite import Scored, score_recording
from services.synth.portable import make_portably


@dataclass(frozen=True)
class Result:
    """A case that was made and scored; `classes` is how each label's fault comes, by the label's id."""

    case: Case
    scored: Scored
    classes: dict[str, Class]
    cpu_s: float


def run(
    cases: Sequence[Case], results: Path, workers: int, budget_s: float | None = None, version: str | None = None
) -> list[Result]:
    """Return the results of all cases: from the file where they are in it, the others made now and added to it.

    When the budget is spent no further recording is begun. What can't be made, or fails, is reported and left out.
    Only results of the same `version` of the code count, by default the present one.
    """
    version = version or code_version()
    done = read(results, version)
    wanted = [case for case in cases if _key(case) not in done]
    _note(f"{len(cases)} recordings: {len(cases) - len(wanted)} are in {results} already, {workers} at a time")
    begun = time.monotonic()
    _end_last_line(results)
    with (
        results.open("a", encoding="utf-8") as file,
        pool_of(workers) as pool,
    ):
        together: dict[Case, list[Case]] = {}
        for case in wanted:
            together.setdefault(replace(case, budget=None), []).append(case)
        queue = iter(together.values())
        running: dict[concurrent.futures.Future[list[dict[str, Any]]], list[Case]] = {}
        number = 0
        while True:
            in_time = budget_s is None or time.monotonic() - begun < budget_s
            while in_time and len(running) < workers and (cases_of_one := next(queue, None)):
                running[pool.submit(score_cases, cases_of_one)] = cases_of_one
            if not running:
                break
            finished, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in finished:
                for line in _lines(future, running.pop(future)):
                    file.write(json.dumps(line | {"code": version}, separators=(",", ":")) + "\n")
                    number += 1
                    _note(f"[{number}/{len(wanted)}] {_in_words(line)}")
                file.flush()
    if number < len(wanted):
        _note(f"the budget is spent: {len(wanted) - number} recordings were not made; the same command goes on")
    done = read(results, version)
    return [done[_key(case)] for case in cases if _key(case) in done]


def _lines(future: concurrent.futures.Future[list[dict[str, Any]]], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return a worker's lines; where a detector or the generator failed, that. UserError: the worker died."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenProcessPool):
        raise UserError(
            f"a worker died over {cases[0].name}, perhaps for want of memory", remedy="run again, with fewer --workers"
        ) from error
    return [{"case": case.as_json(), "failed": f"{type(error).__name__}: {error}"} for case in cases]


def score_cases(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Make the recording that some cases share in a temporary folder, and score it there for each.

    Return their lines of the results file. They differ in nothing but their budgets.
    """
    case = cases[0]
    known = outline(replace(case, budget=None))
    with tempfile.TemporaryDirectory(prefix="hindcast-held-out-") as place:
        folder = Path(place)
        begun = os.times()
        try:
            (folder / "scenarios").mkdir()
            made = make_portably(case.written(folder / "scenarios"), folder / case.name, case.variant, name=case.name)
            lines = []
            for one in cases:
                scored = score_recording(made, choose({} if one.budget is None else {BUDGET: one.budget}))
                ended = os.times()
                cpu_s, begun = sum(ended[:4]) - sum(begun[:4]), ended
                classes = {} if known is None else dict(known.classes)
                measured = {"cpu_s": round(cpu_s, 2), "classes": classes, "scored": to_json(scored)}
                lines.append({"case": one.as_json()} | measured)
        except UserError as error:
            return [{"case": one.as_json(), "refused": error.message} for one in cases]
    return lines


def read(results: Path, version: str | None = None) -> dict[str, Result]:
    """Return what is in a results file by case; lines of other code than `version` are counted and left out."""
    found: dict[str, Result] = {}
    others = 0
    if not results.exists():
        return found
    for number, text in enumerate(results.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            case = Case(**line["case"])
            if version is not None and line["code"] != version:
                others += 1
            elif "scored" in line:
                found[_key(case)] = Result(case, from_json(line["scored"]), line["classes"], line["cpu_s"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _note(f"{results}, line {number}: left out, no whole result ({type(error).__name__})")
    if others:
        _note(f"{results}: {others} results are of other code, and not counted")
    return found


def _end_last_line(results: Path) -> None:
    """Have a line that an interrupted run cut off end there, so that the next begins on its own."""
    if results.exists() and (written := results.read_bytes()) and not written.endswith(b"\n"):
        results.write_bytes(written + b"\n")


def _key(case: Case) -> str:
    return json.dumps(case.as_json(), sort_keys=True)


def _in_words(line: dict[str, Any]) -> str:
    case = Case(**line["case"])
    where = f"{case.cell}: {case.name}" if case.cell else case.name
    if "refused" in line:
        return f"{where}: not made: {line['refused']}"
    if "failed" in line:
        return f"{where}: FAILED: {line['failed']}"
    kinds = [one["kind"] for one in line["scored"]["outcomes"]]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("hit", "miss", "late", "false"))
    return f"{where}: {counts}; {line['scored']['node_days']:.1f} node-days, {line['cpu_s']:.0f} s CPU"


def _note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
