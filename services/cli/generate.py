"""`hindcast generate`: the files that are made from the code, and are committed."""

import json
import tempfile
from pathlib import Path

import typer

_ROOT = Path(__file__).resolve().parents[2]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(hidden=True)(generate)


def generate() -> None:
    """Write every generated file of the repository."""
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(path.relative_to(_ROOT))
    from services.synth.small import FOLDER, SMALL, make_small

    for small in SMALL:
        typer.echo(make_small(small, FOLDER).relative_to(_ROOT))


def generated() -> dict[Path, str]:
    """Return the generated files by path.

    The OpenAPI of the API and of the replay service, the JSON schemas of what Kafka carries, Grafana's dashboards, and
    alert rules.
    """
    from services.api.app import build as build_api
    from services.api.settings import ApiSettings
    from services.dashboards import catalogue
    from services.kit.kafka import KafkaSettings
    from services.kit.replays import ReplayState
    from services.replay.api import build
    from services.replay.manager import Manager
    from services.replay.settings import ReplaySettings
    from services.rules.files import generated_rules

    with tempfile.TemporaryDirectory() as nowhere:
        settings = ReplaySettings(state_dir=Path(nowhere))
        api = build(Manager(settings, KafkaSettings()), settings)
        public = build_api(ApiSettings(data_dir=Path(nowhere), console_dir=Path(nowhere) / "none"))
    documents = {"replay.openapi.json": api.openapi(), "replays.schema.json": ReplayState.model_json_schema()}
    dashboards = {_ROOT / "dashboards" / path: text for path, text in catalogue.documents().items()}
    alert_rules = {_ROOT / "alert-rules" / "detectors" / name: text for name, text in generated_rules().items()}
    return (
        dashboards
        | alert_rules
        | {_ROOT / "docs" / "openapi.json": json.dumps(public.openapi(), indent=1) + "\n"}
        | {
            _ROOT / "docs" / "schema" / name: json.dumps(document, indent=1) + "\n"
            for name, document in documents.items()
        }
    )
