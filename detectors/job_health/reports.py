"""What lines of jobs' logs say of an iteration: its number, the loss, the gradient norm, the size of its batch.

One form for each of these, whatever the framework: a line counts that names a training loss, or a gradient norm, and
says where in the training it is. So print Megatron-LM, NeMo, GPT-NeoX, Megatron-DeepSpeed, DeepSpeed's pipelines,
torchtitan, torchtune, Hugging Face's Trainer, Lightning, MaxText and most loops that were written by hand. Losses of
evaluations are none. Two frameworks leave a loss out that is no number: Megatron-LM prints only what lies above 0, and
the Trainer counts none in, so that it shows 0 (`logging_nan_inf_filter`); a gradient norm that is no number, or a count
of such iterations, beside it says so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray

HINT: Final = "oss"
"""No line without it says anything here: also where the loss itself is left out its scale is printed."""
_LONGEST = 4000
_IS = r"['\"]?[ \t]{0,16}[:=]?[ \t]{0,16}['\"]?"
"""Between a name and its value; the Trainer's values have quotes since version 5. Bounded, as is each repetition here
that could begin at many places: no line that somebody prints may take seconds."""
_NUMBER = r"((?>[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)))(?:\.0*)?(?!\w)"
"""Lightning pads what its bar shows to five characters: ``nan.0``."""


_LOSS = re.compile(
    r"(?<![\w/.-])(?:(?:lm[ _-]|(?:reduced_)?train(?:ing)?[ _/])loss(?:_step)?|(?<![a-z][ \t])loss(?: train)?)"
    rf"{_IS}{_NUMBER}"
)
_NORM = re.compile(rf"\b(?:grad(?:ient)?[ _-]?norm|gnorm){_IS}{_NUMBER}")
_STEP = re.compile(
    rf"(?<![\w/])(?:iteration|iter|steps?|global_step(?:/max_steps)?|num_updates){_IS}(\d{{1,15}})(?:\.0*)?(?!\w)"
    r"|(?<=\|)(\d{1,15})(?=\|loss)"
)
_OF_ALL = re.compile(rf"\b(?:global_step(?:/max_steps)?|num_updates){_IS}(\d{{1,15}})")
"""What counts over all epochs, where a line has another number, too."""
_BAR = re.compile(r"epoch (\d{1,9}):.{0,200}?(\d{1,9})/(\d{1,9}) \[")
_OF_DICT = re.compile(r"['\"]loss['\"]:")
_IN_DICT = re.compile(r"['\"](?:epoch|learning_rate)['\"]:")
_SIZE = re.compile(rf"global[ _]batch[ _]size{_IS}(\d{{1,12}})(?!\w)")
_LENGTH = re.compile(rf"actual seqlen{_IS}(\d{{1,12}})(?!\w)")
_NANS = re.compile(rf"number of nan iterations{_IS}(\d{{1,9}})")
_NO_TRAINING = re.compile(r"\b(?:eval\b|evaluat|validat|val loss|test(?:ing)?[ _]loss)")
_RANK = re.compile(r"^(?:[\w-]+/\d+ )?(?:\[(?:default|rank)?(\d{1,6})\]:?|(\d{1,6}):)(?=\D)", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, slots=True)
class Reports:
    """What n lines say, each array (n,), NaN where a line does not: the `rank` that speaks, by the line's prefix, the
    number of the `iteration`, the `size` of its batch (samples, or tokens where the sequence's length is named).

    `values` are the loss and the gradient norm, `valid` where a line has them: one that is no number is NaN and valid.
    """

    rank: FloatArray
    iteration: FloatArray
    size: FloatArray
    values: dict[str, FloatArray]
    valid: dict[str, BoolArray]


def reports_of(lines: Sequence[str]) -> Reports:
    """Return what `lines` (n) say of iterations."""
    clean = [_clean(line) for line in lines]
    page = _Page("\n".join(clean), np.cumsum([0, *(len(line) + 1 for line in clean)])[:-1])
    loss, has_loss = page.first(_LOSS)
    norm, has_norm = page.first(_NORM)
    iteration, counts = page.first(_STEP)
    of_all, whole = page.first(_OF_ALL)
    epoch, batch, batches = (page.first(_BAR, group)[0] for group in (1, 2, 3))
    size, length = page.first(_SIZE)[0], page.first(_LENGTH)[0]
    iteration = np.where(whole, of_all, np.where(counts, iteration, epoch * batches + batch))
    trains = np.isfinite(iteration) | page.has(_OF_DICT) & page.has(_IN_DICT)
    trains &= ~page.has(_NO_TRAINING)
    left_out = ~(has_loss & ~(loss == 0)) & (has_norm & np.isnan(norm) | (page.first(_NANS)[0] > 0))
    return Reports(
        page.first(_RANK)[0],
        iteration,
        np.where(np.isnan(length), size, size * length),
        {"loss": np.where(left_out, np.nan, loss), "grad_norm": norm},
        {"loss": trains & (has_loss | left_out), "grad_norm": trains & has_norm},
    )


def _clean(line: str) -> str:
    """Return the latest of what was drawn over in a line, without colours, in small letters."""
    line = line.rstrip("\r\n")[-_LONGEST:] if "\r" in line else line[:_LONGEST]
    line = line.rpartition("\r")[2]
    return (_COLOUR.sub("", line) if "\x1b" in line else line).lower()


class _Page:
    """Lines as one text, which each form is looked for in once; `starts` (n,) is where each line begins."""

    def __init__(self, text: str, starts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self._text, self._starts = text, starts

    def first(self, form: re.Pattern[str], group: int | None = None) -> tuple[FloatArray, BoolArray]:
        """Return the first number (n,) that each line has in a form, NaN where it has none, and where it has one."""
        found = [(match.start(), match[group or match.lastindex or 0]) for match in form.finditer(self._text)]
        values, has = np.full(len(self._starts), np.nan), np.zeros(len(self._starts), bool)
        lines = self._lines([at for at, _ in found])[::-1]
        values[lines], has[lines] = [float(number) for _, number in reversed(found)], True
        return values, has

    def has(self, form: re.Pattern[str]) -> BoolArray:
        """Return which lines (n,) have a form in them."""
        has = np.zeros(len(self._starts), bool)
        has[self._lines([match.start() for match in form.finditer(self._text)])] = True
        return has

    def _lines(self, places: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.asarray(np.searchsorted(self._starts, np.array(places, np.int64), side="right") - 1)
