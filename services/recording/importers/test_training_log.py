from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from services.kit.errors import UserError
from services.kit.times import parse_instant
from services.recording.conftest import imported
from services.recording.importers.contract import Report
from services.recording.importers.parts.logs.training_lines import stamp_of, step_of, unprefixed
from services.recording.importers.training_log import convert
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.data import public
from tests.mangled import fuzzed, survives

NOON = parse_instant("2026-08-22T12:00:00Z")

MEGATRON = """\
using world size: 16, data-parallel-size: 2, tensor-model-parallel size: 4, pipeline-model-parallel size: 2
  seq_length ...................................... 4096
[before the start of training step] datetime: 2026-08-22 12:00:00
 [2026-08-22 12:00:12.500000] iteration        1/     500 | consumed samples:         2048 | elapsed time per \
iteration (ms): 12000.0 | throughput per GPU (TFLOP/s/GPU): 412.3 | energy per GPU (J/iter/GPU): 8123.4 | power per \
GPU (W/GPU): 612.0 | learning rate: 1.500000E-04 | global batch size:  2048 | lm loss: 2.345678E+00 | loss scale: 1.0 \
| grad norm: 0.512 | number of skipped iterations:   0 | number of nan iterations:   0 |
[2026-08-22 12:00:13] | MnRtt/Rnk: 2000.5ms/3 | MxRtt/Rnk: 9000.25ms/9 | MnPwr/Rnk: 300.0W/1 | MnEtpt/Rnk: \
180.12TF/9 | MxEtpt/Rnk: 412.00TF/3
 [2026-08-22 12:00:22.500000] iteration        2/     500 | consumed samples:         4096 | elapsed time per \
iteration (ms): 10000.0/11000.0 | global batch size:  2048 | lm loss: nan | grad norm: inf |
saving checkpoint at iteration       2 to /checkpoints/llm
Traceback (most recent call last):
"""
NEMO = """\
[NeMo I 2026-08-22 12:00:00 exp_manager:396] Experiments will be logged
Training epoch 0, iteration 118/149 | lr: 3e-05 | global_batch_size: 1 | global_step: 118 | reduced_train_loss: 1.5 \
| train_step_timing in s: 2.5
Training epoch 0, iteration 119/149 | lr: 3e-05 | global_step: 119 | reduced_train_loss: 1.25 | grad_norm: 0.75 \
| train_step_timing in s: 2
"""
BAR = (
    "[NeMo I 2026-08-22 12:00:00 exp_manager:396] x\n"
    "Epoch 0: :   1%|1  | 10/100 [06:53<1:02:01, 41.5s/it, v_num=3, reduced_train_loss=2.25, global_step=10.0]\r"
    "Epoch 0: :   1%|1  | 10/100 [06:53<1:02:01, 41.5s/it, v_num=3, reduced_train_loss=2.25, global_step=10.0]\r"
    "Epoch 0: :   2%|1  | 11/100 [07:03<1:02:01, 2.0it/s, v_num=3, reduced_train_loss=nan, global_step=11.0]\n"
)
NANO = """\
====================================================================================================
raise RuntimeError("only a program's text")
====================================================================================================
Sat Aug 22 12:00:00 2026
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H100 80GB HBM3          Off |   00000000:18:00.0 Off |                    0 |
| N/A   29C    P0            117W /  700W |   19390MiB /  81559MiB |     14%      Default |
|   1  NVIDIA H100 80GB HBM3          Off |   00000000:2A:00.0 Off |                    0 |
| N/A   32C    P0            122W /  700W |   21706MiB /  81559MiB |     22%      Default |
step:0/4 val_loss:22.6 train_time:278ms step_avg:nanms
step:1/4 train_loss:22.5 train_time:80000ms step_avg:nanms
step:2/4 train_loss:9.5 train_time:81500ms step_avg:nanms
step:3/4 train_loss:nan train_time:1700ms step_avg:nanms
step:3/4 val_loss:9.1 train_time:1700ms step_avg:nanms
step:4/4 train_loss:9.25 train_time:3400ms step_avg:1700.00ms
"""


def _imported(tmp_path: Path, logs: dict[str, str], **options: Any) -> tuple[Recording, dict[str, Any], Report]:
    report, recording = imported(convert, tmp_path, logs, **options)
    table = pq.read_table(tmp_path / "out" / "steps.parquet")
    columns: dict[str, Any] = {name: table[name].to_pylist() for name in table.column_names}
    columns["ms"] = [round(at.timestamp() * 1000) - NOON for at in columns["timestamp"]]
    return recording, columns, report


def test_megatron_with_stamps_ranks_and_what_happened(tmp_path: Path) -> None:
    recording, rows, _ = _imported(tmp_path, {"train.log": MEGATRON})
    whole = [index for index, rank in enumerate(rows["rank"]) if rank == -1]
    assert [rows["ms"][index] for index in whole] == [12_500, 22_500]
    assert [rows["step_time_s"][index] for index in whole] == [12.0, 10.0]
    assert rows["loss"][whole[0]] == pytest.approx(2.345678)
    assert np.isnan(rows["loss"][whole[1]]), "a loss of NaN is a value"
    assert rows["grad_norm"][whole[1]] == np.inf
    assert rows["tokens_per_s"][whole[1]] == pytest.approx(2048 * 4096 / 10)
    assert (rows["tflops_per_gpu"][whole[0]], rows["power_per_gpu_w"][whole[0]]) == (pytest.approx(412.3), 612.0)
    ranks = {rows["rank"][index]: index for index in range(len(rows["rank"])) if index not in whole}
    assert {rank: rows["compute_s"][index] for rank, index in ranks.items()} == pytest.approx({3: 2.0005, 9: 9.00025})
    assert (rows["node"][ranks[3]], rows["node"][ranks[9]]) == ("node-0", "node-1")
    assert rows["step_time_s"][ranks[9]] is None
    (job,) = recording.jobs()
    assert (job.job_id, job.state, job.gpus_per_node, len(job.nodes)) == ("train", "FAILED", 8, 2)
    events = {event.message[:10]: event for event in recording.events()}
    assert (events["[2026-08-2"].rank, events["[2026-08-2"].node) == (9, "node-1"), "the rank with least throughput"
    assert events["Traceback "].severity == "error"
    assert events["saving che"].severity == "info"


def test_reports_without_stamps_stand_for_all_steps_since_the_last(tmp_path: Path) -> None:
    lines = [
        " iteration       10/      30 | elapsed time per iteration (ms): 2000.0 | lm-loss: 9.5 |",
        " iteration       20/      30 | elapsed time per iteration (ms): 1000.0 | lm loss: 9.0 |",
        "slurmstepd: error: *** JOB 77 ON n7 CANCELLED AT 2026-08-22T12:00:40 DUE TO TIME LIMIT ***",
    ]
    recording, rows, report = _imported(tmp_path, {"a.out": "\n".join(lines)}, start="2026-08-22T12:00:00Z")
    assert rows["ms"] == [2_000, 12_000]
    assert rows["loss"] == [9.5, 9.0]
    (job,) = recording.jobs()
    assert (job.job_id, job.state, job.end) == ("77", "TIMEOUT", NOON + 40_000)
    (event,) = recording.events()
    assert event.source == "scheduler"
    assert any("adding up" in note for note in report.notes)


def test_times_between_the_steps_keep_the_clock_in_step(tmp_path: Path) -> None:
    step = " iteration {0}/9 | elapsed time per iteration (ms): 10000.0 | lm loss: 1.0 |"
    lines = ["[before the start of training step] datetime: 2026-08-22 12:00:00"]
    for number, second in ((1, 8), (2, 18), (3, 55)):
        lines += [f"[2026-08-22 12:00:{second:02d},500] [INFO] [logging.py:96:log_dist] x", step.format(number)]
    _, rows, _ = _imported(tmp_path, {"a.log": "\n".join(lines)})
    assert rows["ms"] == [10_000, 20_000, 55_500]


def test_a_log_goes_on_through_the_hour_that_comes_twice_when_summer_time_ends(tmp_path: Path) -> None:
    step = " [2026-10-25 {0}] iteration {1}/9 | elapsed time per iteration (ms): 10000.0 | lm loss: 1.0 |"
    lines = [step.format(clock, number) for number, clock in enumerate(("02:59:55", "02:00:05", "02:00:15"), start=1)]
    _, rows, _ = _imported(tmp_path, {"a.log": "\n".join(lines)}, timezone="Europe/Zurich")
    assert [ms - rows["ms"][0] for ms in rows["ms"]] == [0, 10_000, 20_000]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_times_that_name_a_zone_are_in_it_and_files_in_any_unicode(tmp_path: Path, encoding: str) -> None:
    step = "{0} iteration {1}/9 | elapsed time per iteration (ms): 10000.0 | lm loss: 1.0 |"
    stamps = ("2026-08-22T12:00:10.123456789Z", "[2026-08-22T14:00:20+02:00]", "[2026-08-22 14:00:30]")
    text = "\r\n".join(step.format(stamp, number) for number, stamp in enumerate(stamps, start=1))
    (tmp_path / "a.log").write_bytes(text.encode(encoding))
    convert(tmp_path / "a.log", tmp_path / "out", timezone="+02:00")
    times: list[Any] = pq.read_table(tmp_path / "out" / "steps.parquet")["timestamp"].to_pylist()
    assert [round(at.timestamp() * 1000) - NOON for at in times] == [10_123, 20_000, 30_000]


def test_without_any_time_a_start_is_asked_for(tmp_path: Path) -> None:
    line = " iteration 1/9 | elapsed time per iteration (ms): 10000.0 | lm loss: 1.0 |"
    with pytest.raises(UserError, match="--start"):
        _imported(tmp_path, {"a.log": line})


def test_nemo_lines_of_both_versions(tmp_path: Path) -> None:
    _, rows, _ = _imported(tmp_path, {"two.log": NEMO})
    assert (rows["iteration"], rows["step_time_s"], rows["loss"]) == ([118, 119], [2.5, 2.0], [1.5, 1.25])
    assert rows["grad_norm"] == [None, 0.75]
    assert rows["ms"] == [2_500, 4_500]


def test_what_deepspeeds_pipeline_engine_prints(tmp_path: Path) -> None:
    step = "steps: {0} loss: 2.3412 iter time (s): 2.000 samples/sec: 127.250"
    stamp = "[2026-08-22 12:00:{0:02d},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={1}, skipped=0, lr=[1e-05]"
    lines = [words for count in (10, 20) for words in (stamp.format(count, count), step.format(count))]
    _, rows, _ = _imported(tmp_path, {"a.log": "\n".join(lines)})
    assert (rows["iteration"], rows["step_time_s"]) == ([10, 20], [2.0, 2.0])
    assert rows["samples_per_s"] == [127.25, 127.25]
    assert rows["loss"] == pytest.approx([2.3412, 2.3412])


def test_torchtitans_steps_are_timed_by_the_reports_around_them(tmp_path: Path) -> None:
    text = (
        "[rank0]:[titan] 2026-08-22 12:00:{0:02d},500 - root - INFO - \x1b[31mstep: {1:2}  \x1b[32mloss: 8.1231  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.2341  \x1b[38;2;54;234;195mmemory: 30.12GiB(38.10%)  \x1b[34mtps: 6,543  "
        "\x1b[36mtflops: 312.12  \x1b[35mmfu: 31.56%\x1b[39m"
    )
    lines = [text.format(second, step) for second, step in ((0, 1), (18, 10), (38, 20))]
    _, rows, report = _imported(tmp_path, {"a.log": "\n".join(lines)})
    assert (rows["ms"], rows["iteration"], rows["step_time_s"]) == ([18_500, 38_500], [10, 20], [2.0, 2.0])
    assert (rows["tokens_per_s_per_gpu"], rows["rank"]) == ([6543, 6543], [-1, -1])
    assert rows["grad_norm"] == pytest.approx([1.2341, 1.2341])
    assert report.skipped == {"a step whose time is no time": 1}


def test_a_progress_bar_drawn_again_is_one_step(tmp_path: Path) -> None:
    _, rows, _ = _imported(tmp_path, {"one.log": BAR})
    assert (rows["iteration"], rows["step_time_s"]) == ([10, 11], [41.5, 0.5])
    assert np.isnan(rows["loss"][1])


def test_nanogpt_takes_steps_from_the_running_total(tmp_path: Path) -> None:
    recording, rows, _ = _imported(tmp_path, {"run.txt": NANO})
    assert rows["step_time_s"] == [80.0, 1.5, pytest.approx(1.7), pytest.approx(1.7)], "the total is set back once"
    assert rows["ms"] == [80_000, 81_500, 83_200, 84_900], "from the date in the log"
    (node,) = recording.topology.nodes
    assert node.gpu_model == "NVIDIA H100 80GB HBM3"
    assert [(gpu.pci_bus_id, gpu.power_limit_w) for gpu in node.gpus] == [
        ("00000000:18:00.0", 700.0),
        ("00000000:2A:00.0", 700.0),
    ]
    assert [event.message[:15] for event in recording.events()] == ["step:3/4 val_lo"], "and nothing of the program"
    (job,) = recording.jobs()
    assert job.state == "COMPLETED"


def test_start_wins_over_the_date_in_a_nanogpt_log(tmp_path: Path) -> None:
    _, rows, _ = _imported(tmp_path, {"run.txt": NANO}, start="2026-08-22T11:00:00Z")
    assert rows["ms"][0] == 80_000 - 3_600_000


def test_files_of_several_ranks_are_one_job_and_rows_of_ranks(tmp_path: Path) -> None:
    logs = {f"llm-rank{rank}.log": MEGATRON for rank in (0, 12)}
    recording, rows, _ = _imported(tmp_path, logs)
    (job,) = recording.jobs()
    assert job.job_id == "llm"
    reports = [
        (rank, node) for rank, node, step in zip(rows["rank"], rows["node"], rows["step_time_s"], strict=True) if step
    ]
    assert sorted(reports) == [(0, "node-0"), (0, "node-0"), (12, "node-1"), (12, "node-1")]


def test_parts_of_a_log_follow_each_other(tmp_path: Path) -> None:
    step = " iteration {0}/9 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |\n"
    logs = {f"llm-part{part}.log": step.format(part) for part in (1, 2, 3)}
    recording, rows, _ = _imported(tmp_path, logs, start="2026-08-22T12:00:00Z")
    assert (rows["ms"], len(list(recording.jobs()))) == ([1_000, 2_000, 3_000], 1)


def test_a_folder_without_any_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no line that reports a step"):
        _imported(tmp_path, {"a.log": "hello\n"})
    with pytest.raises(UserError, match="no log there"):
        convert(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "host", "rank"),
    [
        ("vm-07-14:  iteration", "vm-07-14", None),
        ("[vm-07-14:3] iteration", "vm-07-14", 3),
        ("17: iteration", None, 17),
        ("[default3]: iteration", None, 3),
        ("[rank12]: iteration", None, 12),
        ("Epoch 0: iteration", None, None),
        ("[2026-08-22 12:00:13] iteration", None, None),
    ],
)
def test_what_launchers_put_before_a_line(text: str, host: str | None, rank: int | None) -> None:
    line = unprefixed(text)
    assert (line.host, line.rank) == (host, rank)
    assert line.text.endswith("iteration")


def test_lines_made_to_be_slow_are_not() -> None:
    for text in ("a" * 65_000 + "!", "1" * 65_000, "|   0  H" + " " * 65_000, "[" * 65_000, "it/s loss 1/1 [" * 4000):
        assert unprefixed(text) is not None
        assert stamp_of(text, UTC) is None
        assert step_of(text) is None


@pytest.mark.parametrize(
    ("folder", "jobs", "steps"),
    [
        ("fixtures-megatron/bigscience", 5, 146),
        ("fixtures-megatron/superbench/megatron_deepspeed.log", 1, 5),
        ("nanogpt-8xh100-steplogs", 4, 64_861),
    ],
)
def test_real_logs(tmp_path: Path, folder: str, jobs: int, steps: int) -> None:
    convert(public(folder), tmp_path / "out")
    assert validate_recording(tmp_path / "out") == []
    recording = Recording.open(tmp_path / "out")
    assert len(list(recording.jobs())) == jobs
    assert recording.manifest.streams["steps"].rows == steps
    times = pq.read_table(tmp_path / "out" / "steps.parquet")["step_time_s"].to_numpy()
    if "nanogpt" in folder:
        assert np.median(times[times < 10]) == pytest.approx(1.7, abs=1.4)
    if "superbench" in folder:
        (job,) = recording.jobs()
        assert job.nodes == ["vm-07-05", "vm-07-14"]
        assert abs((job.end or 0) - parse_instant("2023-11-29T08:57:32Z")) < 2_000, "its last line's own time"


@pytest.mark.parametrize("start", ["", "2026-08-22T12:00:00Z"])
@fuzzed(*(sample.encode() for sample in (MEGATRON, NEMO, BAR, NANO)))
def test_damaged_logs_give_a_valid_recording_or_a_clear_error(content: bytes, start: str) -> None:
    survives(lambda source, out: convert(source, out, start=start), {"log.txt": content})
