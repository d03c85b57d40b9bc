"""What a training log says about its job and machines, gathered before its steps are read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from services.recording.importers.parts.logs.training_lines import Line, lines_of, slow_ranks, step_of, unprefixed
from services.recording.model import Gpu

_MOST_RANKS = 200_000
_MOST_HOSTS = 20_000
_JOB_ID = re.compile(r"\*\*\* (?:JOB|STEP) (\d{1,15})|srun --jobid[ =](\d{1,15})|SLURM_JOB_?ID[=:] ?(\d{1,15})")
_WORLD = re.compile(r"using world size: (\d{1,7})|dist_world_size=(\d{1,7})|^ *world_size \.{3,} (\d{1,7})")
_SEQUENCE = re.compile(r"^ *seq_length \.{3,} (\d{1,9})")
_WORKERS = re.compile(r"Running on the following workers: (\S{1,100000})")
_MAPPING = re.compile(r"global_rank_mapping=[^{}]*\{([^{}]{1,100000})\}")
_MAPPED = re.compile(r"'([\w.-]{1,253})': \[([\d, ]*)\]")
_HOST_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,252}")
_SMI_GPU = re.compile(r"^\|\s+(?P<gpu>\d{1,3})\s+(?P<model>\S.*?)\s+(?:On|Off)\s*\|\s*(?P<bus>[0-9A-Fa-f:]+\.\d)\s")
_SMI_POWER = re.compile(r"^\|.*?\d+W\s*/\s*(?P<limit>\d{1,5})W\s*\|")
_WIDEST_TABLE = 200
_RANK_IN_NAME = re.compile(r"[-_.]*(?:(?:local[-_])?rank|node|worker|part|task)[-_]?(?P<number>\d{1,6})(?=$|[-_.])")
_ROTATED = re.compile(r"\.\d{1,4}$")


@dataclass
class LogFile:
    """One file and what it says of the job it belongs to."""

    path: Path
    key: str
    """What the names of a job's files have in common."""
    rank: int | None
    """From the file's name, where it is one rank's."""
    job_id: str | None = None
    world: int | None = None
    sequence: int | None = None
    steps: int = 0
    step_ranks: set[int | None] = field(default_factory=set)
    ranks: int = 0
    """One more than the highest rank that is named."""
    hosts: dict[str, None] = field(default_factory=dict)
    host_of: dict[int, str] = field(default_factory=dict)
    gpus: dict[int, Gpu] = field(default_factory=dict)
    gpu_model: str | None = None
    dialects: set[str] = field(default_factory=set)


def facts_of(path: Path) -> LogFile:
    """Read a log once for what it says about job and machines."""
    facts = LogFile(path, *_named(path))
    last_gpu: int | None = None
    for text in lines_of(path):
        line = unprefixed(text)
        step = step_of(line.text, whole=False)
        if step is not None:
            rank = line.rank if line.rank is not None else facts.rank
            facts.steps += 1
            facts.dialects.add(step.dialect)
            if len(facts.step_ranks) < _MOST_RANKS:
                facts.step_ranks.add(rank)
        if line.host is not None and step is not None and len(facts.hosts) < _MOST_HOSTS:
            facts.hosts.setdefault(line.host)
        _words(facts, line)
        last_gpu = _machine(facts, line.text, last_gpu)
    named = [rank for rank in facts.step_ranks if rank is not None]
    facts.ranks = max([facts.ranks, *(rank + 1 for rank in named if rank < _MOST_RANKS)])
    return facts


def _named(path: Path) -> tuple[str, int | None]:
    """Return what a file's name has in common with those of its job's other files, and its rank."""
    stem = path.name
    while (shorter := _ROTATED.sub("", stem)) != stem:
        stem = shorter
    stem = Path(stem).stem if Path(stem).suffix in {".txt", ".log", ".out", ".err"} else stem
    match = _RANK_IN_NAME.search(stem)
    rank = int(match["number"]) if match and "rank" in match[0] else None
    key = _RANK_IN_NAME.sub("", stem).strip("-_.") or path.parent.name
    key = "".join(character for character in key if character.isprintable())
    return key[:100] or "job", rank


def _words(facts: LogFile, line: Line) -> None:
    text = line.text
    if "/Rnk:" in text:
        facts.ranks = max([facts.ranks, *(rank + 1 for rank in slow_ranks(text) if rank < _MOST_RANKS)])
    if facts.job_id is None and ("JOB" in text or "STEP" in text or "jobid" in text):
        match = _JOB_ID.search(text)
        if match is not None:
            facts.job_id = match[1] or match[2] or match[3]
    if "world" in text:
        match = _WORLD.search(text)
        if match is not None and facts.world is None:
            world = int(match[1] or match[2] or match[3])
            facts.world = world if 1 <= world <= _MOST_RANKS else None
    elif "seq_length" in text:
        match = _SEQUENCE.match(text)
        if match is not None:
            facts.sequence = int(match[1]) or None
    elif "workers: " in text:
        match = _WORKERS.search(text)
        _add_hosts(facts, match[1].split(",") if match else ())
    elif "global_rank_mapping" in text:
        match = _MAPPING.search(text)
        for host, ranks in _MAPPED.findall(match[1] if match else ""):
            _add_hosts(facts, (host,))
            for rank in ranks.split(","):
                if rank.strip().isdecimal() and int(rank) < _MOST_RANKS:
                    facts.host_of[int(rank)] = host


def _add_hosts(facts: LogFile, hosts: Iterable[str]) -> None:
    for host in hosts:
        if _HOST_NAME.fullmatch(host) and len(facts.hosts) < _MOST_HOSTS:
            facts.hosts.setdefault(host)


def _machine(facts: LogFile, text: str, last_gpu: int | None) -> int | None:
    """Read the table that `nvidia-smi` prints, two lines a GPU; return the GPU that the next line is about."""
    if not text.startswith("|") or len(text) > _WIDEST_TABLE:
        return last_gpu
    match = _SMI_GPU.match(text)
    if match is not None:
        number = int(match["gpu"])
        if number < 256:
            facts.gpus.setdefault(number, Gpu(gpu=number, pci_bus_id=match["bus"]))
            facts.gpu_model = facts.gpu_model or match["model"]
            return number
        return None
    match = _SMI_POWER.match(text)
    if match is not None and last_gpu is not None:
        limit = float(match["limit"])
        facts.gpus[last_gpu] = facts.gpus[last_gpu].model_copy(update={"power_limit_w": limit})
    return None
