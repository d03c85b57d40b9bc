"""Gives mkdocs the documents from where they lie in the repository, so that links between them are the same there."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

_ROOT = Path(__file__).resolve().parents[2]
_SHOWN = ("*.md", "*.png", "*.json", "*.yaml", "LICENSE")


def on_files(files: Files, /, *, config: "MkDocsConfig") -> Files:
    """Return the theme's files, and every document of the repository with its pictures and what it links to."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_SHOWN],
        cwd=_ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for path in listed:
        files.append(File.generated(config, path, abs_src_path=str(_ROOT / path)))
    return files
