"""What the library holds, and what an incident's scenario says: `hindcast list`, `hindcast show NAME`."""

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from services.synth.story.happening import Happening
    from services.synth.story.scenario import JobSpec, Scenario

_PLACE = ("node", "gpu", "nic", "switch", "port", "mount", "job")
_PRINTED = ("kind", "truth", "at", "until", "ramp_s", "period_s", "duty", *_PLACE)


_WIDTH = 80


def list_library() -> None:
    """List the scenarios that can be made, a few lines each: name, cluster, length; title; faults."""
    from services.synth.library import scenario_paths
    from services.synth.story.scenario import load_scenario

    for name, path in scenario_paths().items():
        scenario, _, _ = load_scenario(path)
        faults = sorted({happening.truth.fault for happening in scenario.happenings if happening.truth})
        typer.echo(f"{name}  ({scenario.profile}, {_length(scenario.duration)})")
        typer.echo(_indented(scenario.title))
        typer.echo(_indented(f"faults: {', '.join(faults) or 'none'}"))


def _indented(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def print_story(path: Path) -> None:
    """Print a scenario's story: what happens when, what is a fault and what only looks like one, and its source."""
    from services.cli.sheets import plain_console
    from services.recording.instants import format_instant
    from services.recording.model import words_of
    from services.synth.story.scenario import load_scenario

    scenario, profile, _ = load_scenario(path)
    console = plain_console()
    console.print(scenario.title, style="bold")
    console.print(scenario.summary.strip() + "\n", soft_wrap=False)
    gpus = f"{profile.nodes} nodes, {profile.gpu_count} GPUs ({profile.gpu.model})"
    console.print(f"cluster     {profile.name}: {gpus}, {profile.scheduler}")
    console.print(f"time        {format_instant(scenario.start)}, {_length(scenario.duration)}; seed {scenario.seed}")
    for key, value in scenario.source.items():
        _item(console, key, " ".join(str(value).split()))
    console.print("\nwhat happens", style="bold")
    for at, line in sorted(_course(scenario), key=lambda entry: entry[0]):
        _item(console, _offset(at), line)
    console.print("\nfaults", style="bold")
    truths = [(happening, happening.truth) for happening in scenario.happenings if happening.truth is not None]
    for happening, truth in truths:
        where = f"{truth.fault} at {_place(happening)}" if _place(happening) else truth.fault
        root = f", root of {truth.incident}" if truth.root else ""
        optional = " (not required)" if truth.optional else ""
        _item(console, truth.id, f"{where}: an alert is due within {truth.within_s:g} s{optional}{root}. {truth.note}")
    if not truths:
        console.print("none: every alert is a false alarm")
    console.print("\nlooks wrong and is not", style="bold")
    for distractor in scenario.distractors:
        entity = words_of(distractor.entity)
        _item(console, f"{_offset(distractor.at)}", f"{entity}: {distractor.note}")
    console.print("and every job's warm-up, checkpoints and evaluations")
    console.print(f"\nmake it with: hindcast make {path.parent.name}", style="dim")


def _course(scenario: "Scenario") -> "list[tuple[float, str]]":
    """Return when what happens, jobs and all."""
    found = [entry for spec in scenario.jobs for entry in _of_job(spec, scenario.duration)]
    if scenario.mix is not None:
        kinds = ", ".join(kind.name for kind in scenario.mix.kinds)
        found.append((0.0, f"jobs come and go on {scenario.mix.occupancy:.0%} of the other nodes: {kinds}"))
    found += [(float(getattr(happening, "at", 0.0)), _happens(happening)) for happening in scenario.happenings]
    return found


def _of_job(spec: "JobSpec", duration: float) -> "list[tuple[float, str]]":
    where = spec.nodes if isinstance(spec.nodes, str) else f"{len(spec.nodes)} nodes"
    what = f"job {spec.id} {spec.name} on {where}"
    if spec.after is not None:
        return [(duration, f"{what} starts {spec.start:.0f} s after the end of job {spec.after}")]
    lines = [(spec.start, f"{what} starts")]
    if spec.end is not None and spec.end <= duration:
        lines.append((spec.end, f"job {spec.id} ends: {spec.state}"))
    return lines


def _happens(happening: "Happening") -> str:
    """Return one line: the kind, where, for how long, with what values, and what it is."""
    values = happening.model_dump()
    words = [happening.kind.replace("_", " ")]
    if place := _place(happening):
        words.append(f"at {place}")
    if isinstance(until := values.get("until"), float):
        words.append(f"until {_offset(until)}")
    if values.get("ramp_s"):
        words.append(f"growing over {values['ramp_s']:g} s")
    if values.get("period_s"):
        words.append(f"for {values['duty']:.0%} of every {values['period_s']:g} s")
    rest = [f"{key} {_value(value)}" for key, value in values.items() if key not in _PRINTED and value is not None]
    what = (sys.modules[type(happening).__module__].__doc__ or "").strip().split("\n\n")[0]
    shown = f" ({', '.join(rest)})" if rest else ""
    return f"{' '.join(words)}{shown}. {' '.join(what.split())}"


def _place(happening: "Happening") -> str:
    values = happening.model_dump()
    return " ".join(f"{key}={values[key]}" for key in _PLACE if values.get(key) is not None)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _item(console: "Console", head: str, text: str) -> None:
    from rich.padding import Padding
    from rich.table import Table

    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=10, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(head, text)
    console.print(Padding(row, 0))


def _length(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h" if not rest else f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min"


def _offset(seconds: float) -> str:
    sign, whole = ("-" if seconds < 0 else "+"), round(abs(seconds))
    return f"{sign}{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def named(given: str) -> Path | None:
    """Return the scenario file that a name (or a scenario's file or folder) means; None if it is a recording.

    UserError: it is neither.
    """
    from detectors.nearest import meant
    from services.kit.errors import UsageError
    from services.synth.library import find_scenario, scenario_paths

    path = Path(given)
    if (path / "recording.yaml").exists():
        return None
    if path.exists() and not (path / "scenario.yaml").exists() and path.is_dir():
        return None  # the reader says what is missing in it
    if path.exists() or given in scenario_paths():
        return find_scenario(given)
    raise UsageError(
        f"{given}: neither a recording's directory nor a scenario's name{meant(given, scenario_paths())}",
        remedy="`hindcast list` shows the scenarios",
    )
