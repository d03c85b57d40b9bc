"""What the training loop reports: one row per rank and iteration, and one for the job as a whole (rank -1)."""

from typing import Any

import numpy as np
import pyarrow as pa

from services.recording.schema import TIMESTAMP, name_column
from services.synth.cluster.profile import ClusterProfile
from services.synth.jobs.job import Run
from services.synth.physics.effects import Floats
from services.synth.telemetry.collector import to_ms

_LOGGED_AFTER_S = 0.002  # a rank's clock and its print: mean delay after the step's end


class StepsModel:
    """Makes a run's rows of the steps stream."""

    def __init__(self, run: Run, profile: ClusterProfile, start_ms: int, rng: np.random.Generator) -> None:
        self._run, self._start_ms, self._rng = run, start_ms, rng
        self._names = profile.node_names
        self._codes = (run.gpus // profile.node.gpus).astype(np.int32)

    def of(self, run: Run) -> bool:
        """Return whether these are the rows of that run."""
        return self._run is run

    def rows(self, begin: float, end: float) -> pa.RecordBatch | None:
        """Return the rows of the steps that ended in ``begin <= t < end`` (seconds), by timestamp; None if none did."""
        run = self._run
        ends = run.start + run.total
        first, last = np.searchsorted(ends, [begin, min(end, run.end)], side="left")
        if first >= last or not run.spec.training.reports:
            return None
        pick, kept = slice(first, last), slice(first - run.kept_from, last - run.kept_from)
        compute, data_wait = run.compute[kept].astype(np.float64), run.data_wait[kept].astype(np.float64)
        steps, ranks = last - first, len(run.gpus)
        delay = self._rng.exponential(_LOGGED_AFTER_S, (steps, ranks))
        logged = ends[pick, None] + np.minimum(delay, 20 * _LOGGED_AFTER_S)
        wait = run.total[pick, None] - compute - data_wait
        whole = run.total[pick, None]
        order = np.argsort(logged, axis=1, kind="stable")
        summary_at = logged.max(axis=1, keepdims=True)  # whoever sums up hears of the last rank first
        tokens = run.spec.training.tokens_per_step
        table: dict[str, Floats] = {
            "step_time_s": np.broadcast_to(whole, (steps, ranks)),
            "compute_s": compute,
            "comm_wait_s": wait,
            "data_wait_s": data_wait,
            "tokens_per_s": np.broadcast_to(tokens / ranks / whole, (steps, ranks)),
        }
        totals = {
            "step_time_s": whole,
            "compute_s": compute.mean(axis=1, keepdims=True),
            "comm_wait_s": wait.mean(axis=1, keepdims=True),
            "data_wait_s": data_wait.mean(axis=1, keepdims=True),
            "tokens_per_s": tokens / whole,
        }
        nodes = np.concatenate([self._codes[order], np.zeros((steps, 1), dtype=np.int32)], axis=1)
        no_node = np.zeros((steps, ranks + 1), dtype=bool)
        no_node[:, -1] = True
        times = np.concatenate([np.take_along_axis(logged, order, axis=1), summary_at], axis=1)
        numbers = np.concatenate([order, np.full((steps, 1), -1)], axis=1).astype(np.int32)
        columns = {
            "timestamp": pa.array(to_ms(times.ravel(), self._start_ms)).cast(TIMESTAMP),
            "job_id": name_column(np.zeros(times.size, dtype=np.int32), [run.spec.id]),
            "rank": pa.array(numbers.ravel()),
            "node": name_column(nodes.ravel(), self._names, no_node.ravel()),
            "iteration": pa.array(np.repeat(run.iterations[pick], ranks + 1)),
        }
        for name, values in table.items():
            both = np.concatenate([np.take_along_axis(values, order, axis=1), totals[name]], axis=1)
            columns[name] = pa.array(np.round(both, 1 if name == "tokens_per_s" else 4).ravel().astype(np.float32))
        has_loss = run.spec.training.log == "megatron"
        columns["loss"] = self._summary_only(run.loss[pick], ranks, known=has_loss)
        columns["grad_norm"] = self._summary_only(run.grad_norm[pick], ranks, known=has_loss)
        return pa.RecordBatch.from_pydict(columns)

    def _summary_only(self, values: Floats, ranks: int, *, known: bool) -> Any:
        full = np.zeros((len(values), ranks + 1), dtype=np.float32)
        full[:, -1] = np.round(values, 6)
        absent = np.ones(full.shape, dtype=bool)
        absent[:, -1] = not known
        return pa.array(full.ravel(), mask=absent.ravel())
