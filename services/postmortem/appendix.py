"""What it takes to make the report again: the files by content, the detectors and their settings, the command."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from detectors.engine.engine import Choice
from detectors.registry import choose
from services.postmortem.case import Case
from services.postmortem.document import Block, Code, Items, Section, Table, Text
from services.recording.schema import STREAMS
from services.recording.writer import sha256_of


@dataclass(frozen=True)
class Asked:
    """What the report was asked for beside the recording; `config` is the detectors.yaml as given."""

    price: float | None = None
    config: Path | None = None
    incident: str | None = None
    rules: bool = False
    what_if: bool = True

    def command(self, recording: str) -> str:
        """Return the command that makes the report again."""
        words = ["hindcast", "postmortem", recording, "--out", "report.html"]
        if self.price is not None:
            words += ["--price", f"{self.price:g}"]
        if self.config is not None:
            words += ["--config", self.config.name]
        if self.incident is not None:
            words += ["--incident", self.incident]
        words += ["--rules"] * self.rules + ["--no-what-if"] * (not self.what_if)
        return shlex.join(words)


def appendix(case: Case, asked: Asked) -> Section:
    """Return the section."""
    manifest, folder = case.recording.manifest, case.recording.path
    names = ["recording.yaml", "topology.json", "events.jsonl", "jobs.jsonl", "labels.jsonl"]
    names += [STREAMS[stream].file for stream in case.recording.streams()]
    rows = [
        [name, f"{(folder / name).stat().st_size:,}", f"`{sha256_of(folder / name)}`"]
        for name in names
        if (folder / name).is_file()
    ]
    if asked.config is not None:
        rows.append([asked.config.name, f"{asked.config.stat().st_size:,}", f"`{sha256_of(asked.config)}`"])
    made = {name: str(value) for name, value in manifest.source.items()} if manifest.source else {}
    source = [f"{name}: {' '.join(words.split())}" for name, words in sorted(made.items())]
    seed = "" if manifest.seed is None else f", seed {manifest.seed}"
    return Section(
        "Data appendix",
        [
            Text(
                f"Recording `{manifest.name}` ({manifest.origin}{seed}), of {manifest.cluster.name}: "
                f"{manifest.cluster.nodes} nodes, {manifest.cluster.gpus} GPUs ({manifest.cluster.gpu_model})."
            ),
            *([Items(source)] if source else []),
            Text(
                "The same files, settings and version of hindcast give this report again, byte for byte, in the folder"
                " that holds the recording (as Markdown with `--out report.md`):"
            ),
            Code(asked.command(folder.resolve().name)),
            Table(["file", "bytes", "SHA-256"], rows, figures=frozenset({1})),
            Text(
                f"hindcast {_version()}; incident {case.incident.id}, revision {case.incident.revision}. Detectors and"
                f" their versions: {', '.join(f'{kind.spec.name} {kind.spec.version}' for kind, _ in case.choices)}."
            ),
            *_settings(case.choices),
        ],
    )


def _settings(choices: Sequence[Choice]) -> list[Block]:
    rows = []
    plain = dict(choose())
    for kind, config in choices:
        now, usual = config.model_dump(exclude={"calibration"}), plain[kind].model_dump()
        changed = [f"`{name}: {value}`" for name, value in now.items() if value != usual[name]]
        changed += ["calibrated"] * bool(config.calibration)
        if changed or config.shadow:
            rows.append([kind.spec.name, ", ".join(changed + ["in shadow"] * config.shadow)])
    return [Table(["detector", "settings that differ from the defaults"], rows)] if rows else []


def _version() -> str:
    try:
        return version("hindcast")
    except PackageNotFoundError:
        return "from a checkout"
