"""Where tasks that take a core each are done: processes of this machine, or a Ray or Dask cluster that the user has."""

import concurrent.futures
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from services.kit.errors import ServerError, UsageError, UserError
from services.kit.processes import pool_of

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


@contextmanager
def executor_of(
    workers: int, *, ray: str | None = None, dask: str | None = None
) -> Iterator[concurrent.futures.Executor]:
    """Yield an executor: of `workers` processes, or of the cluster at an address; an error in the block ends its tasks.

    UserError: the cluster's client is not installed (exit code 2), or the cluster is not there (3).
    """
    if ray is not None and dask is not None:
        raise UsageError("--ray and --dask at once", remedy="name one cluster")
    if ray is not None:
        with _on_ray(ray) as executor:
            yield executor
    elif dask is not None:
        with _on_dask(dask) as executor:
            yield executor
    else:
        with pool_of(workers) as pool:
            yield pool


@contextmanager
def alone() -> Iterator[concurrent.futures.Executor]:
    """Yield an executor within this process, for one that may have no others below it; an error ends what waits."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _on_ray(address: str) -> Iterator[concurrent.futures.Executor]:
    ray = _client("ray", "ray")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _away("Ray", address, error) from None
    try:
        yield _Ray(ray)
    finally:
        ray.shutdown()


class _Ray(concurrent.futures.Executor):
    """Ray's tasks behind Python's interface. A task whose worker is killed is done again by another, three times."""

    def __init__(self, ray: ModuleType) -> None:
        self._task: Any = ray.remote(_called).options(max_retries=3)

    def submit(
        self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> concurrent.futures.Future[_Result]:
        future: concurrent.futures.Future[_Result] = self._task.remote(fn, args, kwargs).future()
        return future


def _called(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


@contextmanager
def _on_dask(address: str) -> Iterator[concurrent.futures.Executor]:
    distributed = _client("distributed", "dask")
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise _away("Dask", address, error) from None
    with client:
        yield client.get_executor(pure=False)


def _client(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            f"--{extra}: the module {module} is not installed here",
            remedy=f"pip install 'hindcast-gpu[{extra}]', in the version that the cluster runs",
        ) from None


def _away(what: str, address: str, error: Exception) -> UserError:
    words = " ".join(str(error).split())[:200]
    return ServerError(f"no {what} cluster at {address}: {words}", remedy="check that address")
