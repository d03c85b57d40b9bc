"""The documents are a site that needs no network, every link in it leads somewhere, and its code blocks can be read."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
    cwd=ROOT, capture_output=True, text=True, check=True,
).stdout.splitlines()  # fmt: skip
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(language, text, id=f"{path}-{number}")
    for path in TRACKED
    for number, (language, text) in enumerate(BLOCK.findall((ROOT / path).read_text(encoding="utf-8")))
]


def test_the_site_is_built_with_every_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("INFO"))
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    loaded = re.compile(
        r"<(?:script|img)[^>]*src=\"(https?:[^\"]*)|<link[^>]*rel=\"stylesheet\"[^>]*href=\"(https?:[^\"]*)"
    )
    assert {page.name: found for page in pages if (found := loaded.findall(page.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_every_code_block_can_be_read(language: str, text: str) -> None:
    match language:
        case "yaml":
            yaml.safe_load(text)
        case "json":
            json.loads(text)
        case "sh":
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        case _:
            assert language in {"text", "promql", "toml", "ini", "python", "csv"}, "a language without a check"
