"""Building and caching, with real but small Go modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.stack import build, recipes
from services.stack.progress import Board
from services.stack.recipes import RECIPES, Recipe
from services.stack.toolchain import GO, look_for

needs_go = pytest.mark.skipif(bool(look_for(GO).problem), reason=f"needs Go: {look_for(GO).problem}")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two servers that Go builds in a second; returns the folder of their build files."""
    servers = tmp_path / "servers"
    monkeypatch.setattr(recipes, "SERVERS_DIR", servers)
    for name in ("hello", "world"):
        (servers / name).mkdir(parents=True)
        (servers / name / "go.mod").write_text(f"module {name}\n\ngo 1.24\n\n// {name} v1.2.3\n", encoding="utf-8")
        (servers / name / "go.sum").touch()
        (servers / name / "main.go").write_text("package main\n\nfunc main() {}\n", encoding="utf-8")
        monkeypatch.setitem(RECIPES, name, Recipe(name, rf"{name} v([\d.]+)", (GO,), (name,), (name,), "netgo"))
    return servers


@needs_go
def test_what_is_built_is_kept_and_not_built_again(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    assert build.cached("hello", cache) is None
    found = build.ensure(cache, ("hello", "world"))
    assert found["hello"].name.startswith("hello-1.2.3-")
    subprocess.run([found["hello"] / "hello"], check=True)
    # Without a build tool in reach there is nothing that could build again.
    monkeypatch.setenv("PATH", "")
    assert build.ensure(cache, ("hello", "world")) == found
    assert build.cached("hello", cache) == found["hello"]


@needs_go
def test_other_build_files_are_another_entry(small: Path, tmp_path: Path) -> None:
    before = RECIPES["hello"].key
    module = small / "hello" / "go.mod"
    module.write_text(module.read_text(encoding="utf-8").replace("1.2.3", "1.2.4"), encoding="utf-8")
    after = RECIPES["hello"].key
    assert after.startswith("hello-1.2.4-")
    assert after.rpartition("-")[2] != before.rpartition("-")[2]


@needs_go
def test_a_build_that_fails_shows_the_end_of_its_log_and_leaves_no_entry(small: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (small / "hello" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        build.ensure(cache, ("world", "hello"))
    assert "building hello 1.2.3 failed with exit code 1" in caught.value.message
    assert "undefined: nonsense" in caught.value.message
    assert caught.value.remedy
    assert build.cached("hello", cache) is None
    assert build.cached("world", cache) is not None
    left = [path.name for path in cache.iterdir() if path.name.startswith(".hello")]
    assert left == []


@needs_go
def test_an_entry_that_has_lost_a_file_is_built_again(small: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    binary = build.ensure(cache, ("hello",))["hello"] / "hello"
    binary.unlink()
    build.ensure(cache, ("hello",))
    assert binary.exists()


@needs_go
def test_a_second_process_waits_and_builds_nothing(small: Path, tmp_path: Path) -> None:
    """This process holds the lock, as one that builds does; the other waits for it, then finds what was built."""
    cache = tmp_path / "cache"
    code = f"""
import sys
from pathlib import Path
from services.stack import build, recipes
from services.stack.progress import Board
from services.stack.recipes import RECIPES, Recipe
from services.stack.toolchain import GO
recipes.SERVERS_DIR = Path({str(small)!r})
RECIPES["hello"] = Recipe("hello", r"hello v([\\d.]+)", (GO,), ("hello",), ("hello",), "netgo")
build._build = lambda *_: sys.exit("built a second time")
print(build.ensure(Path({str(cache)!r}), ("hello",))["hello"])
"""
    cache.mkdir()
    with Board("building", ("hello",)) as board, build._lock(cache, board, []):
        other = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stderr is not None
        assert "another process is building" in other.stderr.readline()
        build._build(RECIPES["hello"], RECIPES["hello"].tool_path(), cache, board)
    out, errors = other.communicate(timeout=300)
    assert other.returncode == 0, errors
    assert Path(out.strip()) == build.cached("hello", cache)


def test_a_missing_tool_is_reported_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="go builds Prometheus, Alertmanager and Thanos, and not found") as caught:
        build.ensure(tmp_path / "cache", ("prometheus",))
    assert caught.value.exit_code == 2
    assert "1.26" in caught.value.remedy
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_committed_build_files_name_a_version(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.version[0].isdigit()
    assert recipe.key.startswith(f"{name}-{recipe.version}-")


def test_thanos_is_built_with_the_labels_that_do_not_panic() -> None:
    command = RECIPES["thanos"].command("go", Path("out"))
    assert "slicelabels" in command[command.index("-tags") + 1]
    assert os.fspath(RECIPES["thanos"].source).endswith("servers/thanos")
