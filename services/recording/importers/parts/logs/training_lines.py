"""What single lines of training logs say: a step, a time, a fact about the job, something that happened.

Megatron-LM (and DeepSpeed's and Primus' forks of it), DeepSpeed's pipelines, NeMo 1 and 2, torchtitan, modded-nanoGPT.
Which one it is, each line shows.
"""

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path

from services.recording.importers.parts.moments import instant_of, iso_instant, plausible
from services.recording.importers.parts.source_files import opened

LONGEST_LINE = 65_536
LONGEST_STEP_S = 604_800.0  # a week: beyond it a number is damaged

_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|NaN|inf|Infinity)"
_HOST = re.compile(r"^\[?(?=[\w.-]*\d)(?P<host>[A-Za-z][\w.-]{0,252})(?::(?P<rank>\d{1,6}))?(?:\]:?|:) ")
_RANK = re.compile(r"^(?:\[(?:default|rank)?(?P<bracket>\d{1,6})\]:?|(?P<task>\d{1,6}):) ?")
_AT = r"(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
_STAMPS = (
    re.compile(rf"\[(?:NeMo [A-Z] )?{_AT}"),
    re.compile(f"datetime: {_AT}"),
    re.compile(f"CANCELLED AT {_AT}"),
    re.compile(rf"^(?:\[titan\] )?{_AT}"),  # kubectl logs --timestamps writes UTC, to the nanosecond
)
_DATE = re.compile(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4}$")
_MEGATRON = re.compile(
    rf"iteration\s+(?P<iteration>\d{{1,15}})/\s*(?P<total>\d{{1,15}}) \|"
    rf".*?elapsed time per iteration \(ms\):\s*(?P<ms>{_NUMBER})"
)
_NANO = re.compile(
    rf"^step:(?P<iteration>\d{{1,15}})/(?P<total>\d{{1,15}}) (?:train_loss:(?P<loss>{_NUMBER}) )?"
    r"train_time:(?P<ms>\d{1,15}(?:\.\d+)?)ms"
)
_NANO_VALIDATION = re.compile(r"^step:\d+/\d+ val_loss:")
_NEMO = re.compile(rf"train_step_timing in s[:=]\s*(?P<seconds>{_NUMBER})")
_NEMO_BAR = re.compile(r"(?P<at>\d{1,15})/(?P<total>\d{1,15}) \[[^\]]*?(?P<rate>[\d.]{1,20})(?P<unit>s/it|it/s)")
_NEMO_STEP = re.compile(r"global_step[:=]\s*(?P<step>\d{1,15})(?:\.0)?\b")
_NEMO_ITERATION = re.compile(r"iteration (?P<step>\d{1,15})/(?P<total>\d{1,15})")
_NEMO_LOSS = re.compile(rf"(?:reduced_train_loss|\bloss)[:=]\s*(?P<loss>{_NUMBER})")
_NEMO_NORM = re.compile(rf"grad_norm[:=]\s*(?P<norm>{_NUMBER})")
_PIPELINE = re.compile(
    rf"^steps: (?P<iteration>\d{{1,15}}) loss: +(?P<loss>{_NUMBER}) iter time \(s\): +(?P<seconds>{_NUMBER})"
    rf"(?: samples/sec: +(?P<samples>{_NUMBER}))?"
)
_TITAN = re.compile(
    rf"step: *(?P<iteration>\d{{1,15}}) +loss: *(?P<loss>{_NUMBER})(?: +grad_norm: *(?P<norm>{_NUMBER}))?"
    r".{0,200}? tps: *(?P<tps>[\d,]{1,20})"
)
_COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")
_STRAGGLER = re.compile(
    r"(?P<which>Mn|Mx)(?P<what>Rtt|Etpt)/Rnk:\s*(?P<value>\d{1,12}(?:\.\d+)?)\s*(?P<unit>ms|TF)?\s*/\s*(?P<rank>\d{1,6})"
)
_CANCELLED = re.compile(r"\*\*\* JOB (?P<job>\d+) ON \S+ CANCELLED AT (?P<at>\S+)(?P<why> DUE TO [A-Z ]+)?")

# key of a Megatron line -> our column; the first form a fork or version used wins
_FIELDS = {
    "lm loss": "loss",
    "lm-loss": "loss",
    "loss": "loss",
    "grad norm": "grad_norm",
    "learning rate": "learning_rate",
    "global batch size": "global_batch_size",
    "loss scale": "loss_scale",
    "samples per second": "samples_per_s",
    "throughput per GPU (TFLOP/s/GPU)": "tflops_per_gpu",
    "TFLOPs": "tflops_per_gpu",
    "tokens per GPU (tokens/s/GPU)": "tokens_per_s_per_gpu",
    "energy per GPU (J/iter/GPU)": "energy_per_gpu_j",
    "power per GPU (W/GPU)": "power_per_gpu_w",
    "number of skipped iterations": "skipped_iterations",
    "number of nan iterations": "nan_iterations",
}
# what happened, by what its line has in it; the first that fits
_HAPPENINGS: tuple[tuple[str, str], ...] = (
    ("CANCELLED AT", "error"),
    ("Traceback (most recent call last)", "error"),
    ("Watchdog caught collective operation timeout", "critical"),
    ("CUDA error", "error"),
    ("OutOfMemoryError", "error"),
    ("CUDA out of memory", "error"),
    ("uncorrectable ECC error", "critical"),
    ("unhandled system error", "error"),
    ("unhandled cuda error", "error"),
    ("RuntimeError:", "error"),
    ("Segmentation fault", "error"),
    ("srun: error:", "error"),
    ("slurmstepd: error:", "error"),
    ("saving checkpoint at iteration", "info"),
    ("successfully saved checkpoint", "info"),
    ("successfully loaded checkpoint", "info"),
    ("loading checkpoint from", "info"),
    ("validation loss at", "info"),
    ("[before the start of training step]", "info"),
    ("[after training is done]", "info"),
    ("MnRtt/Rnk:", "info"),
)


@dataclass(frozen=True)
class Step:
    """One report of a training loop; ``seconds`` of a step, or (nanoGPT) the running total of ms, or neither."""

    dialect: str
    iteration: int
    total: int | None
    seconds: float | None
    running_ms: float | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """A line without what a launcher put before it."""

    text: str
    host: str | None = None
    rank: int | None = None


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file, also those that a progress bar ends with a carriage return; overlong ones in parts."""
    with path.open("rb") as raw, io.TextIOWrapper(opened(raw, path), encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_LINE):
            yield line.rstrip("\n")


def unprefixed(text: str) -> Line:
    """Take the launcher's prefix off: ``node-1: ``, ``[node-1:5] ``, ``5: ``, ``[default5]: ``, ``[rank5]: ``."""
    match = _RANK.match(text)
    if match is not None:
        return Line(text[match.end() :], rank=int(match["bracket"] or match["task"]))
    match = _HOST.match(text)
    if match is not None:
        return Line(text[match.end() :], match["host"], int(match["rank"]) if match["rank"] else None)
    return Line(text)


def stamp_of(text: str, zone: tzinfo, before: int | None = None) -> int | None:
    """Return the time that a line carries, in ``zone``; None where it has none. `before`: that of a line before."""
    if text[:3] in {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"} and _DATE.match(text.strip()):
        # English day and month names, as `nvidia-smi` prints them in every locale
        moments = (" ".join(text.split()), "%a %b %d %H:%M:%S %Y")
        try:
            at = instant_of(datetime.strptime(*moments), zone, before)  # noqa: DTZ007 - its zone is given
        except (OverflowError, ValueError):
            return None
        return at if at and plausible(at) else None
    if ":" in text[:400]:
        for pattern in _STAMPS:
            match = pattern.search(text, 0, 400)
            if match is not None:
                return iso_instant(match["at"].replace(",", "."), zone, before) or None
    return None


def step_of(text: str, *, whole: bool = True) -> Step | None:
    """Return the step that a line reports (unless ``whole``, without all its values); None where it reports none."""
    if "elapsed time per iteration" in text:
        return _megatron(text, whole=whole)
    if text.startswith("step:"):
        return _nano(text)
    if "train_step_timing" in text or "s/it" in text or "it/s" in text:
        return _nemo(text)
    if "iter time (s):" in text:
        return _pipeline(text)
    return _titan(_COLOUR.sub("", text)) if "tps: " in text else None


def _megatron(text: str, *, whole: bool) -> Step | None:
    match = _MEGATRON.search(text)
    milliseconds = None if match is None else _number(match["ms"])
    if match is None or milliseconds is None:
        return None
    values: dict[str, float] = {}
    for part in text[match.start() :].split("|")[1:] if whole else ():
        key, _, value = part.partition(":")
        column = _FIELDS.get(key.strip())
        if column is not None:
            # Primus prints "now/average"; the first is this step's
            number = _number(value.partition("/")[0])
            if number is not None:
                values.setdefault(column, number)
    if values.get("global_batch_size", 1) < 1 or not math.isfinite(values.get("global_batch_size", 1)):
        del values["global_batch_size"]
    return Step("Megatron", int(match["iteration"]), int(match["total"]), milliseconds / 1000, values=values)


def _pipeline(text: str) -> Step | None:
    """Read what DeepSpeed's pipeline engine prints (runtime/pipe/engine.py)."""
    match = _PIPELINE.match(text)
    seconds = None if match is None else _number(match["seconds"])
    if match is None or seconds is None:
        return None
    named = {"loss": match["loss"], "samples_per_s": match["samples"]}
    values = {name: value for name, words in named.items() if (value := _number(words or "")) is not None}
    return Step("DeepSpeed", int(match["iteration"]), None, seconds, values=values)


def _titan(text: str) -> Step | None:
    """Read torchtitan's report; it has no step's time, which is what passed since the last by the lines' own times."""
    match = _TITAN.search(text)
    if match is None:
        return None
    named = {"loss": match["loss"], "grad_norm": match["norm"], "tokens_per_s_per_gpu": match["tps"].replace(",", "")}
    values = {name: value for name, words in named.items() if (value := _number(words or "")) is not None}
    return Step("torchtitan", int(match["iteration"]), None, None, values=values)


def _nano(text: str) -> Step | None:
    match = _NANO.match(text)
    if match is None or match["loss"] is None:
        return None
    loss = _number(match["loss"])
    values = {} if loss is None else {"loss": loss}
    return Step("nanoGPT", int(match["iteration"]), int(match["total"]), None, float(match["ms"]), values)


def _nemo(text: str) -> Step | None:
    timing, bar = _NEMO.search(text), _NEMO_BAR.search(text)
    step, iteration = _NEMO_STEP.search(text), _NEMO_ITERATION.search(text)
    seconds = None if timing is None else _number(timing["seconds"])
    if seconds is None and bar is not None:
        # The bar of a download looks the same: only one that shows a loss or a step is that of the training.
        rate = _number(bar["rate"])
        if rate is None or not rate or (step is None and "loss" not in text):
            return None
        seconds = rate if bar["unit"] == "s/it" else 1 / rate
    number = step["step"] if step else iteration["step"] if iteration else bar["at"] if bar else None
    if seconds is None or number is None:
        return None
    values = {}
    for column, match in (("loss", _NEMO_LOSS.search(text)), ("grad_norm", _NEMO_NORM.search(text))):
        value = None if match is None else _number(match[match.lastindex or 0])
        if value is not None:
            values[column] = value
    total = iteration["total"] if iteration else bar["total"] if bar else None
    return Step("NeMo", int(number), None if total is None else int(total), seconds, values=values)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def slow_ranks(text: str) -> dict[int, float | None]:
    """Return the ranks that a straggler line of Megatron names as slowest and fastest, with their seconds if given."""
    found: dict[int, float | None] = {}
    if "/Rnk:" in text:
        for match in _STRAGGLER.finditer(text):
            if match["what"] == "Rtt":
                found[int(match["rank"])] = float(match["value"]) / 1000
            else:
                found.setdefault(int(match["rank"]), None)
    return found


def lowest_throughput(text: str) -> int | None:
    """Return the rank with the least throughput on a straggler line of Megatron."""
    for match in _STRAGGLER.finditer(text):
        if (match["which"], match["what"]) == ("Mn", "Etpt"):
            return int(match["rank"])
    return None


def happening_of(text: str) -> str | None:
    """Return the severity of something worth an event, None for a line that is not."""
    for words, severity in _HAPPENINGS:
        if words in text:
            return "warning" if severity == "error" and "CANCELLED AT" in text else severity
    return "info" if _NANO_VALIDATION.match(text) else None


def cancelled(text: str) -> str | None:
    """Return the state in which Slurm's own line says that the job ended."""
    match = _CANCELLED.search(text) if "CANCELLED AT" in text else None
    if match is None:
        return None
    why = match["why"] or ""
    return "TIMEOUT" if "TIME LIMIT" in why else "NODE_FAIL" if "NODE FAILURE" in why else "CANCELLED"
