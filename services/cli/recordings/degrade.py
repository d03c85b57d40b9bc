"""`hindcast degrade`: a recording as a poorer monitoring would have made it."""

from typing import Annotated

import typer

from services.cli.recordings.named import NewDir, RecordingDir
from services.recording.without import ALSO, WORDS

_ALL = WORDS | {also: f"the same as {word}" for also, word in ALSO.items()}
_LIST = "\n".join(f"{word:22} {what}" for word, what in _ALL.items())


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(
        help="Take telemetry away from a recording, to see what detectors make of the rest. The labels stay.\n\n"
        f"What can be taken away with --without, several by commas:\n\n\b\n{_LIST}"
    )(degrade)


def degrade(
    directory: RecordingDir,
    without: Annotated[list[str], typer.Option(help="what to take away, by commas; may be given again")],
    out: NewDir,
    seed: Annotated[int, typer.Option(min=0, help="which scrapes are lost")] = 0,
) -> None:
    """Take telemetry away from a recording."""
    from services.cli.recordings.commands import recording_name
    from services.recording.degrade import degrade_recording
    from services.recording.reader import Recording
    from services.recording.without import parse_words

    words, name = parse_words(without), recording_name(out)
    degrade_recording(Recording.open(directory), out, words, name=name, seed=seed)
    typer.echo(f"{out}: written, without {', '.join(words)}")
