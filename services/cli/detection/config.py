"""`hindcast config`: a detectors.yaml with every setting in it, commented, and what is wrong with one of yours."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.written import unwritable
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from detectors.contract import Default

_WIDTH = 118
_HEAD = """\
## What differs from hindcast's defaults. Every setting stands here with its default: take the # off a line, and off
## the name above it, and change the value. `hindcast config check FILE` says what is wrong with a file.
##
## For commands: --config FILE. For a running service: HINDCAST_DETECT_CONFIG=FILE.
"""


commands = typer.Typer(name="config", help="Write or check a detectors.yaml.", no_args_is_help=True)


@commands.command()
def init(
    out: Annotated[Path, typer.Argument(help="file to write; must not exist yet")] = Path("detectors.yaml"),
) -> None:
    """Write a detectors.yaml with every setting, its unit, its default and where that comes from, all commented out."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(commented())
    except FileExistsError:
        raise UsageError(f"{out}: exists already", remedy="name another file") from None
    except OSError as error:
        raise unwritable(out, f"cannot be written: {error.strerror}") from None
    typer.echo(f"{out}: written; nothing in it differs from the defaults yet")


@commands.command()
def check(path: Annotated[Path, typer.Argument(help="a detectors.yaml", show_default=False)]) -> None:
    """Say what is wrong with a detectors.yaml, and which detectors it leaves running."""
    from services.detect.choices import load_choices, load_incident_config

    choices = load_choices(path)
    load_incident_config(path)
    shadow = [kind.spec.name for kind, config in choices if config.shadow]
    running = f"{len(choices)} detectors run" + (f", {', '.join(shadow)} in shadow" if shadow else "")
    typer.echo(f"{path}: good; {running}")


def commented() -> str:
    """Return the file that `init` writes."""
    from detectors.incidents.knowledge import TABLE
    from detectors.registry import BUDGET, BUDGET_DEFAULT, XIDS, discover

    lines = [_HEAD]
    lines += _words("false alarms in 100 node-days that all detectors together may raise; each has its share of them")
    lines += [f"#{BUDGET}: {BUDGET_DEFAULT}", ""]
    lines += _words("what your site says of XIDs, by code, as {121: {class: gpu_lost}}: docs/reference/xids.md")
    lines += [f"#{XIDS}: {{}}", ""]
    lines += [*_words("what `hindcast calibrate` wrote, relative to this file"), "#calibration: calibration.json", ""]
    for name, kind in sorted(discover().items()):
        lines += [*_words(f"finds {', '.join(kind.spec.faults)}"), f"#{name}:", "#  enabled: true"]
        lines += _words("true: what it finds is recorded, and nobody is alerted")
        lines += ["#  shadow: false", *_settings(kind.spec.defaults), ""]
    lines += [*_words("how findings become incidents"), "#incidents:", *_settings(TABLE.settings)]
    return "\n".join(lines) + "\n"


def _settings(defaults: "Mapping[str, Default]") -> Iterator[str]:
    import json

    for name, default in defaults.items():
        yield from _words(f"{default.unit}; {default.source}")
        yield f"#  {name}: {json.dumps(default.value)}"


def _words(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, _WIDTH, initial_indent="## ", subsequent_indent="## ")
