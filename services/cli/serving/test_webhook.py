import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.kit.wait import until
from tests import web


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[str]:
    """The receiver as a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {"HINDCAST_RECEIVER_PORT": str(port), "HINDCAST_RECEIVER_STATE_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-m", "services.notify.receiver"], env=os.environ | settings) as process:
        until(lambda: web.healthy(url), what="the receiver")
        yield url
        process.terminate()
        process.wait(30)


def test_webhook_test_delivers_and_says_so(receiver: str) -> None:
    done = hindcast("webhook", "test", f"{receiver}/webhook")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [f"delivered: {receiver}/webhook answered 200 OK", '{"alerts":1}']
    (entry,) = web.get(f"{receiver}/received").json()
    assert entry["body"]["alerts"][0]["labels"]["test"] == "true"


def test_webhook_test_of_nothing_that_listens_is_a_plain_error() -> None:
    done = hindcast("webhook", "test", "http://127.0.0.1:1/webhook")
    assert isinstance(done.exception, UserError)
    assert done.exception.exit_code == 3
    assert "no answer from http://127.0.0.1:1/webhook" in str(done.exception)
