"""`hindcast score` and `hindcast compare`: what the detectors catch and miss, and their false alarms."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.recordings.commands import Strict
from services.cli.written import write_file
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from detectors.engine.engine import Choice
    from services.score.comparison import Difference
    from services.score.suite import Scorecard

_Names = Annotated[list[str] | None, typer.Argument(help="recordings' directories, or scenarios of the library")]
_Seeds = Annotated[int, typer.Option(min=1, help="cases of each scenario, by consecutive seeds")]
_FirstSeed = Annotated[int | None, typer.Option(help="the first seed; else the scenario's own")]
_Scale = Annotated[float, typer.Option(min=0.02, max=10, help="nodes, times the profile's")]
_Worlds = Annotated[int, typer.Option(min=0, help="worlds that each case is made in, by consecutive numbers; 0: none")]
_FirstWorld = Annotated[int, typer.Option(min=1, help="the number of the first world")]
_Workers = Annotated[int, typer.Option(min=1, help="recordings scored at a time")]


_WIDE = 100
"""Columns that a terminal needs for the whole table; on narrower ones it is shorter."""


def score(
    names: _Names = None,
    every: Annotated[bool, typer.Option("--all", help="the whole library")] = False,
    config: Annotated[Path | None, typer.Option(help="a detectors.yaml: what differs from the defaults")] = None,
    calibration: Annotated[Path | None, typer.Option(help="what `hindcast calibrate` wrote")] = None,
    seeds: _Seeds = 1,
    first_seed: _FirstSeed = None,
    scale: _Scale = 1.0,
    worlds: _Worlds = 0,
    first_world: _FirstWorld = 1,
    workers: _Workers = 2,
    without: Annotated[
        list[str] | None,
        typer.Option(help="say what detection loses without these, by commas: see `hindcast degrade --help`"),
    ] = None,
    strict: Strict = False,
    out: Annotated[Path | None, typer.Option("--json", help="write the figures there")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page there")] = None,
) -> None:
    """Run the detectors over recordings and score them by the rule of the recording format."""
    from services.detect.choices import load_choices
    from services.recording.without import parse_words

    gone = parse_words(without) if without else ()
    paths = recording_paths(names, every, seeds, first_seed, scale, worlds_from(first_world, worlds))
    choices = load_choices(config, calibration)
    card = _scored(paths, choices, workers, gone, strict=strict)
    figures = card.as_json()
    _print(card)
    if gone:
        before = _scored(paths, choices, workers, strict=strict).as_json()
        _print_loss(before, figures, gone)
        figures = {"without": list(gone), **figures, "with_all": before}
    if out is not None:
        write_file(out, json.dumps(figures, indent=1) + "\n")
    if html is not None:
        from services.score.page import page
        from services.score.seeds import kinds_of_seeds

        write_file(html, page(card, kinds_of_seeds(one.seed for one in card.recordings)))


def compare(
    before: Annotated[Path, typer.Argument(help="a detectors.yaml")],
    after: Annotated[Path, typer.Argument(help="the detectors.yaml that is meant to be better")],
    names: Annotated[list[str], typer.Argument(help="recordings' directories, or scenarios of the library")],
    seeds: _Seeds = 1,
    first_seed: _FirstSeed = None,
    scale: _Scale = 1.0,
    worlds: _Worlds = 0,
    first_world: _FirstWorld = 1,
    workers: _Workers = 2,
) -> None:
    """Show what a change of the configuration would have caught, missed and delayed, and its false alarms."""
    from services.detect.choices import load_choices
    from services.score.comparison import differences

    paths = recording_paths(names, False, seeds, first_seed, scale, worlds_from(first_world, worlds))
    one, other = (_scored(paths, load_choices(config), workers) for config in (before, after))
    _print_differences(differences(one, other), one, other)


def worlds_from(first: int, count: int) -> list[int | None]:
    """Return the numbers of so many worlds; of none, that there is none."""
    return list(range(first, first + count)) or [None]


def recording_paths(
    names: list[str] | None,
    every: bool,
    seeds: int,
    first: int | None,
    scale: float,
    worlds: Sequence[int | None] = (None,),
) -> list[Path]:
    """Return the recordings to score; those of scenarios are made first, with progress shown."""
    from services.cli.recordings.commands import progress_bar
    from services.synth.library import ensure_recording, scenario_paths
    from services.synth.make import Variant
    from services.synth.story.scenario import load_scenario

    if bool(names) == every:
        raise UsageError("name recordings or scenarios, or say --all", remedy="hindcast score --all")
    found: list[Path] = []
    known = scenario_paths()
    for name in names or known:
        if (Path(name) / "recording.yaml").exists():
            found.append(Path(name))
            continue
        own = load_scenario(known[name])[0].seed if name in known else 0
        for number in range(seeds):
            seed = None if first is None and number == 0 else (own if first is None else first) + number
            for world in worlds:
                with progress_bar(f"making {name}") as progress:
                    variant = Variant(seed=seed, scale=scale, world=world)
                    made = ensure_recording(name, variant=variant, progress=progress)
                found.append(made.path)
    return found


def _scored(
    paths: Iterable[Path],
    choices: "Sequence[Choice]",
    workers: int,
    without: Sequence[str] = (),
    *,
    strict: bool = False,
) -> "Scorecard":
    from rich.console import Console

    from services.score.suite import score_all

    listed = list(paths)
    with Console(stderr=True).status("scoring") as status:
        done = 0

        def scored(_: object) -> None:
            nonlocal done
            done += 1
            status.update(f"scoring: {done} of {len(listed)} recordings")

        return score_all(listed, choices, workers=workers, scored=scored, without=without, strict=strict)


def _print(card: "Scorecard") -> None:
    from services.cli.sheets import plain_console, print_sheet
    from services.recording.model import words_of
    from services.score.incidents import incident_sheet
    from services.score.page import behaviour_sheet, fault_sheet
    from services.score.seeds import kinds_of_seeds

    figures, console = card.as_json(), plain_console()
    if any(one["labelled"] for one in figures["recordings"]):
        print_sheet(console, fault_sheet(figures, narrow=console.width < _WIDE))
        print_sheet(console, behaviour_sheet(figures))
        print_sheet(console, incident_sheet(figures))
        console.print()
    for one in figures["recordings"]:
        if one["left_out"]:
            console.print(f"{one['name']}: {one['left_out']}")
        for alarm in one["false"]:
            console.print(f"false alarm in {one['name']}: {alarm['summary']}")
        for finding in one["fired"]:
            console.print(f"fired in {one['name']}: {finding['summary']}")
        for label in one["missed"]:
            missed = f"missed in {one['name']}: {label['fault']} of {words_of(label['entity'])}"
            console.print(missed)
    unknown = [one["name"] for one in figures["recordings"] if not one["labelled"]]
    if unknown:
        which = unknown[0] if len(unknown) == 1 else f"{len(unknown)} recordings"
        console.print(
            f"Nobody has labelled {which}: whether what fired there is right is unknown, and counts nowhere. "
            "`hindcast label` writes down what was wrong.",
        )
    if len(unknown) == len(figures["recordings"]):
        _print_unjudged(console, figures["recordings"])
        return
    if words := kinds_of_seeds(one.seed for one in card.recordings):
        console.print(words)
    _print_unjudged(console, figures["recordings"])


def _print_unjudged(console: "Console", recordings: Sequence[Mapping[str, Any]]) -> None:
    """Print what could not be judged, or only late, and in which recordings."""
    where: dict[str, list[str]] = {}
    for one in recordings:
        for line in one["unjudged"]:
            where.setdefault(line, []).append(one["name"])
    for line, names in where.items():
        of = (
            "" if len(names) == len(recordings) else f" [{names[0] if len(names) == 1 else f'{len(names)} recordings'}]"
        )
        console.print(f"{line}{of}")


def _print_loss(before: Mapping[str, Any], after: Mapping[str, Any], without: Sequence[str]) -> None:
    """Print what detection loses, by fault, and which labels are missed only without."""
    from services.cli.sheets import plain_console, print_sheet
    from services.recording.model import words_of
    from services.score.loss import loss_sheet

    console = plain_console()
    print_sheet(console, loss_sheet(before, after, without))
    for one, other in zip(before["recordings"], after["recordings"], strict=True):
        known = {label["id"] for label in one["missed"]}
        for label in other["missed"]:
            if label["id"] not in known:
                lost = f"lost in {other['name']}: {label['fault']} of {words_of(label['entity'])}"
                console.print(lost)


def _print_differences(found: "list[Difference]", one: "Scorecard", other: "Scorecard") -> None:
    from rich.table import Table

    from services.cli.sheets import plain_console
    from services.recording.model import words_of

    console = plain_console()
    table = Table("recording", "change", "fault", "entity", "by")
    for entry in found:
        about = entry.label.entity if entry.label else (entry.after or entry.before).entity  # type: ignore[union-attr]  # one is there
        words = words_of(about)
        table.add_row(
            entry.recording, entry.change, entry.fault, words, f"{entry.seconds:+.0f} s" if entry.seconds else ""
        )
    console.print(table if found else "no difference: both configurations say the same")
    for title, card in (("before", one), ("after", other)):
        counts = card.by_fault["all"]
        console.print(
            f"{title}: precision {counts.precision:.3f}, recall {counts.recall:.3f}, {counts.false_alarms} false alarms"
        )
