"""As a new user has it: a Prometheus that scrapes exporters on their default fields, and `hindcast live` pointed at it.

The exporters are those of a recorded cluster at real speed, and everything runs by the clock: half a minute before a
GPU's memory fails, until the webhook has heard of it and the API shows it.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from services.kit.times import format_time, parse_time
from services.kit.wait import until
from services.stack import build
from services.stack.health import HttpHealth
from services.stack.runner import Stack
from services.stack.spec import ProcessSpec
from services.synth.library import scenario_paths
from services.synth.make import Variant, make_recording
from tests import web
from tests.integration.receivers import Receiver, notified


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, webhook: Receiver) -> Iterator[Stack]:
    """An Alertmanager that sends everything to the webhook."""
    with notified(tmp_path_factory.mktemp("scraped"), webhook, only=("alertmanager",)) as stack:
        yield stack


def _prometheus(stack: Stack, folder: Path, discovery: str) -> str:
    """Have a Prometheus scrape what `discovery` finds, every second; return its URL."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "cluster", "http_sd_configs": [{"url": discovery}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    binary = build.ensure(stack.settings.cache_dir, ("prometheus",))["prometheus"] / "prometheus"
    port = stack.service_context().ports.take()
    url = f"http://127.0.0.1:{port}"
    argv = (
        str(binary),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    stack.add_process(ProcessSpec("prometheus-of-the-site", argv, HttpHealth(f"{url}/-/ready"), ports=(port,)))
    return url


@contextmanager
def _hindcast(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of hindcast until the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "services.cli", *arguments], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=300) == 0, log.read_text()


def _line(log: Path, begins: str) -> str:
    def found() -> str | None:
        return next((line for line in log.read_text().splitlines() if begins in line), None)

    return until(found, what=f"{begins!r} in {log.name}")


def _cut_out(api: httpx.Client, run: Mapping[str, Any], finding: Mapping[str, Any]) -> None:
    """Have what led to a finding captured as a recording, as the console's button does."""
    assert {"name": run["recording"]} in api.get("/sources").json()
    span = {"from": format_time(parse_time(finding["started_at"]) - 30_000), "to": run["event_time"]}
    asked = {"source": run["recording"], "name": "cut-out", **span}
    task = api.post("/captures", json=asked).raise_for_status().json()["id"]

    def done() -> bool:
        state = api.get(f"/tasks/{task}").json()
        assert state["state"] != "failed", state["error"]
        return bool(state["state"] == "done")

    until(done, what="the capture")
    nodes = api.get("/recordings/cut-out").json()["nodes"]
    assert {finding["entity"]["node"]} <= {node["name"] for node in nodes}


def test_a_gpu_whose_memory_fails_is_found_on_default_fields(stack: Stack, webhook: Receiver, tmp_path: Path) -> None:
    recording = make_recording(
        scenario_paths()["vela-cuda-memory-error"], tmp_path / "memory-error", Variant(scale=0.05)
    )
    scraped, output = tmp_path / "exporters.log", tmp_path / "live.log"
    # 29 s before the GPU's counters rise.
    options = ("--from", "+00:58:40", "--default-fields", "--port", "0")
    with ExitStack() as running:
        running.enter_context(_hindcast(scraped, "exporters", str(recording), *options))
        discovery = _line(scraped, "/sd").partition("url: ")[2].partition("}")[0]
        url = _prometheus(stack, tmp_path, discovery)
        follow = ("--lookback", "1m", "--every", "1", "--lateness", "1", "--port", "0")
        alert = ("--alertmanager", stack.addresses.alertmanager)

        def scrapes() -> bool:
            return "DCGM_FI_DEV_XID_ERRORS" in web.get(f"{url}/api/v1/label/__name__/values").text

        until(scrapes, what="the first scrape")
        running.enter_context(_hindcast(output, "live", "--prometheus", url, *follow, *alert))
        _line(output, "following")
        _line(output, "ecc_uncorrectable node=v002 gpu=6")
        console = _line(output, "console and API").rpartition(" ")[2]
        with httpx.Client(base_url=f"{console}/api/v1") as api:
            (run,) = api.get("/runs", params={"replay": "live"}).json()["items"]
            asked = {"state": "firing"}

            def shown() -> list[dict[str, Any]] | None:
                items: list[dict[str, Any]] = api.get(f"/runs/{run['id']}/findings", params=asked).json()["items"]
                return items if {"node": "v002", "gpu": 6} in [one["entity"] for one in items] else None

            # What is printed is written for the API after that.
            open_now = until(shown, what="the API to show it")
            judged = {
                "run": run["id"],
                "finding": open_now[0]["id"],
                "mark": "right",
                "note": "its memory was replaced",
            }
            api.post("/labels", json=judged).raise_for_status()
            _cut_out(api, run, open_now[0])
        assert (run["recording"], run["state"], run["error"]) == ("live-vela", "running", None)
        alerts = until(lambda: webhook.taken, what="the webhook to hear of it")
    assert "cluster vela: 5 node(s), 40 GPU(s) (NVIDIA A100-SXM4-80GB)" in output.read_text()
    assert "storage_slow (no file system counters)" in _line(output, "not judged: ")
    assert {alert["labels"]["node"] for note in alerts for alert in note["alerts"]} == {"v002"}
    (found,) = [line for line in output.read_text().splitlines() if line.startswith("OPEN") and "ecc_unc" in line]
    assert found.endswith((": page", ": ticket"))
