"""Images under the official names, made on this machine: docker/standins says of what."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

from services.kit.errors import UserError
from services.stack import build
from services.stack.settings import load_settings
from tests.compose.engine import ROOT, Docker, cache

STANDINS = ROOT / "docker" / "standins"
_BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv", "wget", "openjdk-17-jre-headless")
PYTHON_IMAGE = "python:3.11-slim"
NODE_IMAGE = "node:22-slim"


def make(docker: Docker) -> Path:
    """Make every image that docker-compose.yml names but Grafana's, of which nothing can be made.

    Return a file for Compose to read beside it: images by name, as nothing made here has the digest of what is pulled.
    """
    if not docker("images", "-q", "hindcast-base").strip():
        _base(docker)
    _build(docker, "base", PYTHON_IMAGE)
    _build(docker, "node", NODE_IMAGE, *_node())
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    servers = build.ensure(load_settings().cache_dir, ("kafka", "prometheus", "alertmanager", "thanos"))
    for name, folder in servers.items():
        service = "query" if name == "thanos" else name
        _build(docker, name, named(services[service]["image"]), *folder.iterdir())
    # The host's network and trust store: the package index may be reachable no other way.
    bases = ("--build-arg", f"PYTHON={PYTHON_IMAGE}", "--build-arg", f"NODE={NODE_IMAGE}")
    own = services["notify"]["image"]
    docker("build", "--network", "host", "-f", "docker/Dockerfile", *bases, "-t", own, ".")
    beside = cache() / "images.yaml"
    local = {name: {"image": named(service["image"]), "pull_policy": "never"} for name, service in services.items()}
    beside.write_text(yaml.safe_dump({"services": local}), encoding="utf-8")
    return beside


def named(image: str) -> str:
    """Return an image's name and version without its digest."""
    return image.partition("@")[0]


def _base(docker: Docker) -> None:
    if shutil.which("debootstrap") is None:
        _run("apt-get", "install", "-y", "--no-install-recommends", "debootstrap")
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        rootfs = Path(scratch) / "rootfs"
        _run("debootstrap", "--variant=minbase", f"--include={','.join(_BASE_PACKAGES)}", "bookworm", str(rootfs))
        certificates = Path("/etc/ssl/certs/ca-certificates.crt")
        if certificates.exists():
            shutil.copy(certificates, rootfs / "etc/ssl/certs/ca-certificates.crt")
        archive = Path(scratch) / "base.tar"
        _run("tar", "-C", str(rootfs), "--exclude=./var/cache/apt/archives/*.deb", "-cf", str(archive), ".")
        docker("import", str(archive), "hindcast-base")


def _node() -> tuple[Path, Path]:
    """Return this machine's Node and npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise UserError("the image's console is built by Node, which is not here", remedy="install Node with npm")
    return Path(node).resolve(), Path(npm).resolve().parents[1]


def _build(docker: Docker, name: str, tag: str, *files: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        context = Path(scratch)
        shutil.copy(STANDINS / f"{name}.Dockerfile", context / "Dockerfile")
        for file in files:
            if file.is_dir():
                shutil.copytree(file, context / file.name, symlinks=True)
            else:
                shutil.copy(file, context / file.name)
        script = STANDINS / f"{name}-run.sh"
        if script.exists():
            shutil.copy(script, context / "run.sh")
        docker("build", "--network", "none", "-t", tag, str(context))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command[:3])} … failed:\n{done.stderr[-4000:]}")
