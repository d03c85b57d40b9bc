from pathlib import Path

import pytest

from services.stack.doctor import Finding, can_run_native, examine, mode
from services.stack.settings import load_settings


def _program(folder: Path, name: str, says: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the tools the native stack needs, as far as a version goes, and an empty cache."""
    programs = tmp_path / "bin"
    _program(programs, "git", "git version 2.39.5")
    _program(programs, "make", "GNU Make 4.3")
    _program(programs, "go", "go version go1.26.1 linux/amd64")
    _program(programs, "java", 'openjdk version "17.0.9" 2023-10-17')
    _program(programs, "mvn", "Apache Maven 3.8.7")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("HINDCAST_STACK_CACHE_DIR", str(tmp_path / "cache"))
    return programs


def _of(findings: list[Finding], subject: str) -> Finding:
    return next(finding for finding in findings if finding.subject == subject)


def test_a_machine_with_everything_runs_the_native_stack(machine: Path) -> None:
    findings = examine(load_settings())
    assert [f.subject for f in findings if f.verdict == "missing"] == []
    assert mode(findings) == "native"


@pytest.mark.parametrize(
    ("name", "remedy"), [("go", "/usr/local/go/bin"), ("java", "openjdk-17"), ("mvn", "apt-get install maven")]
)
def test_what_is_missing_is_named_with_how_to_get_it(machine: Path, name: str, remedy: str) -> None:
    (machine / name).unlink()
    findings = examine(load_settings())
    found = _of(findings, name)
    assert found.verdict == "missing"
    assert remedy in found.remedy
    assert mode(findings) == "embedded"


@pytest.mark.parametrize("name", ["git", "make"])
def test_the_stack_runs_without_git_and_make(machine: Path, name: str) -> None:
    (machine / name).unlink()
    findings = examine(load_settings())
    assert _of(findings, name).remedy == f"apt-get install {name}"
    assert mode(findings) == "native"


@pytest.mark.parametrize(
    ("name", "says"), [("go", "go version go1.19.8 linux/amd64"), ("java", 'openjdk version "11.0.2" 2019-01-15')]
)
def test_what_is_too_old_is_reported_with_what_is_needed(machine: Path, name: str, says: str) -> None:
    _program(machine, name, says)
    found = _of(examine(load_settings()), name)
    assert found.verdict == "missing"
    assert "too old" in found.detail


def test_build_tools_are_not_needed_where_the_servers_are_built(machine: Path, tmp_path: Path) -> None:
    from services.stack.recipes import RECIPES

    for recipe in RECIPES.values():
        folder = tmp_path / "cache" / recipe.key
        folder.mkdir(parents=True)
        for output in recipe.outputs:
            (folder / output.replace("*", "1")).touch()
    (machine / "go").unlink()
    (machine / "mvn").unlink()
    findings = examine(load_settings())
    assert _of(findings, "go").verdict == _of(findings, "mvn").verdict == "optional"
    assert can_run_native(findings)


def test_docker_without_an_engine_is_no_docker(machine: Path) -> None:
    _program(machine, "docker", "")
    (machine / "go").unlink()
    findings = examine(load_settings())
    assert "no engine answers" in _of(findings, "docker").detail
    assert mode(findings) == "embedded"
    _program(machine, "docker", "28.0.1")
    assert mode(examine(load_settings())) == "docker"
