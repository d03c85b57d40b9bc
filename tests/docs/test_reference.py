"""docs/reference has every detector, setting, variable, metric, topic, series, alert, command and fault there is.

What there is is read from the sources themselves, and not from what makes the pages.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from detectors.registry import needs
from services.cli.reference.commands import all_commands
from services.cli.reference.settings import kinds
from services.recording.model import (
    Cluster,
    Event,
    Gpu,
    Job,
    Label,
    Link,
    Manifest,
    Mount,
    Nic,
    Node,
    Switch,
    Topology,
)
from services.recording.schema import STREAMS

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}


def _sources() -> dict[Path, str]:
    """Return the text of every module that is no test."""
    folders = ("services", "detectors", "benchmarks")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    own = [path for path in modules if not path.name.startswith(("test_", "conftest"))]
    return {path: path.read_text(encoding="utf-8") for path in own}


SOURCES = _sources()


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def _missing(page: str, names: set[str]) -> list[str]:
    assert names, "nothing was looked for"
    return sorted(name for name in names if f"`{name}`" not in PAGES[page])


def test_every_variable_of_the_environment_is_there() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    text = "\n".join((*SOURCES.values(), compose))
    prefixes = {kind.model_config["env_prefix"] for kind in kinds()}
    used = {name for name in re.findall(r"HINDCAST_[A-Z0-9_]*[A-Z0-9]\b", text) if name + "_" not in prefixes}
    secrets = {
        name.removesuffix("_FILE")
        for name in used
        if f"`{name.removesuffix('_FILE')}` | secret" in PAGES["settings.md"]
    }
    files = {f"{name}_FILE" for name in secrets}
    assert _missing("settings.md", used - files) == []
    assert len(used) > 60


def test_every_setting_says_what_it_is() -> None:
    silent = [
        f"{kind.__name__}.{name}"
        for kind in kinds()
        for name, field in kind.model_fields.items()
        if not field.description
    ]
    assert silent == [], "write a docstring below the setting"


def test_every_metric_is_there() -> None:
    made = re.compile(r"\b(?:Counter|Gauge|Histogram|Summary)\(\s*\"(hindcast_\w+)\"")
    found = {name for text in SOURCES.values() for name in made.findall(text)}
    assert _missing("metrics.md", found) == []
    assert len(found) > 40


def test_every_topic_and_series_is_there() -> None:
    assert _missing("topics.md", set(_yaml("services/kit/topics.yaml")["topics"])) == []
    table = _yaml("services/kit/series.yaml")
    columns = {column for stream in table["streams"].values() for column in stream["columns"]}
    metrics = {made["metric"] for stream in table["streams"].values() for made in stream["columns"].values()}
    labels = {label for stream in table["streams"].values() for label in stream["labels"]}
    assert _missing("series.md", columns | metrics | labels) == []


def test_every_fault_and_setting_of_each_detector_is_there() -> None:
    specs = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "detectors").glob("*/detector.yaml")]
    assert len(specs) > 12
    assert [spec["name"] for spec in specs if f"\n## {spec['name']}\n" not in PAGES["detectors.md"]] == []
    assert _missing("detectors.md", {fault for spec in specs for fault in spec["faults"]}) == []
    for spec in specs:
        part = PAGES["detectors-yaml.md"].partition(f"\n## {spec['name']}\n")[2].partition("\n## ")[0]
        assert [name for name in spec.get("defaults") or {} if f"| `{name}` |" not in part] == [], spec["name"]


@pytest.mark.parametrize("file", sorted((ROOT / "alert-rules").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_alert_is_there(file: Path) -> None:
    alerts = set(re.findall(r"^\s*- alert: (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    assert not alerts or _missing("alerts.md", alerts) == []


def test_every_command_and_option_is_there() -> None:
    for words, command in all_commands():
        part = PAGES["commands.md"].partition(f"\n## {words}\n")[2].partition("\n## ")[0]
        assert part, words
        assert [
            option
            for one in command.params
            for option in one.opts
            if option.startswith("--") and f"`{option}`" not in part
        ] == []
        assert [one.name for one in command.params if not one.help and one.param_type_name == "option"] == [], words


def test_every_xid_is_there() -> None:
    assert _missing("xids.md", {str(number) for number in _yaml("detectors/signals/xid.yaml")["xids"]}) == []


def test_the_recording_format_has_every_file_key_and_value() -> None:
    text = (ROOT / "docs" / "recording-format.md").read_text(encoding="utf-8")
    documents = (Manifest, Cluster, Topology, Node, Gpu, Nic, Switch, Link, Mount, Event, Job, Label)
    names = {name for document in documents for name in document.model_fields}
    names |= {name for stream in STREAMS.values() for name in (*stream.must_have, stream.file)}
    assert sorted(name for name in names if f"`{name}`" not in text) == []
    streams = _yaml("services/kit/series.yaml")["streams"]
    columns = {name for stream in ("steps", "storage") for name in streams[stream]["columns"]}
    assert sorted(name for name in columns if f"`{name}`" not in text) == []


def test_the_telemetry_page_has_every_gpu_field_that_evidence_rests_on() -> None:
    text = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    needed = {need.removeprefix("dcgm.") for need in needs() if need.startswith("dcgm.")}
    assert sorted(name for name in needed if f"`{name}`" not in text) == []
    bits = {f"0x{bit:03x}" for bit in (1 << shift for shift in range(9))}
    assert [bit for bit in sorted(bits) if f"| {bit} |" not in text] == []


def test_the_glossary_is_in_order_and_has_the_streams() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [word.strip() for word in re.findall(r"^\| (?!word)([^|,]+)", text, re.MULTILINE)]
    assert words == sorted(words, key=str.lower)
    assert all(stream in text for stream in STREAMS)
