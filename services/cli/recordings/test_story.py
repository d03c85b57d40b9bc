"""The library as the command line shows it."""

import re
from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.synth.library import LIBRARY, scenario_paths
from services.synth.small import FOLDER


def test_list_names_every_scenario_with_cluster_length_and_faults_in_80_columns() -> None:
    output = hindcast("list").output
    assert max(map(len, output.splitlines())) <= 80
    entries = {entry.split()[0]: " ".join(entry.split()) for entry in re.split(r"\n(?=\S)", output)}
    assert set(entries) == set(scenario_paths())
    brake = entries["vela-power-brake"]
    for part in ("(vela, 3 h)", "power_throttle", "One power card fault makes a 768-GPU job three times slower"):
        assert part in brake
    assert "faults: none" in entries["vela-healthy"]
    assert "job_hang, loss_anomaly" in entries["sakuraone-job-states"]


def test_show_of_a_name_prints_its_story() -> None:
    output = " ".join(hindcast("show", "vela-nfs-steps").output.split())
    for part in (
        "A training job reads its data from NFS",
        "vela: 96 nodes, 768 GPUs (NVIDIA A100-SXM4-80GB), slurm",
        "arXiv 2407.05467",
        "2.1.3 (storage)",
        "NFS reads 1 GB/s and Scale 40 GB/s",
        "+00:20:00 job 1412 granite-13b on v041..v072 starts",
        "+01:52:00 job 1412 ends: CANCELLED",
        "job 1413 granite-13b on v041..v072 starts 300 s after the end of job 1412",
        "storage slow at mount=/nfs until +01:52:00",
        "f1 storage_slow at mount=/nfs: an alert is due within 300 s, root of vela-nfs-steps",
        "node=v090: an idle node is drained for upkeep",
        "hindcast make vela-nfs-steps",
    ):
        assert part in output


def test_show_prints_courses_mixes_and_health() -> None:
    gradual = " ".join(hindcast("show", "blue-vela-straggler").output.split())
    assert "growing over 2400 s" in gradual
    assert "for 40% of every 600 s" in gradual
    healthy = " ".join(hindcast("show", "blue-vela-healthy-day").output.split())
    assert "none: every alert is a false alarm" in healthy
    assert "jobs come and go on 85% of the other nodes" in healthy


@pytest.mark.parametrize("name", sorted(scenario_paths()))
def test_every_story_can_be_printed(name: str) -> None:
    result = hindcast("show", name)
    assert result.exit_code == 0
    assert "looks wrong and is not" in result.output


def test_show_takes_a_scenarios_file_and_a_recordings_directory() -> None:
    by_file = hindcast("show", str(LIBRARY / "vela-nfs-steps" / "scenario.yaml")).output
    assert by_file == hindcast("show", "vela-nfs-steps").output
    recording = hindcast("show", str(FOLDER / "vela-power-brake")).output
    assert "dcgm" in recording
    assert "power_throttle at node=v002" in recording


def test_show_of_what_is_nothing_says_what_would_be(tmp_path: Path) -> None:
    error = hindcast("show", "nothing-of-that-name").exception
    assert isinstance(error, UserError)
    assert "neither a recording's directory nor a scenario's name" in error.message
    assert "hindcast list" in error.remedy
    result = hindcast("show", str(tmp_path))
    assert isinstance(result.exception, UserError)
    assert "recording.yaml" in result.exception.message
