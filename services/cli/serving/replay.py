"""`hindcast replay`: start and steer replays through the control API of the replay service."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.recordings.commands import Strict

if TYPE_CHECKING:
    from services.replay.settings import ControlSettings

_TIMES = "RFC 3339, +HH:MM:SS or +10m from the recording's start, -5m from its end"
_UNREACHABLE = 3
_EXIT_CODES = {422: 1, 503: _UNREACHABLE}

commands = typer.Typer(name="replay", help="Replay recordings into Kafka, at any speed.", no_args_is_help=True)


@commands.command()
def start(
    recording: Annotated[Path, typer.Argument(help="The recording's folder.")],
    speed: Annotated[str, typer.Option(help="Times real time, 1 to 1000, or max.")] = "1",
    shift: Annotated[str, typer.Option(help="now: it ends now; start-now (speed 1): it begins now; keep.")] = "now",
    name: Annotated[str | None, typer.Option(help="Its name; without one, the recording's.")] = None,
    target: Annotated[str | None, typer.Option(help="prometheus or receive; by the shift if not given.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help=f"Begin here: {_TIMES}.")] = None,
    to: Annotated[str | None, typer.Option("--to", help=f"End here: {_TIMES}.")] = None,
    config: Annotated[Path | None, typer.Option(help="A detectors.yaml: what this replay has otherwise.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="What `hindcast calibrate` wrote.")] = None,
    strict: Strict = False,
    wait: Annotated[bool, typer.Option("--wait", help="Show its progress and return when it is over.")] = False,
) -> None:
    """Start a replay."""
    asked: dict[str, Any] = {"recording": str(recording.resolve()), "speed": _speed(speed), "shift": shift}
    if strict:
        asked["strict"] = True
    given: dict[str, Any] = {"name": name, "target": target, "from": from_, "to": to}
    if config is not None or calibration is not None:
        given |= _detection(config, calibration)
    status = _call("POST", "", asked | {key: value for key, value in given.items() if value is not None})
    _print(status)
    if wait:
        _follow(status["name"])


def _detection(config: Path | None, calibration: Path | None) -> dict[str, Any]:
    """Return what a detectors.yaml and a calibration say, as the control API takes it; UserError (exit code 2)."""
    from detectors.registry import BUDGET, XIDS, allowances, discover
    from services.detect.choices import CALIBRATION, calibration_of, choices_of, incident_config_of, overrides_in

    overrides = overrides_in(config)
    if calibration is not None:
        overrides[CALIBRATION] = str(calibration.resolve())
    tails = calibration_of(overrides, config)
    choices_of(overrides, config, tails)
    incident_config_of(overrides, config)
    overrides.pop(CALIBRATION, None)
    if (budget := overrides.pop(BUDGET, None)) is not None:  # each detector's share: a replay has settings of detectors
        for name, share in allowances(budget).items():
            overrides[name] = {BUDGET: share, **(overrides.get(name) or {})}
    if xids := overrides.pop(XIDS, None):
        by_code = {str(code): what for code, what in xids.items()}
        for name in discover():
            overrides[name] = {XIDS: by_code, **(overrides.get(name) or {})}
    return {"detectors": overrides, "calibration": tails}


@commands.command()
def pause(name: str) -> None:
    """Stop the schedule of a replay."""
    _print(_call("POST", f"/{name}/pause"))


@commands.command()
def resume(name: str) -> None:
    """Let a paused replay go on; a failed one goes on from where it was safe."""
    _print(_call("POST", f"/{name}/resume"))


@commands.command()
def stop(name: str) -> None:
    """End a replay where it is."""
    _print(_call("POST", f"/{name}/stop"))


@commands.command()
def seek(name: str, to: Annotated[str, typer.Argument(help=f"{_TIMES}.")]) -> None:
    """Go on at another time, as a new generation: detectors start afresh, warmed from just before."""
    _print(_call("POST", f"/{name}/seek", {"to": to}))


@commands.command()
def speed(name: str, speed: Annotated[str, typer.Argument(help="1 to 1000, or max.")]) -> None:
    """Go on at another speed."""
    _print(_call("POST", f"/{name}/speed", {"speed": _speed(speed)}))


@commands.command()
def rm(name: str) -> None:
    """Stop a replay and forget it, with its tenant's data in Thanos Receive where the service reaches them."""
    _call("DELETE", f"/{name}")
    typer.echo(f"removed {name}")


@commands.command()
def status(name: str, as_json: Annotated[bool, typer.Option("--json", help="All of it, as JSON.")] = False) -> None:
    """Show where a replay is."""
    found = _call("GET", f"/{name}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(found)


@commands.command(name="list")
def listing() -> None:
    """Show all replays."""
    found = _call("GET", "")
    for status in found:
        _print(status)
    if not found:
        typer.echo("no replays")


def control_url(settings: "ControlSettings") -> str:
    """Return where the control API is: as the settings say, else that of a running stack, else the default port."""
    from services.stack import state
    from services.stack.settings import load_settings

    if settings.url:
        return settings.url.rstrip("/")
    running = state.read(load_settings().state_dir)
    services = running.addresses.get("services") if running is not None else None
    found = services.get("replay") if isinstance(services, dict) else None
    return str(found or "http://127.0.0.1:8480").rstrip("/")


def _speed(text: str) -> float | str:
    from services.kit.errors import UsageError

    try:
        return "max" if text == "max" else float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a speed", remedy="give 1 to 1000, or max") from None


def _call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return what the control API answers; raise UserError with what it says went wrong."""
    import httpx

    from services.kit.errors import UserError
    from services.kit.settings import load
    from services.replay.settings import ControlSettings

    settings = load(ControlSettings)
    base = control_url(settings)
    headers = {"Authorization": f"Bearer {settings.token.get_secret_value()}"} if settings.token else {}
    try:
        answer = httpx.request(
            method, f"{base}/api/v1/replays{path}", json=body, timeout=60.0, headers=headers, verify=settings.tls()
        )
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise UserError(
            f"no replay service answers at {base} ({type(error).__name__})",
            remedy="start one (hindcast stack up), or set HINDCAST_REPLAY_URL to where yours is",
            exit_code=_UNREACHABLE,
        ) from None
    if answer.is_success:
        return answer.json() if answer.content else None
    try:
        problem = answer.json()
        remedy, exit_code = problem["remedy"], _EXIT_CODES.get(answer.status_code, 2)
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            remedy = "name the file with an operator's token in HINDCAST_REPLAY_TOKEN_FILE (hindcast token makes one)"
        raise UserError(problem["detail"], remedy=remedy, exit_code=exit_code)
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{base} answers {answer.status_code}, and not as the replay service does",
            remedy="check HINDCAST_REPLAY_URL",
            exit_code=_UNREACHABLE,
        ) from None


def _print(status: dict[str, Any]) -> None:
    speed = status["speed"] if status["speed"] == "max" else f"{status['speed']:g}x"
    typer.echo(
        f"{status['name']}  {status['state']}  {status['progress']:.1%}  event time {status['event_time']}  "
        f"speed {speed}  lag {status['lag_s']:.3f} s  rows {sum(status['rows'].values()):,}  "
        f"samples {sum(status['samples'].values()):,}  generation {status['generation']}  -> {status['target']}"
    )
    if status["left_out"]:
        typer.echo(f"  {status['left_out']}")
    if status["error"]:
        typer.echo(f"  error: {status['error']}")


def _follow(name: str) -> None:
    """Show a replay's progress until it is over; raise UserError where it fails."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from services.kit.errors import UserError
    from services.kit.wait import until

    figures_column = TextColumn("{task.fields[figures]}")
    with Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), figures_column) as progress:
        task = progress.add_task(name, total=1.0, figures="")

        def over() -> dict[str, Any] | None:
            status: dict[str, Any] = _call("GET", f"/{name}")
            samples = sum(status["samples"].values())
            figures = f"{status['event_time']}  {samples:,} samples  lag {status['lag_s']:.2f} s  {status['state']}"
            progress.update(task, completed=status["progress"], figures=figures)
            return status if status["state"] in ("ended", "stopped", "failed") else None

        status = until(over, timeout_s=float("inf"), what=f"replay {name} to end", interval_s=0.25)
    _print(status)
    if status["state"] == "failed":
        raise UserError(
            f"replay {name} has failed: {status['error']}", remedy=f"mend that, then: hindcast replay resume {name}"
        )
