"""`hindcast tune`: one setting of a detector swept, with what each value would have caught, and its false alarms."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.written import write_file
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from detectors.contract import Detector
    from services.score.sweep import Value

_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting", help="NAME, or NAME=VALUE,VALUE,...; may be given several times, each is swept by itself"
    ),
]


def tune(
    detector: Annotated[
        str, typer.Argument(help="the detector's name, as its folder in detectors/", show_default=False)
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="recordings' directories, or scenarios; else all that have its faults, and a healthy one"),
    ] = None,
    setting: _Settings = None,
    seeds: Annotated[int, typer.Option(min=1, help="cases of each scenario, by consecutive seeds")] = 1,
    first_seed: Annotated[int | None, typer.Option(help="the first seed; else the scenario's own")] = None,
    scale: Annotated[float, typer.Option(min=0.02, max=10, help="nodes, times the profile's")] = 0.1,
    workers: Annotated[int, typer.Option(min=1, help="recordings scored at a time")] = 2,
    on_test_seeds: Annotated[
        bool, typer.Option(help="tune on seeds that are kept for tests: they are spent then")
    ] = False,
    out: Annotated[Path | None, typer.Option("--json", help="write the figures there")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page there")] = None,
) -> None:
    """Sweep a detector's thresholds: precision, recall, delay and false alarms at each value, on training seeds."""
    from rich.console import Console

    from services.cli.detection.score import recording_paths
    from services.cli.sheets import plain_console, print_sheet
    from services.score.curve import svg_curve, sweep_sheet, text_curve
    from services.score.seeds import TEST_SEEDS
    from services.score.sheet import Sheet, page_of
    from services.score.sweep import best, kind_of, sweep

    kind = kind_of(detector)
    wanted = _settings(kind, setting)
    if first_seed in TEST_SEEDS and not on_test_seeds:
        _refuse(f"seeds from {TEST_SEEDS.start} on are for tests", "a --first-seed below that")
    paths = recording_paths(names or _scenarios(kind), False, seeds, first_seed, scale)
    if not on_test_seeds:
        _check_seeds(paths)
    console = plain_console()
    parts: list[Sheet | str] = []
    figures: dict[str, object] = {}
    for name, values in wanted.items():
        with Console(stderr=True).status(f"{name}") as status:
            points = sweep(
                kind,
                name,
                values,
                paths,
                workers=workers,
                progress=lambda done, of, name=name, status=status: status.update(f"{name}: {done} of {of} runs"),  # type: ignore[misc]
            )
        sheet = sweep_sheet(name, kind.spec.defaults[name].unit, points)
        parts += [sheet, svg_curve(name, points)]
        figures[name] = {
            "best": best(points).value,
            "default": kind.spec.defaults[name].value,
            "values": {str(point.value): point.card.as_json()["faults"]["all"] for point in points},
        }
        print_sheet(console, sheet)
        console.print(text_curve(points))
        console.print("D the default, B the best, * both")
    scope = f"{'TEST' if on_test_seeds else 'training'} seeds; {len(paths)} recordings, scale {scale:g}"
    console.print(f"\n{scope}. Faults: {', '.join(kind.spec.faults)}.")
    if on_test_seeds:
        console.print("These seeds are kept for tests: what was tuned on them can't be tested on them.", style="red")
    if out is not None:
        write_file(out, json.dumps({"detector": detector, "seeds": scope, "settings": figures}, indent=1) + "\n")
    if html is not None:
        write_file(html, page_of(f"{detector}, tuned", scope, parts))


def _settings(kind: "type[Detector]", given: list[str] | None) -> "dict[str, list[Value]]":
    """Return the settings to sweep with their values; the first number of detector.yaml where none is named."""
    from services.score.sweep import values_around

    if not given:
        numbers = [n for n, default in kind.spec.defaults.items() if not isinstance(default.value, str | bool)]
        if not numbers:
            _refuse(f"{kind.spec.name} has no setting that is a number", "--setting NAME=VALUE,VALUE")
        given = numbers[:1]
    found: dict[str, list[Value]] = {}
    for text in given:
        name, _, listed = text.partition("=")
        known = values_around(kind, name) if not listed else [_value(item) for item in listed.split(",")]
        default = kind.spec.defaults[name].value if name in kind.spec.defaults else known[0]
        together = list(dict.fromkeys([*known, default]))
        ordered = all(isinstance(value, int | float) for value in together)
        found[name] = sorted(together, key=float) if ordered else together
    return found


def _value(text: str) -> "Value":
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _scenarios(kind: "type[Detector]") -> list[str]:
    """Return the scenarios of the library that owe an alert of one of the detector's faults, and a healthy one."""
    from services.synth.library import scenario_paths
    from services.synth.make import scenario_and_world
    from services.synth.story.labels import labels_of

    found = []
    for name, path in scenario_paths().items():
        labels = labels_of(*scenario_and_world(path), [])
        if any(label.fault in kind.spec.faults and not label.optional for label in labels):
            found.append(name)
    return [*found, "vela-healthy"]


def _check_seeds(paths: list[Path]) -> None:
    from services.recording.reader import read_manifest
    from services.score.seeds import TEST_SEEDS

    for path in paths:
        if (seed := read_manifest(path).seed) in TEST_SEEDS:
            _refuse(f"{path} has seed {seed}, which is kept for tests", "another recording")


def _refuse(why: str, instead: str) -> None:
    raise UsageError(why, remedy=f"give {instead}, or say --on-test-seeds and test on others")
