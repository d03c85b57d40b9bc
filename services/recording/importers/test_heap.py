import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from services.kit.errors import TooMuchError, UserError
from services.recording.conftest import written
from services.recording.importers.heap import convert
from services.recording.importers.test_dcgm_text import NEW, scrape
from services.recording.importers.test_saved_series import GRAFANA, STREAMS, TELEGRAF
from services.recording.importers.test_schedulers import DAY, Run, sacct
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.mangled import fuzzed, survives

JOB = Run(907, "llm", "ann", ("gpu01", "gpu02"), 2, DAY + 28_740, DAY + 28_800, DAY + 29_400, "FAILED")
DMESG = "[Mon Apr  1 08:01:02 2024] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"
SEL = "   1 | 04/01/2024 | 08:00:59 | Power Supply #0x51 | Failure detected | Asserted\n"
SYSLOG = "Apr  1 08:01:02 gpu02 kernel: [ 12.3] mlx5_core 0000:01:00.0: link down\n"
BUG_REPORT = (
    f"{'_' * 44}\n\nStart of NVIDIA bug report log file.  Please include it.\n\n"
    f"uname: Linux gpu02 5.15.0-105-generic #115-Ubuntu SMP x86_64\n\n{'_' * 44}\n\n*** /proc/version\n\n{'_' * 44}\n\n"
    "/usr/bin/nvidia-smi --query\n\n==============NVSMI LOG==============\n\n"
    "Timestamp                   : Mon Apr  1 08:02:00 2024\nAttached GPUs               : 1\n"
    "GPU 00000000:1B:00.0\n    Product Name          : NVIDIA H100 80GB HBM3\n"
    "    GPU UUID              : GPU-7\n    Temperature\n        GPU Current Temp  : 71 C\n"
)  # fmt: skip
FILES = {
    **{f"n1/metrics-2024040108{minute:02d}00.prom": scrape(NEW, "gpu01.lab.example") for minute in range(5)},
    "logs/gpu01-dmesg.txt": DMESG,
    "logs/syslog": SYSLOG,
    "gpu01-bmc-sel.txt": SEL,
    "jobs.txt": sacct([JOB]),
    "hosts": "10.0.0.1 gpu01.lab.example gpu01\n127.0.0.1 localhost\n",
    "nvidia-bug-report.log": BUG_REPORT,
    "notes.md": "what we think happened\n",
    "prometheus/01HTR1V8ZK2M3N4P5Q6R7S8T9V/chunks/000001": "x",
}


def smi_dump(taken: str) -> str:
    """Return what `nvidia-smi -q` says of one GPU at one moment."""
    text = BUG_REPORT.partition("/usr/bin/nvidia-smi --query\n")[2]
    return text.replace("Mon Apr  1 08:02:00 2024", taken)


def packed(folder: Path) -> Path:
    """Return the archive of a folder, as people send one: a compressed file in it, and a link."""
    archive = folder.with_suffix(".tar.gz")
    (folder / "link").symlink_to("/etc/passwd")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


@pytest.mark.parametrize("as_archive", [False, True])
def test_every_file_of_a_heap_is_found_out_imported_and_reported(tmp_path: Path, as_archive: bool) -> None:
    heap = written(tmp_path / "heap", FILES)
    report = convert(packed(heap) if as_archive else heap, tmp_path / "out", title="Two nodes at eight")
    assert validate_recording(tmp_path / "out") == []
    recording = Recording.open(tmp_path / "out")
    assert recording.manifest.title == "Two nodes at eight"
    assert [node.name for node in recording.topology.nodes] == ["gpu01", "gpu02"]
    assert {(event.node, event.source) for event in recording.events()} == {
        ("gpu01", "kernel"), ("gpu02", "kernel"), ("gpu01", "sel"), (None, "scheduler"),
    }  # fmt: skip
    assert [job.nodes for job in recording.jobs()] == [["gpu01", "gpu02"]]
    rows = {row.name: row for row in report.files}
    kinds = {name: row.kind.partition(":")[0] for name, row in rows.items()}
    assert kinds == {
        "n1/metrics-*.prom (5 files)": "dcgm-text", "logs/gpu01-dmesg.txt": "kernel-log", "logs/syslog": "kernel-log",
        "gpu01-bmc-sel.txt": "sel", "jobs.txt": "slurm", "gpu02/nvidia-smi-1.txt": "nvidia-smi", "notes.md": "",
        "prometheus/01HTR1V8ZK2M3N4P5Q6R7S8T9V": "",
    }  # fmt: skip
    assert rows["n1/metrics-*.prom (5 files)"].nodes == "gpu01"
    assert rows["n1/metrics-*.prom (5 files)"].rows == 10
    assert "in no form that is known" in rows["notes.md"].skipped
    assert "with promtool on the PATH" in rows["prometheus/01HTR1V8ZK2M3N4P5Q6R7S8T9V"].skipped
    assert "gpu01.lab.example is gpu01: a hosts file says so" in report.notes
    assert "logs/syslog" in str(report)
    assert not list(tmp_path.glob(".out*"))


def test_a_year_that_a_log_leaves_out_is_that_of_the_others(tmp_path: Path) -> None:
    convert(written(tmp_path / "heap", {"syslog": SYSLOG, "jobs.txt": sacct([JOB])}), tmp_path / "out")
    (line,) = (event for event in Recording.open(tmp_path / "out").events() if event.source == "kernel")
    assert line.timestamp == (DAY + 28_862) * 1000


def test_the_years_of_a_log_at_new_year_are_those_nearest_to_the_others(tmp_path: Path) -> None:
    new_year = 1_704_067_200
    run = Run(907, "llm", "ann", ("gpu01",), 8, new_year - 3_600, new_year - 3_600, new_year + 3_600, "FAILED")
    lines = {"old": "Dec 31 23:50:00 gpu01 kernel: x\nJan  1 00:10:00 gpu01 kernel: y\n"}
    lines["new"] = "Jan  1 00:20:00 gpu01 kernel: z\n"
    heap = written(
        tmp_path / "heap", {"jobs.txt": sacct([run]), **{f"{name}.log": text for name, text in lines.items()}}
    )
    convert(heap, tmp_path / "out")
    times = [event.timestamp // 1000 - new_year for event in Recording.open(tmp_path / "out").events()]
    assert times[:3] == [-600, 600, 1_200]


def test_forms_of_other_tools_are_found_out(tmp_path: Path) -> None:
    heap = written(tmp_path / "heap", {"panel.csv": GRAFANA, "loki.json": STREAMS, "telegraf.out": TELEGRAF})
    report = convert(heap, tmp_path / "out", timezone="Europe/Zurich")
    assert {row.kind.partition(":")[0] for row in report.files} == {"grafana-csv", "query-result", "line-protocol"}
    clocks = {row.name: row.clock for row in report.files}
    assert clocks["panel.csv"] == "no zone in it: taken as Europe/Zurich"


def test_whose_clock_and_zone_each_files_times_are_by(tmp_path: Path) -> None:
    step = " [2024-04-01 10:00:{0}] iteration {1}/9 | elapsed time per iteration (ms): 10000.0 | lm loss: 1.0 |"
    steps = "\n".join(step.format(10 * number, number) for number in range(1, 5))
    job = {"job_id": 7, "job_state": ["RUNNING"], "start_time": DAY, "end_time": 0, "nodes": "gpu01"}
    slurm = json.dumps({"meta": {"Slurm": {}}, "jobs": [job]})
    heap = written(tmp_path / "heap", {"jobs.txt": sacct([JOB]), "train.log": steps, "squeue.json": slurm})
    report = convert(heap, tmp_path / "out", timezone="Europe/Zurich")
    no_zone = "no zone in it: taken as Europe/Zurich"
    clocks = {row.name: row.clock for row in report.files}
    assert clocks == {"jobs.txt": no_zone, "train.log": no_zone, "squeue.json": "its own"}


def test_files_without_a_zone_are_named_where_one_of_them_was_moved_by_one(tmp_path: Path) -> None:
    labels = {"__name__": "DCGM_FI_DEV_XID_ERRORS", "gpu": "0", "Hostname": "gpu01"}
    values = [[DAY + 28_000 + 15 * at, "79" if at > 57 else "0"] for at in range(240)]
    answer = {"data": {"resultType": "matrix", "result": [{"metric": labels, "values": values}]}}
    files = {"q.json": json.dumps(answer), "gpu01-dmesg.txt": DMESG.replace("08:01:02", "09:01:02")}
    report = convert(written(tmp_path / "heap", files | {"jobs.txt": sacct([JOB])}), tmp_path / "out")
    assert "1 more file(s) name no zone and keep their times: --timezone moves them, if it is that one" in report.notes
    (xid,) = (event for event in Recording.open(tmp_path / "out").events() if event.source == "kernel")
    assert xid.timestamp == (DAY + 28_862) * 1000


def test_a_file_of_aliases_has_the_last_word(tmp_path: Path) -> None:
    files = {"gpu01-dmesg.txt": DMESG, "node-17-dmesg.txt": DMESG, "jobs.txt": sacct([JOB])}
    heap = written(tmp_path / "heap", files | {"aliases.yaml": "gpu02: [node-17]\n"})
    report = convert(heap, tmp_path / "out")
    assert [node.name for node in Recording.open(tmp_path / "out").topology.nodes] == ["gpu01", "gpu02"]
    assert "node-17 is gpu02: as the file of aliases says" in report.notes
    (tmp_path / "wrong.yaml").write_text("gpu01: [a]\ngpu02: [a]\n")
    with pytest.raises(UserError, match="a stands for two machines"):
        convert(heap, tmp_path / "other", aliases=tmp_path / "wrong.yaml")
    (tmp_path / "wrong.yaml").write_text("gpu01: [a\n")
    with pytest.raises(UserError, match=r"wrong.yaml: line \d: no file of aliases"):
        convert(heap, tmp_path / "other", aliases=tmp_path / "wrong.yaml")


def test_nothing_of_use_says_of_each_file_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)nothing in it could be imported.*notes.md.*no form that is known"):
        convert(written(tmp_path / "heap", {"notes.md": "x"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="no such file"):
        convert(tmp_path / "nowhere", tmp_path / "out")


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_archives_are_bounded_and_lead_nowhere_else(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("gpu01-dmesg.txt", DMESG)
    convert(zipped(tmp_path / "in.zip", {"inner.zip": inner.getvalue(), ".hidden/x": b"x"}), tmp_path / "in")
    assert len(list(Recording.open(tmp_path / "in").events())) == 1
    with pytest.raises(UserError, match=r"'../../escaped', a name that is not taken"):
        convert(zipped(tmp_path / "up.zip", {"../../escaped": b"x"}), tmp_path / "up")
    assert not list(tmp_path.rglob("escaped"))
    with pytest.raises(TooMuchError, match="more than 1,000 bytes"):
        convert(zipped(tmp_path / "bomb.zip", {"a": b"0" * 10_000}), tmp_path / "bomb", most_bytes=1000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "gpu01-dmesg.txt").write_text(DMESG)
    (tmp_path / "folder" / "cut.tar.gz").write_bytes(b"\x1f\x8b\x08" + os.urandom(30))
    report = convert(tmp_path / "folder", tmp_path / "damaged")
    assert "damaged" in next(row.skipped for row in report.files if row.name == "cut.tar.gz")


BOOTED = DAY + 21_600  # 06:00 UTC
SOS = {
    "sos_commands/host/hostname": "gpu02\n",
    "sos_commands/date/date": "Mon Apr  1 10:30:00 CEST 2024\n",
    "sos_commands/kernel/uname_-a": "Linux gpu02 5.14.0-427.el9.x86_64 #1 SMP x86_64 GNU/Linux\n",
    "sos_commands/kernel/dmesg": "[ 7262.500000] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n",
    "sos_commands/logs/journalctl_--no-pager_--boot": "Apr 01 10:01:03 gpu02 kernel: mlx5_core 0000:01:00.0: down\n",
    "sos_commands/ipmitool/ipmitool_sel_list": SEL.replace("08:00:59", "10:00:59"),
    "proc/stat": f"cpu  1 2 3\nintr 5\nbtime {BOOTED}\nprocesses 7\n",
    "etc/os-release": 'NAME="Rocky Linux"\n',
}


def sosreport(folder: Path, files: dict[str, str], machine: str, suffix: str = ".tar.zst") -> Path:
    """Return the archive that sos makes: one folder that is called as the archive is, packed by zstd or xz."""
    name = f"sosreport-{machine}-2024-04-01-abcdefg"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo(f"{name}/dmesg")
        link.type, link.linkname = tarfile.SYMTYPE, "sos_commands/kernel/dmesg"
        tar.addfile(link)
    archive = folder / f"{name}{suffix}"
    archive.write_bytes(
        pa.Codec("zstd").compress(plain.getvalue(), asbytes=True)
        if suffix == ".tar.zst"
        else lzma.compress(plain.getvalue())
    )
    return archive


@pytest.mark.parametrize("suffix", [".tar.zst", ".tar.xz"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_sosreport_is_read_by_its_machines_name_zone_and_boot(tmp_path: Path, suffix: str, alone: bool) -> None:
    (tmp_path / "in").mkdir()
    archive = sosreport(tmp_path / "in", SOS, "gpu02", suffix)
    if not alone:
        other = SOS | {
            "sos_commands/host/hostname": "gpu01\n",
            "sos_commands/systemd/timedatectl": "Local time: 04:30:00 EDT\nTime zone: America/New_York (EDT)\n",
            "sos_commands/logs/journalctl_--no-pager_--boot": "Apr 01 04:01:03 gpu01 kernel: link down\n",
        }
        sosreport(tmp_path / "in", other, "gpu01", suffix)
    report = convert(archive if alone else tmp_path / "in", tmp_path / "out", align_clocks=False, keep_all=True)
    assert validate_recording(tmp_path / "out") == []
    at: dict[tuple[str | None, str], list[int]] = {}
    for event in Recording.open(tmp_path / "out").events():
        at.setdefault((event.node, event.source), []).append(event.timestamp // 1000 - DAY - 28_800)
    assert at["gpu02", "kernel"] == [62, 63], "seconds since boot, and a journal in CEST without a year"
    assert at["gpu02", "sel"] == [59]
    assert alone or at["gpu01", "kernel"] == [62, 63], "a machine in New York"
    assert {row.nodes for row in report.files if row.rows} == ({"gpu02"} if alone else {"gpu01", "gpu02"})


def test_what_zstd_packed_is_bounded_and_damage_is_reported(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zst"
    bomb.write_bytes(pa.Codec("zstd").compress(b"0" * 50_000_000, asbytes=True))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(TooMuchError, match="more than 1,000,000 bytes"):
        convert(bomb, tmp_path / "out", most_bytes=1_000_000)
    whole = pa.Codec("zstd").compress(os.urandom(100_000), asbytes=True)
    for content in (whole[:-50], whole[:6] + b"\xff" * 20 + whole[26:]):
        (tmp_path / "cut.zst").write_bytes(content)
        with pytest.raises(UserError, match=r"cut\.zst: the archive is damaged"):
            convert(tmp_path / "cut.zst", tmp_path / "out")
    (tmp_path / "gpu01-dmesg.txt.zst").write_bytes(pa.Codec("zstd").compress(DMESG.encode(), asbytes=True) * 2)
    convert(tmp_path / "gpu01-dmesg.txt.zst", tmp_path / "out")
    assert len(list(Recording.open(tmp_path / "out").events())) == 2, "two frames, one behind the other"


@fuzzed(BUG_REPORT.encode())
def test_mangled_heaps_give_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    survives(
        convert, {"nvidia-bug-report.log": content, "gpu01-dmesg.txt": DMESG.encode(), "x/jobs.txt": content[:300]}
    )


def test_what_cannot_be_merged_is_named_by_its_files_and_an_empty_folder_by_its_own_name(tmp_path: Path) -> None:
    late = {"gpu07.txt": smi_dump("Tue Apr  2 08:00:00 2024"), "gpu08.txt": smi_dump("Mon Apr  1 08:00:00 2024")}
    with pytest.raises(UserError, match=r"^gpu07\.txt: begins at 2024-04-02T08:00:00Z, after the others") as refused:
        convert(written(tmp_path / "heap", late), tmp_path / "out", keep_all=True)
    assert "part-" not in str(refused.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"^{tmp_path}/empty: holds no files"):
        convert(tmp_path / "empty", tmp_path / "out")


def test_dumps_of_two_moments_a_minute_apart_are_of_one_time(tmp_path: Path) -> None:
    dumps = {"gpu07.txt": smi_dump("Mon Apr  1 08:01:00 2024"), "gpu08.txt": smi_dump("Mon Apr  1 08:00:00 2024")}
    assert convert(written(tmp_path / "heap", dumps), tmp_path / "out").made["dcgm"] == 2


def test_a_log_of_another_time_does_not_push_out_a_dump_of_one_moment(tmp_path: Path) -> None:
    heap = written(tmp_path / "heap", {"gpu07.txt": smi_dump("Tue Apr  2 08:00:00 2024"), "gpu07-dmesg.txt": DMESG * 3})
    report = convert(heap, tmp_path / "out")
    assert Recording.open(tmp_path / "out").streams() == ("dcgm",)
    rows = {row.name: (row.rows, row.skipped) for row in report.files}
    assert rows["gpu07.txt"] == (1, "")
    assert rows["gpu07-dmesg.txt"] == (0, "outside of the stretch that is kept: --keep-all keeps it")
    assert "first at gpu07-dmesg.txt, which is of 2024-04-01" in str(report)


def test_a_dump_at_the_end_of_a_log_keeps_the_log_whole(tmp_path: Path) -> None:
    early = DMESG.replace("08:01:02", "03:00:00")
    heap = written(
        tmp_path / "heap", {"gpu07.txt": smi_dump("Mon Apr  1 08:02:00 2024"), "gpu07-dmesg.txt": early + DMESG}
    )
    assert convert(heap, tmp_path / "out").made == {"dcgm": 1, "events": 2, "jobs": 0, "labels": 0}
