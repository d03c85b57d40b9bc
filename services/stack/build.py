"""Fetches and builds the real servers into the user's cache, once per version.

`ensure()` returns the folder of every server, and takes milliseconds when they are there. Kafka comes as jars from
Maven, Prometheus, Alertmanager and Thanos are built from their Go modules. An entry of the cache is made beside its
place and moved there when complete, so what is there is always whole, and a lock keeps two processes from building at
once.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.kit.errors import UserError
from services.kit.wait import until
from services.stack.process import tail
from services.stack.progress import Board
from services.stack.recipes import RECIPES, Recipe

# Static binaries, wherever there is a C compiler and wherever not; a workspace of the user's must not interfere.
_GO_ENV = {"CGO_ENABLED": "0", "GOWORK": "off"}
# The compiler collects garbage more seldom while it has less than this: an eighth less CPU, and no more memory.
_GO_MEMORY = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
# Another process may be building all of it on a slow machine.
_LOCK_TIMEOUT_S = 3600.0
_LOG_TAIL_LINES = 25


def cached(name: str, cache_dir: Path) -> Path | None:
    """Return the folder of the built server `name`, or None where it has yet to be built."""
    recipe = RECIPES[name]
    entry = cache_dir / recipe.key
    return entry if entry.is_dir() and not _missing(recipe, entry) else None


def ensure(cache_dir: Path, names: Iterable[str] = tuple(RECIPES)) -> dict[str, Path]:
    """Return the folder of each named server, built first where it is not in the cache.

    Raises UserError: exit code 2 where a tool is missing, 1 with the end of the build's log where a build fails.
    """
    wanted = tuple(names)
    found = {name: entry for name in wanted if (entry := cached(name, cache_dir)) is not None}
    if len(found) < len(wanted):
        todo = [RECIPES[name] for name in wanted if name not in found]
        tools = {recipe.name: recipe.tool_path() for recipe in todo}
        cache_dir.mkdir(parents=True, exist_ok=True)
        with Board("building", wanted) as board:
            for name in found:
                board.update(name, "cached")
            with _lock(cache_dir, board, todo):
                _build_all([r for r in todo if cached(r.name, cache_dir) is None], tools, cache_dir, board)
        found = {name: cache_dir / RECIPES[name].key for name in wanted}
    return found


def _build_all(todo: list[Recipe], tools: dict[str, str], cache_dir: Path, board: Board) -> None:
    """Build one Go server after the other, each uses all cores, and beside that fetch what Kafka and the next need."""
    fetched = [recipe for recipe in todo if not recipe.packages]
    compiled = [recipe for recipe in todo if recipe.packages]

    def fetch() -> None:
        for recipe in fetched:
            _build(recipe, tools[recipe.name], cache_dir, board)
        for recipe in compiled[1:]:
            # Downloads the modules; a failure is the build's to report.
            subprocess.run(  # noqa: S603 - the go tool with arguments of recipes.py
                (tools[recipe.name], "list", "-deps", "-tags", recipe.tags, *recipe.packages),
                cwd=recipe.source, env=_go_env(), capture_output=True, check=False,
            )  # fmt: skip

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fetch") as beside:
        fetching = beside.submit(fetch)
        for recipe in compiled:
            _build(recipe, tools[recipe.name], cache_dir, board)
        fetching.result()


def _build(recipe: Recipe, tool: str, cache_dir: Path, board: Board) -> None:
    entry = cache_dir / recipe.key
    log = cache_dir / "logs" / f"{recipe.key}.log"
    log.parent.mkdir(exist_ok=True)
    board.update(recipe.name, "building" if recipe.packages else "fetching", recipe.version)
    with tempfile.TemporaryDirectory(prefix=f".{recipe.key}-", dir=cache_dir) as made:
        out = Path(made) / "out"
        out.mkdir()
        with log.open("wb") as output:
            done = subprocess.run(  # noqa: S603 - the build tools with arguments of recipes.py
                recipe.command(tool, out), cwd=recipe.source, env=_go_env(),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        missing = _missing(recipe, out)
        if done.returncode or missing:
            board.update(recipe.name, "failed", f"see {log}")
            lacks = f"; it did not make {', '.join(missing)}" if missing and not done.returncode else ""
            raise UserError(
                f"building {recipe.name} {recipe.version} failed with exit code {done.returncode}{lacks}; "
                f"the end of its log ({log}):\n{tail(log, _LOG_TAIL_LINES)}",
                remedy="downloads need the Go module proxy and Maven Central, directly or by GOPROXY and a Maven "
                "mirror; about 6 GB of disk must be free. What was built so far is kept: run the same command again",
            )
        shutil.rmtree(entry, ignore_errors=True)
        out.rename(entry)
    board.update(recipe.name, "done", recipe.version)


def _go_env() -> dict[str, str]:
    return {**_GO_MEMORY, **os.environ, **_GO_ENV}


def _missing(recipe: Recipe, folder: Path) -> list[str]:
    return [pattern for pattern in recipe.outputs if not any(folder.glob(pattern))]


@contextlib.contextmanager
def _lock(cache_dir: Path, board: Board, todo: list[Recipe]) -> Iterator[None]:
    """Hold the cache's lock; the kernel lets go of it when the process ends, however it ends."""
    with (cache_dir / ".lock").open("w") as file:

        def locked() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                for recipe in todo:
                    board.update(recipe.name, "waiting", "another process is building")
                return False
            return True

        until(locked, timeout_s=_LOCK_TIMEOUT_S, what=f"another build to finish ({file.name})", interval_s=0.5)
        yield
