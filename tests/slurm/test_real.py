"""`hindcast live --slurm` on a real Slurm: its commands and slurmrestd, in every version of the API that it has."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.kit.errors import UserError
from services.kit.times import wall_ms
from services.kit.wait import until
from services.live import slurmrestd
from services.live.listing import Listing
from services.live.slurm import Slurm, command_source
from services.live.slurmrestd import Credentials, Slurmrestd
from tests.slurm import servers
from tests.slurm.servers import slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]
SUITES = ("trixie", "sid")
"""Of Debian: Slurm 24.11, and the newest that it has."""


@pytest.fixture(scope="module", params=SUITES)
def cluster(request: pytest.FixtureRequest) -> Iterator[servers.Slurm]:
    """A Slurm with a job on two nodes, a drained node and one in a reservation for maintenance."""
    with slurm(request.param) as running:
        script = running.folder / "train.sh"
        script.write_text("#!/bin/bash\nsleep 3000\n")
        wanted = ("-J", "train", "-N2", "-w", "v00[1-2]", "--gres=gpu:h100:8", "-D", "/srv", "-o", "/srv/out")
        running.run("sbatch", *wanted, "/srv/train.sh")
        running.run("scontrol", "update", "nodename=v003", "state=drain", "reason=fan swap")
        flags = ("flags=maint,ignore_jobs", "user=root", "starttime=now", "duration=60")
        running.run("scontrol", "create", "reservation", "reservationname=cables", "nodes=v004", *flags)
        until(lambda: "RUNNING" in running.run("squeue", "-h", "-o", "%T"), what="the job")
        yield running


def token_of(cluster: servers.Slurm, tmp_path: Path, lifespan_s: int = 3600) -> Path:
    file = tmp_path / "token"
    printed = cluster.run("scontrol", "token", f"lifespan={lifespan_s}")
    file.write_text(printed.strip().removeprefix("SLURM_JWT="))
    return file


def check(listing: Listing) -> None:
    (job,) = (job for job in listing.jobs if job.name == "train")
    assert (job.nodes, job.gpus_per_node, job.state, job.end) == (["v001", "v002"], 8, "RUNNING", None)
    closed = {node: state for node, state in listing.nodes.items() if state.closed}
    assert closed.keys() == {"v003", "v004"}
    assert closed["v003"].closed == "DRAIN in Slurm: fan swap"
    assert closed["v004"].closed == "reservation cables in Slurm"
    assert all(state.since is not None and 0 <= wall_ms() - state.since < 1_200_000 for state in closed.values())
    assert listing.nodes.keys() == set(servers.NODES)


def test_what_the_commands_print(cluster: servers.Slurm, tmp_path: Path) -> None:
    printed = {
        "squeue": ("squeue", "--json"),
        "nodes": ("scontrol", "show", "nodes", "--json"),
        "sinfo": ("sinfo", "--json"),
        "reservations": ("scontrol", "show", "reservations", "--json"),
    }
    for name, words in printed.items():
        (tmp_path / name).write_text(cluster.run(*words))
    for nodes in ("nodes", "sinfo"):
        names = ("squeue", nodes, "reservations")
        check(Slurm([command_source(f"cat {tmp_path / name}") for name in names], wall_ms).ask())


def test_each_version_of_the_api(cluster: servers.Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = token_of(cluster, tmp_path)
    headers = {"X-SLURM-USER-TOKEN": token.read_text()}
    offered = json.loads(httpx.get(f"{cluster.url}/openapi/v3", headers=headers).content)["paths"]
    versions = sorted({int(path.split("/")[2].rpartition(".")[2]) for path in offered if path.endswith("/jobs/")})
    assert len(versions) >= 3
    for version in versions:
        monkeypatch.setattr(slurmrestd, "_NEWEST_KNOWN", version)
        source = Slurmrestd(cluster.url, Credentials("root", token))
        assert next(name for name, _ in source.documents()) == f"{cluster.url}/slurm/v0.0.{version}/jobs/"
        check(Slurm([source.documents], wall_ms).ask())


def test_a_token_is_needed_and_read_again(cluster: servers.Slurm, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not let us read /openapi/v3 \(401\): Authentication failure"):
        Slurmrestd(cluster.url, Credentials()).documents()
    token = token_of(cluster, tmp_path)
    source = Slurmrestd(cluster.url, Credentials(token_file=token))
    assert source.documents()
    good = token.read_text()
    token.write_text(f"{good[:-4]}AAAA")
    with pytest.raises(UserError, match="does not let us read") as refused:
        source.documents()
    assert refused.value.exit_code == 2
    token.write_text(good)
    assert source.documents()
