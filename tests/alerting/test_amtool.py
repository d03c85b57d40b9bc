"""Alertmanager's own tool on alert-rules/alertmanager.yaml: all of it is good, and alerts go where they should."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from services.stack import build
from services.stack.settings import load_settings

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "alert-rules" / "alertmanager.yaml"


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    binary = build.ensure(load_settings().cache_dir, ("alertmanager",))["alertmanager"] / "amtool"
    return subprocess.run([binary, *arguments], capture_output=True, text=True, check=False, timeout=300)


def with_examples() -> str:
    """Return the configuration with its examples in use, as it asks its reader to put them in use."""
    head, receivers = CONFIG.read_text(encoding="utf-8").split("\nreceivers:\n")
    return f"{head}\nreceivers:\n" + re.sub(r"(?m)^#", "", receivers)


def test_the_configuration_is_good() -> None:
    done = amtool("check-config", CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_examples_are_good_and_keep_no_secret(tmp_path: Path) -> None:
    (tmp_path / "examples.yaml").write_text(with_examples(), encoding="utf-8")
    done = amtool("check-config", tmp_path / "examples.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    receivers = yaml.safe_load(with_examples())["receivers"]
    kinds = {name for receiver in receivers for name in receiver if name.endswith("_configs")}
    assert kinds == {"webhook_configs", "slack_configs", "pagerduty_configs", "email_configs"}
    # PagerDuty resolves its incident by it; only the dead man's switch hears nothing of ends.
    silent = {r["name"] for r in receivers for k in kinds for c in r.get(k, ()) if not c["send_resolved"]}
    assert silent == {"watchdog"}
    secret = re.compile(r"^\s*-?\s*(url|api_url|routing_key|service_key|auth_password|password):", re.MULTILINE)
    assert secret.findall(with_examples()) == []


LIVE = "replay=live"


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (f"{LIVE} severity=page fault=gpu_lost", "page-hardware"),
        (f"{LIVE} severity=page fault=node_down source=rule", "page-hardware"),
        (f"{LIVE} severity=page fault=link_flap", "page-network"),
        (f"{LIVE} severity=page fault=fabric_congestion", "page-network"),
        (f"{LIVE} severity=page fault=storage_slow", "page-storage"),
        (f"{LIVE} severity=page fault=job_hang", "page-research"),
        (f"{LIVE} severity=page fault=pipeline alertname=DetectionPathDown", "page-platform"),
        (f"{LIVE} severity=ticket fault=pcie_degraded", "tickets-hardware"),
        (f"{LIVE} severity=ticket fault=psu_failed", "tickets-hardware"),
        (f"{LIVE} severity=ticket fault=link_errors", "tickets-network"),
        (f"{LIVE} severity=ticket fault=loss_anomaly", "tickets-research"),
        (f"{LIVE} severity=ticket fault=telemetry_gap", "tickets-platform"),
        (f"{LIVE} severity=info fault=storage_slow", "info"),
        (f"{LIVE} fault=gpu_lost", "tickets"),
        (f"{LIVE} severity=info fault=watchdog alertname=Watchdog", "watchdog"),
        ("replay=drill severity=page fault=gpu_lost", "replays"),
        ("replay=drill severity=page fault=link_down", "replays"),
        ("replay=drill severity=info fault=watchdog", "replays"),
        ("severity=page fault=gpu_lost", "nobody"),
    ],
)
def test_an_alert_goes_to(labels: str, receiver: str) -> None:
    done = amtool(
        "config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}", *labels.split()
    )
    assert (done.returncode, done.stdout.strip()) == (0, receiver), done.stdout + done.stderr


def test_every_live_alert_is_grouped_by_cluster_job_and_rack() -> None:
    route = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["route"]
    (live,) = (one for one in route["routes"] if one["matchers"] == ['replay="live"'])
    assert {"cluster", "job_id", "rack"} < set(live["group_by"])
    below = [live, *live["routes"], *(one for two in live["routes"] for one in two.get("routes", ()))]
    assert [one for one in below[1:] if "group_by" in one] == []
