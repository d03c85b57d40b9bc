"""Tasks on a real Ray and a real Dask cluster of this machine, of which a worker is killed; else the message."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.kit.errors import UsageError, UserError
from services.kit.executors import executor_of

ROOT = Path(__file__).parents[2]


def squared_but_killed_at_first(number: int, folder: str) -> int:
    """Return the square; the first worker that is asked for that of 3 is killed in the middle of it."""
    killed = Path(folder) / "killed"
    if number == 3 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def refused(number: int) -> int:
    raise UsageError(f"{number} is refused", remedy="another")


# In a process of its own: Ray's and Dask's own warnings are theirs, and a cluster's threads end with it.
PROGRAM = """
import sys
from pathlib import Path
from services.kit.errors import UserError
from services.kit.executors import executor_of
from services.kit.test_executors import refused, squared_but_killed_at_first

if __name__ == "__main__":
    which, address, folder = sys.argv[1:]
    cluster = None
    if which == "dask":
        from distributed import LocalCluster
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
        address = cluster.scheduler_address
    with executor_of(1, **{which: address}) as pool:
        waiting = [pool.submit(squared_but_killed_at_first, number, folder) for number in range(6)]
        lines = [str([one.result() for one in waiting])]
        try:
            pool.submit(refused, 7).result()
        except UserError as error:
            lines.append(f"refused: {error.exit_code}")
    Path(folder, "results").write_text("\\n".join(lines))
    if cluster is not None:
        cluster.close()
"""


@pytest.mark.parametrize(("which", "module", "address"), [("ray", "ray", "local"), ("dask", "distributed", "")])
def test_a_task_whose_worker_is_killed_is_done_again(which: str, module: str, address: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install 'hindcast-gpu[{which}]'")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, program, which, address, tmp_path],
        env={**os.environ, "PYTHONPATH": paths, "RAY_DISABLE_DOCKER_CPU_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    results = (tmp_path / "results").read_text(encoding="utf-8")
    assert results.splitlines() == ["[0, 1, 4, 9, 16, 25]", "refused: 2"]
    assert (tmp_path / "killed").exists()


@pytest.mark.parametrize(("which", "module"), [("ray", "ray"), ("dask", "distributed")])
def test_a_cluster_whose_client_is_not_installed_is_reported(
    which: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'hindcast-gpu\[{which}\]'"), executor_of(1, **{which: "auto"}):
        pass


def test_two_clusters_at_once_are_one_too_many() -> None:
    with pytest.raises(UserError, match="name one cluster"), executor_of(1, ray="auto", dask="tcp://localhost:8786"):
        pass


def test_without_a_cluster_processes_of_this_machine_do_it() -> None:
    with executor_of(1) as pool:
        assert pool.submit(pow, 3, 2).result() == 9
