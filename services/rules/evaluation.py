"""Prometheus' rule engine over a recording: the evaluator as a child process, fed and listened to."""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from services.kit.errors import UsageError, UserError
from services.recording.instants import format_instant
from services.recording.reader import Recording
from services.rules.feed import Places, Reads, frames
from services.stack import build
from services.stack.recipes import EVALUATOR
from services.stack.settings import load_settings

State = Literal["pending", "firing", "resolved", "cleared"]


@dataclass(frozen=True)
class Change:
    """An alert came into a state at `at` (ms); it has been active since `active_at`. Cleared: it never fired."""

    state: State
    at: int
    active_at: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def to_json(self) -> str:
        """Return it as one line of JSON, the same on every run."""
        line = {
            "alertname": self.labels["alertname"],
            "state": self.state,
            "at": format_instant(self.at),
            "active_at": format_instant(self.active_at),
            "labels": dict(sorted(self.labels.items())),
            "annotations": dict(sorted(self.annotations.items())),
        }
        return json.dumps(line, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class Came:
    """Where one comparison in an alert rule's condition came nearest to holding, by series of its result.

    `value` is its left side at `at` (ms), `threshold` its right one; `met`: it held, which the whole may not have done.
    """

    rule: str
    condition: str
    within: str
    """The comparison that has this one in its left side, or none."""
    labels: Mapping[str, str]
    at: int
    value: float
    threshold: float
    met: bool

    @property
    def wanting(self) -> float:
        """How much was wanting, as a share of the threshold; 0 where the comparison held."""
        return 0.0 if self.met else abs(self.threshold - self.value) / max(abs(self.threshold), 1e-12)


@dataclass
class Evaluated:
    """What the rules did: changes of alerts in order of time, rules that failed with their first error, and counts."""

    changes: list[Change] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    came: list[Came] = field(default_factory=list)
    samples: int = 0
    refused: int = 0
    series: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class Settings:
    """How rules are evaluated; the defaults are those of hindcast's own Prometheus."""

    interval: str = "15s"
    lookback: str = "5m"
    replay: str = "live"
    openmetrics: Path | None = None
    """A file for what rules recorded and ALERTS, as `promtool tsdb create-blocks-from openmetrics` takes it."""
    recorded: Path | None = None
    """A file for the same with its staleness markers, as services.rules.recorded takes it."""
    blocks: Path | None = None
    """A folder for the same as blocks of Prometheus' TSDB, of two hours each."""
    shift_ms: int = 0
    """By how much `recorded` and `blocks` are later than the recording."""
    kept_as: str = ""
    """The label `replay` of `recorded` and `blocks`, if not that of the recording."""
    about: tuple[int, int] | None = None
    """From when to when (ms) anything is asked of the rules: what can't matter for it is not evaluated."""
    places: Places = field(default_factory=dict)
    """With `about`: the places and jobs about which alerts are asked; others may be missing. None: all are asked."""
    near: Sequence[str] = ()
    """Alert rules of which to report how near they came meanwhile."""


def evaluator_program() -> Path:
    """Return the rule engine's program, built first where it is not in the cache. UserError: it can't be built."""
    return build.ensure(load_settings().cache_dir, (EVALUATOR,))[EVALUATOR] / EVALUATOR


def reads_of(evaluator: Path, files: Sequence[Path], flags: Sequence[str] = (), places: Places | None = None) -> Reads:
    """Return which metrics rule files read; of an evaluation with these `flags`, from when on and about which `places`.

    UserError (exit code 2) with Prometheus' words where a file is wrong.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own program, with paths
            [evaluator, "metrics", *flags, *files], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise UserError(f"{evaluator}: {error.strerror}", remedy="hindcast stack build") from error
    if done.returncode:
        raise UsageError(
            f"the rules cannot be read: {done.stderr.strip()}",
            remedy="correct the file; `promtool check rules` says the same",
        )
    return Reads.of(json.loads(done.stdout), places or {})


def evaluate(
    evaluator: Path,
    recording: Recording,
    files: Sequence[Path],
    settings: Settings | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Evaluated:
    """Return what the rules of `files` would have done over a recording; `progress` hears of event time.

    UserError: a rule file is wrong, or the recording can't be read.
    """
    settings = settings or Settings()
    manifest = recording.manifest
    flags = [
        f"-start={manifest.start}", f"-end={manifest.end}",
        f"-interval={settings.interval}", f"-lookback={settings.lookback}",
        f"-shift={settings.shift_ms}", f"-as={settings.kept_as}",
    ]  # fmt: skip
    if settings.about:
        flags += [
            f"-about-start={settings.about[0]}",
            f"-about-end={settings.about[1]}",
            f"-near={','.join(settings.near)}",
        ]
        if settings.places:
            flags.append(f"-about-places={json.dumps(settings.places)}")
    reads = reads_of(evaluator, files, flags, settings.places)
    files_out = {"openmetrics": settings.openmetrics, "recorded": settings.recorded, "blocks": settings.blocks}
    flags += [f"-{name}={path}" for name, path in files_out.items() if path is not None]
    found = Evaluated()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(  # noqa: S603 - our own program, with paths and numbers
            [evaluator, "evaluate", *flags, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # Its heap is small and short-lived: collected less often, it takes a fifth less time.
            env={"GOGC": "400", **os.environ},
        ) as child,
    ):
        assert child.stdin is not None  # noqa: S101 - for the type checker: it was asked for
        assert child.stdout is not None  # noqa: S101
        lines = child.stdout
        listener = threading.Thread(target=lambda: _listen(lines, found), name="rules", daemon=True)
        listener.start()
        try:
            for at, data in frames(recording, reads, replay=settings.replay):
                child.stdin.write(data)
                progress(at)
            child.stdin.close()
        except BrokenPipeError:
            pass  # it says why on stderr
        except BaseException:
            child.kill()
            raise
        listener.join()
        if child.wait():
            errors.seek(0)
            raise UserError(
                f"{recording.path}: the rule engine failed: {errors.read().strip()[-2000:]}",
                remedy="if it is out of memory or disk, evaluate fewer rule files at a time",
            )
    return found


def _listen(lines: Any, found: Evaluated) -> None:
    for line in _decoded(lines):
        match line["kind"]:
            case "alert":
                found.changes.append(
                    Change(line["state"], line["at"], line["active_at"], line["labels"], line["annotations"])
                )
            case "near":
                del line["kind"]
                found.came.append(Came(**line))
            case "error":
                found.errors[line["rule"]] = line["message"]
            case "end":
                found.samples, found.refused = line["samples"], line["refused"]
                found.series, found.rounds = line["series"], line["rounds"]


def _decoded(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield json.loads(line)
