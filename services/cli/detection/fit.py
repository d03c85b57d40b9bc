"""`hindcast fit` and `hindcast novelty`: a model of healthy GPUs, and what it finds unlike them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.detection.run import write_lines
from services.cli.recordings.named import RecordingDir, recordings_of
from services.kit.errors import UsageError, UserError
from services.kit.times import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detectors.contract import Finding
    from services.model.artefact import Model
    from services.model.novelty import Novelty

_AROUND_MS = 300_000
"""A finding this long before a novelty began, or after it ended, may still be of the same thing (judgement)."""


def fit(
    recordings: Annotated[list[Path], typer.Argument(help="Recordings.", callback=recordings_of, show_default=False)],
    out: Annotated[Path, typer.Option(help="Write the model there.", show_default=False)],
) -> None:
    """Fit a model of how healthy GPUs differ from the peers of their job; labelled faults are left out."""
    from rich.console import Console

    from services.model.artefact import save
    from services.model.fit import fit as fitted

    with Console(stderr=True).status("fitting") as status:
        model = fitted(recordings, lambda name: status.update(f"fitting: {name}"))
    digest = save(model, out)
    _describe(model)
    typer.echo(f"{out}: sha256 {digest}")


def novelty(
    recording: RecordingDir,
    model: Annotated[Path, typer.Option(help="What `hindcast fit` wrote.", show_default=False)],
    findings: Annotated[Path | None, typer.Option(help="What `hindcast run --findings` wrote: what agrees?")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the novelties there, one JSON object a line.")] = None,
) -> None:
    """Say which GPUs were unlike the peers of their job, when, and in what; it names no fault and raises no alarm."""
    from services.model.artefact import load
    from services.model.novelty import novelties
    from services.recording.reader import Recording

    known, _ = load(model)
    raised = _findings(findings) if findings is not None else []
    found = list(novelties(Recording.open(recording), known))
    for one in found:
        typer.echo(f"{format_time(one.detected_at)} {one.state} {one.score:.1f} times the threshold: {one.summary}")
    begun = [one for one in found if one.state == "firing"]
    typer.echo(f"{len(begun)} GPU(s) or node(s) unlike their peers")
    if findings is not None:
        _print_agreement(found, raised)
    if out is not None:
        write_lines(out, found)


def _describe(model: "Model") -> None:
    facts = model.facts
    for one in facts.recordings:
        typer.echo(f"{one.name}: {one.rows} rows, {one.left_out} near labelled faults left out, sha256 {one.sha256}")
    typer.echo(
        f"{facts.rows} rows of {len(facts.features)} features; {facts.components} components explain "
        f"{facts.explained_variance:.1%} of the variance"
    )
    typer.echo(
        f"threshold {facts.threshold:.3g} in {facts.needed} of {facts.window} windows: {facts.margin:g} times what one "
        f"healthy window in {1 / (1 - facts.quantile):,.0f} reaches"
    )


def _findings(path: Path) -> "list[Finding]":
    """Return the firing findings of a file. UserError names the line that is none."""
    from services.kit.findings import finding_in
    from services.kit.wire import WireError

    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", remedy="give a readable file") from None
    for number, line in enumerate(lines, start=1):
        try:
            found.append(finding_in(line))
        except WireError as error:
            raise UserError(
                f"{path}: line {number}: {error}", remedy="write it with `hindcast run --findings`"
            ) from None
    return [one for one in found if one.state == "firing"]


def _print_agreement(found: "Sequence[Novelty]", raised: "Sequence[Finding]") -> None:
    """Say which findings a novelty supports, and which novelties no finding is about."""
    from services.score.matching import same_place

    ends = {one.id: one.detected_at for one in found if one.state == "resolved"}
    begun = [one for one in found if one.state == "firing"]
    explained: set[str] = set()
    for one in raised:
        support = [
            other
            for other in begun
            if other.started_at - _AROUND_MS <= one.detected_at <= ends.get(other.id, other.detected_at) + _AROUND_MS
            and same_place(one.entity, other.entity)
        ]
        explained |= {other.id for other in support}
        where = " ".join(f"{key}={value}" for key, value in sorted(one.entity.items(), reverse=True))
        words = f"supported by {support[0].summary}" if support else "not seen by the model"
        typer.echo(f"{one.fault} {where}: {words}")
    for other in begun:
        if other.id not in explained:
            typer.echo(f"no finding explains: {other.summary}")
