import json
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from services.cli.conftest import hindcast
from services.cli.main import app
from services.kit.errors import UserError

ROOT = Path(__file__).parents[3]
NOWHERE = "http://127.0.0.1:1"
DETECTS = (
    *("--alertmanager", NOWHERE, "--findings", "found", "--port", "0", "--node-conditions"),
    *("--config", "detectors.yaml", "--calibration", "usual.json"),
)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--prometheus", NOWHERE], 3, "cannot be reached"),
        (["--prometheus", "prometheus:9090"], 2, "is no URL"),
        (["--prometheus", NOWHERE, "--lookback", "yesterday"], 2, "--lookback 'yesterday'"),
        (["--prometheus", NOWHERE, "--lookback", "90d"], 2, "--lookback '90d'"),
        (["--prometheus", NOWHERE, "--alertmanager", "am"], 2, "ALERTMANAGER_URL"),
        (["--prometheus", NOWHERE, "--topology", "no-such.json"], 1, "no-such.json"),
        (["--prometheus", NOWHERE, "--slurm", "no-such-command"], 2, "--slurm 'no-such-command'"),
        (["--prometheus", NOWHERE, "--slurm", NOWHERE], 3, "http://127.0.0.1:1 cannot be reached"),
        (["--prometheus", NOWHERE, "--slurm", "http://"], 2, "--slurm 'http://' is no URL"),
        (["--prometheus", NOWHERE, "--kubernetes", NOWHERE], 3, "http://127.0.0.1:1 cannot be reached"),
        (["--prometheus", NOWHERE, "--kubernetes", "k8s:6443"], 2, "--kubernetes 'k8s:6443' is no URL"),
        (["--prometheus", NOWHERE, "--kubernetes", NOWHERE, "--slurm", "squeue"], 2, "both list the jobs"),
        (["--prometheus", NOWHERE, "--node-conditions"], 2, "--node-conditions writes into Kubernetes"),
        (
            ["--prometheus", NOWHERE, "--kafka", "127.0.0.1:1", *DETECTS],
            2,
            "without --alertmanager, --findings, --port, --node-conditions, --config, --calibration",
        ),
        (["--prometheus", NOWHERE, "--kafka", "127.0.0.1:1", "--port", "0"], 2, "services there: without --port"),
        (["--prometheus", NOWHERE, "--kafka", "127.0.0.1:1"], 3, "no Kafka broker answers at 127.0.0.1:1"),
        (["--prometheus", NOWHERE, "--state", "{file}"], 2, "state cannot be kept there"),
        (["--prometheus", NOWHERE, "--token-file", "no-such-token"], 2, "no-such-token"),
        (["--prometheus", NOWHERE, "--certificate-file", "no-such-certificate"], 2, "no-such-certificate"),
        (["--prometheus", NOWHERE, "--key-file", "no-such-key"], 2, "no-such-key"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_used_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, words: str
) -> None:
    monkeypatch.setenv("HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S", "0.2")
    file = tmp_path / "file"
    file.touch()
    given = [option.format(file=file) for option in options]
    result = hindcast("live", *given)
    assert isinstance(result.exception, UserError)
    assert (result.exception.exit_code, words in result.exception.message) == (code, True), result.exception
    assert result.exception.remedy
    if words == "cannot be reached":
        assert result.stderr.startswith(f"asking {NOWHERE} ...")


def test_what_the_chart_lets_through_are_options_of_the_command() -> None:
    schema = json.loads((ROOT / "deploy" / "chart" / "values.schema.json").read_text(encoding="utf-8"))
    live = schema["properties"]["live"]["properties"]
    named = {*live["options"]["properties"], *live["optionFiles"]["properties"]}
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    known = {option for parameter in command.commands["live"].params for option in parameter.opts}
    assert {f"--{name}" for name in named} <= known
