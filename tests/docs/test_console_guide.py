"""What docs/console.md says to ask of the API is what docs/openapi.json takes."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from services.api.replays.models import ReplayStart
from services.api.runs.models import RunRequest
from services.api.settings import ApiSettings
from services.detect.choices import choices_of

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "console.md").read_text(encoding="utf-8")
PATHS: dict[str, Any] = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))["paths"]
CALLS = [shlex.split(call, comments=True) for call in re.findall(r"^curl .*", GUIDE.replace("\\\n", " "), re.MULTILINE)]
BODIES: dict[str, type[RunRequest | ReplayStart]] = {"/api/v1/runs": RunRequest, "/api/v1/replays": ReplayStart}


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_every_call_is_one_that_the_api_has(words: list[str]) -> None:
    (url,) = [word for word in words if word.startswith("http://")]
    path = url.removeprefix(f"http://127.0.0.1:{ApiSettings().port}").replace("/RUN", "/{run}")
    method = words[words.index("-X") + 1].lower() if "-X" in words else "get"
    assert method in PATHS[path]
    if "-d" in words:
        asked = BODIES[path].model_validate_json(words[words.index("-d") + 1])
        assert choices_of(asked.detectors)


def test_there_are_calls_and_settings_that_exist() -> None:
    assert {"/api/v1/runs", "/api/v1/replays"} <= {
        path for path in BODIES for words in CALLS if any(path in w for w in words)
    }
    named = {name.lower() for name in re.findall(r"HINDCAST_API_([A-Z_]+)", GUIDE)}
    assert named
    assert named <= set(ApiSettings.model_fields)
