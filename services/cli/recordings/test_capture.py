import socket
from pathlib import Path
from typing import Any

import pytest
import typer

from services.cli.conftest import hindcast
from services.cli.main import app
from services.kit.errors import UserError


@pytest.mark.parametrize("command", [["capture"], ["import", "prometheus"]])
def test_both_names_capture_and_say_when_there_is_no_server(command: list[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"  # bound, and nobody listens
        options = ["--url", url, "--from", "2024-04-01T08:00:00Z", "--to", "2024-04-01T09:00:00Z", "--retries", "0"]
        result = hindcast(*command, *options, "--out", tmp_path / "none")
    assert isinstance(result.exception, UserError)
    assert (result.exception.exit_code, "cannot be reached" in result.exception.message) == (3, True)


def test_capture_has_the_importers_options() -> None:
    group: Any = typer.main.get_command(app)
    known = {option for parameter in group.get_command(None, "capture").params for option in parameter.opts}
    assert {"--url", "--from", "--to", "--match", "--step", "--tenant", "--bearer-file", "--shift"} <= known
