"""The console's built files, where no route is."""

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.kit.problems import missing


def serve_console(app: FastAPI, folder: Path) -> None:
    """Serve the console from its folder; where that is not there, say at `/` how it is built."""
    if folder.is_dir():
        app.router.default = _Console(directory=folder, html=True)
    else:
        app.add_api_route("/", _no_console, include_in_schema=False)


def _no_console() -> None:
    raise missing("console", "here", "install Node 20.19 or newer and run make console; /api/v1 works")


class _Console(StaticFiles):
    """The console's files, where no route is; its pages' addresses are all answered with the one page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or the page."""
        if path.startswith("api/"):
            raise HTTPException(404)
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404 or "." in path.rsplit("/", 1)[-1]:
                raise
            return await super().get_response("index.html", scope)
