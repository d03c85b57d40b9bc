"""A real Slurm on loopback, of Debian's packages: a controller, slurmrestd and a slurmd for each of four nodes.

The packages are unpacked into the cache of the other servers, nothing is installed; the programs run in that folder
(chroot), in namespaces of their own, and so root is needed.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.kit.wait import until
from services.stack.ports import PortBook
from services.stack.settings import load_settings

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmrestd", "slurm-wlm-jwt-plugin", "bash", "coreutils", "dash")
_RENAMED = ("slurmctld", "slurmd", "slurmstepd")
"""Debian's alternatives call them so; Slurm knows its programs by their names."""
_USERS = "root:x:0:0::/root:/bin/bash\nada:x:1001:1001::/:/bin/bash\n"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
AuthType=auth/none
CredType=cred/none
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/srv/jwt.key
StateSaveLocation=/srv/state
SlurmdSpoolDir=/srv/spool.%n
SlurmctldPidFile=/srv/slurmctld.pid
SlurmdPidFile=/srv/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
SlurmdParameters=config_overrides
MpiDefault=none
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
NODES = ("v001", "v002", "v003", "v004")


@dataclass(frozen=True)
class Slurm:
    """A Slurm that runs: where its slurmrestd is, and a prefix for commands."""

    url: str
    inside: tuple[str, ...]
    folder: Path

    def run(self, *words: str) -> str:
        """Return what one of Slurm's commands prints; CalledProcessError where it fails."""
        done = subprocess.run((*self.inside, *words), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout


def unpacked(suite: str) -> Path:
    """Return a folder with Slurm and all that it needs, fetched the first time."""
    folder = load_settings().cache_dir / f"slurm-{suite}"
    root = folder / "root"
    if root.exists():
        return root
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("apt/lists/partial", "apt/archives/partial", "unfinished"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] http://deb.debian.org/debian {suite} main\n")
    (folder / "status").touch()
    chosen = {
        "Dir::State": folder / "apt", "Dir::State::lists": folder / "apt" / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "apt", "Dir::Cache::archives": folder / "apt" / "archives",
        "Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "APT::Install-Recommends": "0", "APT::Sandbox::User": "root", "Debug::NoLocking": "1",
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in chosen.items())]
    subprocess.run((*apt, "update"), check=True)
    subprocess.run((*apt, "install", "-y", "--download-only", *_PACKAGES), check=True)
    made = folder / "unfinished"
    for package in sorted((folder / "apt" / "archives").glob("*.deb")):
        subprocess.run(("dpkg", "-x", package, made), check=True)
    for name in _RENAMED:
        (made / "usr" / "sbin" / name).symlink_to(f"{name}-wlm")
    for name in ("dev", "proc", "srv", "tmp"):
        (made / name).mkdir(exist_ok=True)
    (made / "etc" / "passwd").write_text(_USERS)
    (made / "etc" / "group").write_text("root:x:0:\nada:x:1001:\n")
    (made / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    shutil.rmtree(folder / "apt")
    made.rename(root)
    return root


@contextmanager
def slurm(suite: str) -> Iterator[Slurm]:
    """Run one whose nodes have eight GPUs each."""
    root = unpacked(suite)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hindcast-slurm-")))
        folder.chmod(0o755)
        book = stack.enter_context(PortBook())
        controller, rest, *ports = (book.take() for _ in range(2 + len(NODES)))
        for held in (controller, rest, *ports):
            book.release(held)
        _configure(folder, controller, ports)
        mounts = 'mount --bind "$1" "$0/srv"; mount --rbind /dev "$0/dev"; mount -t proc proc "$0/proc"; shift'
        enter = f'{mounts}; exec chroot "$0" env -i PATH={_PATH} SLURM_CONF=/srv/slurm.conf "$@"'
        inside = (
            *("unshare", "--mount", "--pid", "--fork", "--kill-child"), "bash", "-ec", enter, str(root), str(folder),
        )  # fmt: skip

        def start(name: str, *words: str) -> None:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            stack.callback(_end, subprocess.Popen((*inside, *words), stdout=log, stderr=log, start_new_session=True))

        start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            start(f"slurmd-{node}", "slurmd", "-D", "-N", node)
        serve = ("slurmrestd", "-u", "ada", "-g", "ada", "-a", "rest_auth/jwt", "-s", "slurmctld", f"127.0.0.1:{rest}")
        start("slurmrestd", "env", "SLURM_JWT=daemon", *serve)  # by which it asks the controller: any word does
        running = Slurm(f"http://127.0.0.1:{rest}", inside, folder)
        until(lambda: _idle(running), timeout_s=120, what=f"the nodes: {folder}/slurmctld.log", interval_s=0.5)
        yield running


def _configure(folder: Path, controller: int, ports: list[int]) -> None:
    nodes = "\n".join(
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 Gres=gpu:h100:8"
        for node, port in zip(NODES, ports, strict=True)
    )
    (folder / "slurm.conf").write_text(_CONF.format(controller=controller, nodes=nodes))
    (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    (folder / "gres.conf").write_text("NodeName=v[001-004] Name=gpu Type=h100 File=/srv/gpu[0-7]\n")
    for gpu in range(8):
        (folder / f"gpu{gpu}").touch()
    key = folder / "jwt.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    (folder / "state").mkdir()


def _idle(running: Slurm) -> bool:
    words = (*running.inside, "sinfo", "-h", "-N", "-o", "%T")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout.split() == ["idle"] * len(NODES)


def _end(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGKILL)  # whoever changes its user, as slurmrestd, outlives unshare alone
    process.wait()
