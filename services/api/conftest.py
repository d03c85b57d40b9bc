"""The API on the small recordings that are committed: real files, the real engine."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from fastapi import FastAPI

from services.api.app import build
from services.api.settings import ApiSettings
from services.kit.wait import until

SMALL = Path(__file__).parents[2] / "replay-data" / "small"


def settings_at(folder: Path, **given: object) -> ApiSettings:
    """Return settings that keep everything in `folder`."""
    base = {
        "data_dir": folder / "data",
        "library": (SMALL,),
        "replay_url": "http://127.0.0.1:9",
        "console_dir": folder / "none",
    }
    return ApiSettings.model_validate(base | given)


class Client:
    """Asks the application in this process, on a loop in a thread of its own, from its start to its end."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._wait(self._stack.enter_async_context(self._app.router.lifespan_context(self._app)))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._stack.aclose())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8490") as client:
                return await client.request(method, path, timeout=300, **given)

        answer: httpx.Response = self._wait(ask())
        return answer

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)

    def put(self, path: str, **given: Any) -> httpx.Response:
        return self.request("PUT", path, **given)

    def patch(self, path: str, **given: Any) -> httpx.Response:
        return self.request("PATCH", path, **given)

    def delete(self, path: str, **given: Any) -> httpx.Response:
        return self.request("DELETE", path, **given)


def client_of(settings: ApiSettings) -> Client:
    """Return a client in this process; to be entered, so that the application starts."""
    return Client(build(settings))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Client]:
    """Give an API with the small recordings, without authentication."""
    with client_of(settings_at(tmp_path)) as client:
        yield client


def run_over(client: Client, recording: str, **detectors: object) -> str:
    """Run the detectors over a recording; return the run's id once it is done."""
    run = over(client, client.post("/api/v1/runs", json={"recording": recording, "detectors": detectors}), "runs")
    assert run["state"] == "done", run
    return str(run["id"])


def over(client: Client, answer: httpx.Response, kind: str = "tasks", timeout_s: float = 120) -> dict[str, Any]:
    """Return a task, or a run, that was asked for once it is over."""
    assert answer.status_code == 201, answer.text
    path = f"/api/v1/{kind}/{answer.json()['id']}"
    until(lambda: client.get(path).json()["state"] not in ("queued", "running"), timeout_s=timeout_s, what=path)
    found: dict[str, Any] = client.get(path).json()
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str]]:
    """Give an API with a run over the power brake that is done."""
    with client_of(settings_at(tmp_path_factory.mktemp("api"))) as client:
        yield client, run_over(client, "vela-power-brake")
