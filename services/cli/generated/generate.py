"""`hindcast generate`: the files that are made from the code, and are committed."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

if TYPE_CHECKING:
    from fastapi import FastAPI

_ROOT = Path(__file__).resolve().parents[3]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(hidden=True)(generate)


def generate() -> None:
    """Write every generated file of the repository, and name those that changed."""
    from services.synth.small import FOLDER, SMALL, make_small

    changed = []
    for path, text in generated().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        changed.append(path)
    for small in SMALL:
        before = _contents(FOLDER / small.name)
        folder = make_small(small, FOLDER)
        changed += [folder] if _contents(folder) != before else []
    typer.echo("\n".join(f"written: {path.relative_to(_ROOT)}" for path in changed) or "all is as it should be")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*") if path.is_file()}


def generated() -> dict[Path, str]:
    """Return the generated files by path.

    The reference pages, the OpenAPI of the API and of the replay service, the console's types of the former, who may
    ask all services what, the JSON schemas of what Kafka carries, Grafana's dashboards, alert rules, and what the Helm
    chart has of them.
    """
    from services.cli.generated import chart, matrix
    from services.cli.generated.console_types import console_types
    from services.cli.reference.pages import pages
    from services.dashboards import catalogue
    from services.kit.replays import ReplayState
    from services.rules.files import generated_rules

    with tempfile.TemporaryDirectory() as nowhere, matrix.applications(Path(nowhere)) as apps:
        authorisation = matrix.page(apps)
        public, replay = (cast("FastAPI", apps[name]).openapi() for name in ("API", "replay"))
    documents = {"replay.openapi.json": replay, "replays.schema.json": ReplayState.model_json_schema()}
    dashboards = {_ROOT / "dashboards" / path: text for path, text in catalogue.documents().items()}
    alert_rules = {_ROOT / "alert-rules" / "detectors" / name: text for name, text in generated_rules().items()}
    return (
        dashboards
        | alert_rules
        | {
            _ROOT / "deploy" / "chart" / "files" / name: text
            for name, text in chart.documents(_ROOT / "alert-rules" / "alertmanager.yaml").items()
        }
        | {_ROOT / "docs" / "reference" / name: text for name, text in pages().items()}
        | {_ROOT / "docs" / "authorisation.md": authorisation}
        | {_ROOT / "docs" / "openapi.json": json.dumps(public, indent=1) + "\n"}
        | {_ROOT / "services" / "console" / "src" / "openapi.ts": console_types(public)}
        | {
            _ROOT / "docs" / "schema" / name: json.dumps(document, indent=1) + "\n"
            for name, document in documents.items()
        }
    )
