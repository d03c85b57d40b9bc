"""Every importer is under fuzzing: a new one without a test of damaged samples is named here."""

import ast
from pathlib import Path

from services.recording import importers
from services.recording.importers.registry import discover

ROOT = Path(__file__).parents[1]


def _fuzzed_importers(path: Path) -> set[str]:
    """Return the importers whose `convert` a fuzz test of this file calls, by what the file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    importer: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == importers.__name__:
            importer |= {f"{alias.name}.convert": alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{importers.__name__}."):
            module = str(node.module).rpartition(".")[2]
            importer |= {alias.asname or alias.name: module for alias in node.names if alias.name == "convert"}
    tests = [one for one in tree.body if isinstance(one, ast.FunctionDef) and "fuzzed(" in ast.unparse(one)]
    used = {ast.unparse(node) for one in tests for node in ast.walk(one) if isinstance(node, ast.Name | ast.Attribute)}
    return {importer[name].replace("_", "-") for name in used & set(importer)}


def test_every_importer_is_fuzzed() -> None:
    found: set[str] = set()
    for folder in ("services", "tests"):
        for path in (ROOT / folder).rglob("test_*.py"):
            found |= _fuzzed_importers(path)
    assert set(discover()) - found == set(), (
        "give each a test under @fuzzed(a good sample) that calls survives(convert, {name: content}): tests/mangled.py"
    )
