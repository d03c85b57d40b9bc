"""`hindcast calibrate`: what is usual at a site, from its own healthy history."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.recordings.commands import progress_bar
from services.cli.recordings.from_server import BearerFile, CaFile, Cluster, PasswordFile, Tenant, Url, User, captured
from services.cli.recordings.named import recordings_of
from services.cli.written import write_file
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.detect.calibration import Calibration, Measured
    from services.recording.reader import Recording
    from services.score.suite import Scorecard

_ENOUGH = 3.0
"""Without any event, the upper 95 % bound of a Poisson mean."""


def calibrate(
    out: Annotated[Path, typer.Option(help="write the calibration there", show_default=False)],
    recordings: Annotated[
        list[Path] | None, typer.Argument(help="recordings of healthy times", callback=recordings_of)
    ] = None,
    url: Url = None,
    hours: Annotated[float, typer.Option(min=1, max=720, help="with --url: how much of its past to read")] = 24.0,
    config: Annotated[Path | None, typer.Option(help="a detectors.yaml: what differs from the defaults")] = None,
    workers: Annotated[int, typer.Option(min=1, help="recordings judged at a time")] = 2,
    cluster: Cluster = None,
    bearer_file: BearerFile = None,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    tenant: Tenant = None,
) -> None:
    """Learn what is usual at your site from its healthy history, so that detectors know it from the first minute.

    Learnt is from the earlier half; how many false alarms remain is measured on the later. In detectors.yaml:
    `calibration: FILE`.
    """
    from services.detect.choices import CALIBRATION, choices_of, overrides_in
    from services.recording.importers.parts.series.query_api import Access
    from services.recording.reader import Recording
    from services.score.calibrate import halves, learnt
    from services.score.suite import node_days, score_all

    if bool(recordings) == (url is not None):
        raise UsageError(
            "name recordings or a server", remedy="hindcast calibrate DIR..., or --url http://prometheus:9090"
        )
    _check(out)
    overrides = {name: given for name, given in overrides_in(config).items() if name != CALIBRATION}
    choices_of(overrides, config)
    with ExitStack() as stack:
        paths = list(recordings or ())
        if url is not None:
            access = Access(url, bearer_file, user, password_file, ca_file, tenant)
            paths = [stack.enter_context(captured(access, hours, cluster))]
        opened = [Recording.open(path) for path in paths]
        _one_cluster(opened)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hindcast-calibrate-")))
        earlier, later = halves(opened, folder)
        with progress_bar("learning") as moved:
            known = learnt(
                earlier,
                lambda tails: choices_of(overrides, config, tails),
                lambda name, share: moved(share, description=f"learning from {name}"),
            )
        choices = choices_of(overrides, config, known)
        card = score_all([one.path for one in later], choices, workers=workers, healthy=True)
        learnt_days = sum(node_days(one) for one in earlier)
        made = _document(opened[0].manifest.cluster.name, known, earlier, later, learnt_days, card, overrides, url)
    write_file(out, made.model_dump_json(indent=1) + "\n")
    _print(out, made, card)


def _check(out: Path) -> None:
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise UsageError(f"--out {out}: no file can be written there", remedy="name a file in a folder")


def _one_cluster(recordings: "Sequence[Recording]") -> None:
    names = sorted({one.manifest.cluster.name for one in recordings})
    if len(names) > 1:
        raise UsageError(
            f"the recordings are of {len(names)} clusters: {', '.join(names)}",
            remedy="what is usual is a cluster's own: calibrate each by itself",
        )


def _document(
    cluster: str,
    known: "Mapping[str, Any]",
    earlier: "Sequence[Recording]",
    later: "Sequence[Recording]",
    learnt_days: float,
    card: "Scorecard",
    overrides: "Mapping[str, Any]",
    url: str | None,
) -> "Calibration":
    from detectors.registry import BUDGET, BUDGET_DEFAULT, discover
    from services.detect.calibration import FORMAT, Calibration
    from services.kit.times import format_time
    from services.recording.writer import sha256_of
    from services.score.calibrate import false_by_detector

    sources = [
        {
            "name": one.manifest.name,
            "manifest_sha256": sha256_of(one.path / "recording.yaml"),
            "start": format_time(one.manifest.start),
            "end": format_time(one.manifest.end),
            "used": used,
            "url": url,
        }
        for used, lot in (("fitted", earlier), ("measured", later))
        for one in lot
    ]
    figures = card.as_json()
    return Calibration.model_validate(
        {
            "format": FORMAT,
            "cluster": cluster,
            "fitted_node_days": round(learnt_days, 3),
            "sources": sources,
            "measured": {
                "node_days": figures["node_days"],
                "false_alarms": figures["faults"]["all"]["false_alarms"],
                "rate": figures["false_alarms_per_100_node_days"],
                "rate_upper_95": figures["false_alarms_per_100_node_days_upper_95"],
                "budget": overrides.get(BUDGET, BUDGET_DEFAULT),
                "by_detector": false_by_detector(card),
            },
            "detectors": {
                name: {"version": discover()[name].spec.version, "tails": tails} for name, tails in known.items()
            },
        }
    )


def _print(out: Path, made: "Calibration", card: "Scorecard") -> None:
    measured = made.measured
    assert measured is not None  # noqa: S101 - it was made just now
    typer.echo(f"{out}: what is usual in {made.cluster}, from {made.fitted_node_days:.2f} node-days")
    for name, known in made.detectors.items():
        readings = sum(sum(tail.counts) for tail in known.tails.values())
        typer.echo(f"  {name}: {len(known.tails)} signal(s), {readings:,.0f} residuals")
    typer.echo(_rate(measured))
    for recording, outcome in card.false_alarms():
        if outcome.finding is not None:
            typer.echo(f"  {recording}: {outcome.finding.summary}")
    typer.echo(f"Use it: `calibration: {out.name}` in a detectors.yaml beside it, or --calibration {out}")


def _rate(measured: "Measured") -> str:
    """Return the false-alarm rate in words, beside the budget, and how much history it would take to be sure."""
    words = f"Measured on the other {measured.node_days:.2f} node-days: {measured.false_alarms} false alarm(s)"
    if measured.rate is not None and measured.rate_upper_95 is not None:
        words += f", {measured.rate:.3g} in 100 node-days (at most {measured.rate_upper_95:.3g} with 95 % confidence)"
    words += f"; the budget is {measured.budget:g}"
    wanted = 100 * _ENOUGH / measured.budget
    if measured.rate_upper_95 is None or measured.rate_upper_95 > measured.budget:
        words += f". To be sure of so few it would take {wanted:,.0f} node-days without one"
    return f"{words}."
