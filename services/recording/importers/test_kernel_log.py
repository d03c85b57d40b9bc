import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import UserError
from services.recording.conftest import imported
from services.recording.importers.kernel_log import bus_id, convert
from services.recording.importers.parts.logs.log_judgement import severity_of
from services.recording.importers.parts.source_files import node_by_path
from services.recording.instants import format_instant
from services.recording.model import Event
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.data import public
from tests.mangled import fuzzed, survives

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."


def events_of(tmp_path: Path, text: str, name: str = "v041.log", **options: Any) -> list[Event]:
    """Import one file of these lines and return the events; the recording must be clean."""
    return list(imported(convert, tmp_path, {name: text}, **options)[1].events())


@pytest.mark.parametrize(
    ("line", "time", "node", "options"),
    [
        (f"2025-01-21T04:41:44,285060+00:00 {XID}", "2025-01-21T04:41:44.285Z", "v041", {}),
        (f"kern  :err   : 2025-01-21T04:41:44,285060+01:00 {XID}", "2025-01-21T03:41:44.285Z", "v041", {}),
        (f"[Sun Feb 23 16:24:18 2025] {XID}", "2025-02-23T16:24:18Z", "v041", {}),
        (f"[Sun Feb 23 16:24:18 2025] {XID}", "2025-02-23T15:24:18Z", "v041", {"timezone": "Europe/Zurich"}),
        (f"<3>[    2.608284] {XID}", "2024-04-01T08:00:02.608Z", "v041", {"boot": "2024-04-01T08:00:00Z"}),
        (f"[    2.608284][ T1234] {XID}", "2024-04-01T08:00:02.608Z", "v041", {"boot": "2024-04-01T08:00:00Z"}),
        (f"[   12.5] v007 kernel: {XID}", "2024-04-01T08:00:12.500Z", "v007", {"boot": "2024-04-01T08:00:00Z"}),
        (f"3,17,2608284,-;{XID}", "2024-04-01T08:00:02.608Z", "v041", {"boot": "2024-04-01T08:00:00Z"}),
        (f"Feb  3 16:24:18 v007 kernel: [ 12.345678] {XID}", "2025-02-03T16:24:18Z", "v007", {"year": 2025}),
        (f"Feb 23 16:24:18.123456 v7.cluster kernel: {XID}", "2025-02-23T16:24:18.123Z", "v7.cluster", {"year": 2025}),
        (f"2025-01-21T04:41:44+0200 v007 kernel: {XID}", "2025-01-21T02:41:44Z", "v007", {}),
        (f"2025-01-21T04:41:44.5Z v007 kernel: {XID}", "2025-01-21T04:41:44.500Z", "v007", {}),
        (f"2025-01-21 04:41:44 NODE kernel: {XID}", "2025-01-21T02:41:44Z", "NODE", {"timezone": "+02:00"}),
        (f"Tue 2025-01-21 04:41:44 UTC v007 kernel: {XID}", "2025-01-21T04:41:44Z", "v007", {"timezone": "-05:00"}),
        (f"Tue 2025-01-21 04:41:44 CET v007 kernel: {XID}", "2025-01-21T03:41:44Z", "v007", {}),
        (f"Tue 2025-07-22 04:41:44 CEST v007 kernel: {XID}", "2025-07-22T02:41:44Z", "v007", {"timezone": "+09:00"}),
        (f"2025-07-22 10:00:00 CEST v007 kernel: {XID}", "2025-07-22T08:00:00Z", "v007", {}),
        (f"Jul 22 10:17:29 AM CEST v007 kernel: {XID}", "2025-07-22T08:17:29Z", "v007", {"year": 2025}),
        (f"2025-07-22 10:17:29 CST v7 kernel: {XID}", "2025-07-22T02:17:29Z", "v7", {"timezone": "Asia/Shanghai"}),
        (f"[Tue Jul 22 12:17:29 AM 2025] {XID}", "2025-07-21T22:17:29Z", "v041", {"timezone": "CEST"}),
        (f"1737434504.285060 v007 kernel: {XID}", "2025-01-21T04:41:44.285Z", "v007", {}),
        (f"<3>1 2025-01-21T04:41:44.285Z v007 kernel - - - {XID}", "2025-01-21T04:41:44.285Z", "v007", {}),
    ],
)  # fmt: skip
def test_the_usual_forms_of_lines(tmp_path: Path, line: str, time: str, node: str, options: dict[str, Any]) -> None:
    event = events_of(tmp_path, line + "\n", **options)[0]
    assert (format_instant(event.timestamp), event.node, event.source) == (time, node, "kernel")
    assert (event.message, event.severity) == (XID, "critical")


@pytest.mark.parametrize(
    ("line", "node", "message"),
    [
        ("2025-01-21T04:41:44,28+00:00 mlx5_core 0000:41:00.1: Link down", "v041", "mlx5_core 0000:41:00.1: Link down"),
        ("2025-01-21 04:41:44,285 v7 kernel: EXT4-fs (sda1): mounted", "v7", "EXT4-fs (sda1): mounted"),
        ("kern  :info  : 2025-01-21T04:41:44.28+00:00 EXT4-fs (sda1): mounted", "v041", "EXT4-fs (sda1): mounted"),
        ("2025-01-21T04:41:44.28+00:00 v7 EXT4-fs (sda1): mounted", "v041", "v7 EXT4-fs (sda1): mounted"),
        ("Jan 21 04:41:44 v7 last message repeated 3 times", "v7", "last message repeated 3 times"),
        ("[Tue Jan 21 04:41:44 2025] pcieport 0000:00:1c.5: AER: x", "v041", "pcieport 0000:00:1c.5: AER: x"),
    ],
)
def test_what_is_a_host_and_what_a_driver(tmp_path: Path, line: str, node: str, message: str) -> None:
    event = events_of(tmp_path, line + "\n", year=2025)[0]
    assert (event.node, event.message) == (node, message)


def test_a_journal_as_json(tmp_path: Path) -> None:
    entries = [
        {"__REALTIME_TIMESTAMP": "1737434504285060", "_HOSTNAME": "v007", "PRIORITY": "4", "_TRANSPORT": "kernel",
         "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": "mce: [Hardware Error]: Machine check events logged"},
        {"__REALTIME_TIMESTAMP": "1737434505285060", "_HOSTNAME": "v007", "PRIORITY": "6", "_PID": "17",
         "SYSLOG_IDENTIFIER": "sshd", "MESSAGE": list("Sitzung f\u00fcr".encode("latin-1"))},
        {"__REALTIME_TIMESTAMP": "1737434506285060", "_HOSTNAME": "v007", "PRIORITY": "2",
         "SYSLOG_IDENTIFIER": "nv-fabricmanager", "MESSAGE": "detected NVSwitch fatal error"},
        {"__REALTIME_TIMESTAMP": "later", "MESSAGE": "x"},
        {"__REALTIME_TIMESTAMP": "1737434506285060", "MESSAGE": None},
        [1],
    ]  # fmt: skip
    events = events_of(tmp_path, "\n".join(json.dumps(entry) for entry in entries))
    assert [(event.source, event.severity, event.message) for event in events] == [
        ("kernel", "error", "mce: [Hardware Error]: Machine check events logged"),
        ("kernel", "info", "sshd[17]: Sitzung f\ufffdr"),
        ("fabricmanager", "critical", "nv-fabricmanager: detected NVSwitch fatal error"),
    ]


def test_what_cannot_be_read_is_counted_with_its_first_place(tmp_path: Path) -> None:
    lines = [
        "-- Boot 0123 --", f"Feb 23 16:24:18 v007 kernel: {XID}", f"[   12.5] {XID}", "Feb 31 16:24:18 v7 kernel: x",
        "no time here", "2025-02-30T00:00:00Z v7 kernel: x", " SUBSYSTEM=pci", f"2025-01-21T04:41:44Z v7 kernel: {XID}",
    ]  # fmt: skip
    (tmp_path / "a.log").write_text("\n".join(lines))
    report = convert(tmp_path / "a.log", tmp_path / "out")
    assert dict(report.skipped) == {
        "a time without its year (give --year)": 2,
        "a time in seconds since boot (give --boot)": 1,
        "a time that cannot be": 1,
        "a line without a time in a form that is known": 1,
        "a heading of the log, no record": 1,
        "a property of the kmsg record before, no record": 1,
    }
    assert report.first["a time in seconds since boot (give --boot)"].endswith("a.log: line 3")
    assert validate_recording(tmp_path / "out") == []


def test_the_year_goes_up_at_new_year(tmp_path: Path) -> None:
    text = "Dec 31 23:59:59 a kernel: x\nJan  1 00:00:01 a kernel: y\nJan  1 00:00:00 a kernel: z\n"
    times = [format_instant(event.timestamp) for event in events_of(tmp_path, text, year=2024)]
    assert times == ["2024-12-31T23:59:59Z", "2025-01-01T00:00:00Z", "2025-01-01T00:00:01Z"]


def test_a_line_that_comes_late_is_of_the_old_year_and_changes_no_other(tmp_path: Path) -> None:
    days = ("Dec 31 23:59:58", "Jan  1 00:00:01", "Dec 31 23:59:59", "Jan  1 00:00:02", "Dec 31 12:00:00")
    text = "".join(f"{day} a kernel: {number}\n" for number, day in enumerate(days))
    found = {event.message: format_instant(event.timestamp) for event in events_of(tmp_path, text, year=2023)}
    assert found == {
        "4": "2023-12-31T12:00:00Z", "0": "2023-12-31T23:59:58Z", "2": "2023-12-31T23:59:59Z",
        "1": "2024-01-01T00:00:01Z", "3": "2024-01-01T00:00:02Z",
    }  # fmt: skip


def test_a_time_nearby_gives_each_line_its_year(tmp_path: Path) -> None:
    text = "Jan  1 00:00:01 a kernel: x\nDec 31 23:59:59 a kernel: y\nFeb 29 08:00:00 a kernel: z\n"
    found = events_of(tmp_path, text, near="2024-01-01T03:00:00Z")
    times = [format_instant(event.timestamp) for event in found]
    assert times == ["2023-12-31T23:59:59Z", "2024-01-01T00:00:01Z", "2024-02-29T08:00:00Z"]


def test_the_hour_that_comes_twice_when_summer_time_ends_is_known_by_the_order_of_lines(tmp_path: Path) -> None:
    clocks = ("02:58:00", "02:59:59", "02:59:58", "02:00:01", "02:30:00", "03:00:00")
    text = "".join(f"Oct 25 {clock} a kernel: {number}\n" for number, clock in enumerate(clocks))
    found = events_of(tmp_path, text, year=2026, timezone="Europe/Zurich")
    assert [event.message for event in found] == ["0", "2", "1", "3", "4", "5"]
    times = [format_instant(event.timestamp)[11:19] for event in found]
    assert times == ["00:58:00", "00:59:58", "00:59:59", "01:00:01", "01:30:00", "02:00:00"]


def test_only_interesting_lines(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "2025-01-21T04:41:44Z v7 kernel: usb 1-2: New USB device found\n"
        "2025-01-21T04:41:45Z v7 kernel: mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged\n"
        "2025-01-21T04:41:46Z v7 kernel: LustreError: 11-0: fs-OST0001-osc: operation ost_write failed\n"
        "2025-01-21T04:41:47Z v7 kernel: pcieport 0000:00:1c.5: AER: Corrected error received: 0000:04:00.0\n"
    )
    report = convert(tmp_path / "a.log", tmp_path / "out", only_interesting=True)
    assert (report.made["events"], sum(report.skipped.values())) == (3, 1)


def test_records_of_the_fabric_manager_with_several_lines(tmp_path: Path) -> None:
    text = "[Feb 25 2025 13:59:45] [ERROR] [tid 1803] Received: details\nMessage payload: 1\n\n"
    text += "[Feb 25 2025 13:59:46] [INFO] [tid 1808] group 0 is freed.\n"
    events = events_of(tmp_path, text, node="v001")
    assert [(event.severity, event.source) for event in events] == [
        ("error", "fabricmanager"),
        ("info", "fabricmanager"),
    ]
    assert events[0].message == "[ERROR] [tid 1803] Received: details\nMessage payload: 1"


def test_gzipped_logs_and_broken_ones(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    packed = gzip.compress(f"2025-01-21T04:41:44Z v7 kernel: {XID}\n".encode() * 500)
    (folder / "messages-1.gz").write_bytes(packed)
    (folder / "messages-2.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "messages-3.gz").write_bytes(b"no gzip")
    report = convert(folder, tmp_path / "out")
    assert report.made["events"] >= 500
    assert report.skipped["a file that cannot be read to its end"] == 2
    assert validate_recording(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"year": 1}, "--year 1"),
        ({"boot": "yesterday"}, "--boot"),
        ({"boot": "1812-01-01T00:00:00Z"}, "--boot"),
        ({"timezone": "Mars"}, "--timezone Mars"),
        ({"timezone": "+23:99"}, "--timezone"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    (tmp_path / "a.log").write_text(f"2025-01-21T04:41:44Z v7 kernel: {XID}\n")
    with pytest.raises(UserError, match=words):
        convert(tmp_path / "a.log", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_more_lines_than_can_be_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.recording.importers.kernel_log._MOST_EVENTS", 5)
    monkeypatch.setattr("services.recording.importers.kernel_log._BATCH", 2)
    (tmp_path / "a.log").write_text(f"2025-01-21T04:41:44Z v7 kernel: {XID}\n" * 7)
    with pytest.raises(UserError, match="more than 5"):
        convert(tmp_path / "a.log", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_there_or_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "a.log").write_text("nothing\n")
    with pytest.raises(UserError, match="nothing in the source could be imported"):
        convert(tmp_path / "a.log", tmp_path / "out")


@pytest.mark.parametrize(
    ("message", "priority", "severity"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 119, pid=1, Timeout", 4, "critical"),
        ("NVRM: Xid (PCI:0000:9b:00): 13, pid='<unknown>', Graphics", 4, "error"),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", None, "error"),
        ("NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 95, pid=1, Uncontained", 4, "critical"),
        ("[ERROR] detected NVSwitch fatal error 20034 on fid 0", 3, "critical"),
        ("[ERROR] detected NVSwitch non-fatal error 12028 on fid 0", 3, "error"),
        ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", 6, "critical"),
        ("nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", 3, "critical"),
        ("nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 22013, Non-fatal, Link 30", 4, "error"),
        ("mlx5_core 0000:41:00.0 ens1: Link down", 6, "warning"),
        ("AER: Uncorrected (Fatal) error received", 4, "critical"),
        ("usb 1-2: Product: ASM107x", 6, "info"),
        ("foo: probe failed", None, "error"),
        ("foo: probe failed", 6, "info"),
    ],
)
def test_severities(message: str, priority: int | None, severity: str) -> None:
    assert severity_of(message, priority) == severity


def test_nodes_by_the_files_they_come_in() -> None:
    root = Path("logs")
    assert node_by_path(root / "v017.log", root) == "v017"
    assert node_by_path(root / "v017" / "dmesg.txt", root) == "v017"
    assert node_by_path(root / "rack1" / "v017" / "journal" / "messages-20240101.gz", root) == "v017"
    assert node_by_path(root / "v017" / "sel-elist-20240401T080000Z.txt", root) == "v017"
    assert node_by_path(root / "v017_sdr_1711958400.txt", root) == "v017"
    assert node_by_path(Path("dmesg"), Path()) == "node"


def test_addresses_as_dcgm_writes_them() -> None:
    assert bus_id("0000:9B:00") == "00000000:9b:00.0"
    assert bus_id("0018:01:00.0") == "00000018:01:00.0"


def fixture(*parts: str) -> Path:
    return public("/".join(("fixtures-nvidia", "gpud", *parts)))


NVIDIA = ("components", "accelerator", "nvidia")


@pytest.mark.parametrize(
    ("parts", "options", "count"),
    [
        ((*NVIDIA, "xid", "testdata", "dmesg-with-xid-119.log"), {}, 43),
        ((*NVIDIA, "nccl", "testdata", "dmesg.decode.iso.log"), {}, 2),
        ((*NVIDIA, "fabric-manager", "testdata", "fabricmanager.log"), {}, 54),
        (("components", "memory", "testdata", "dmesg.decode.iso.log"), {}, 24),
        (("pkg", "kmsg", "testdata"), {"boot": "2025-01-01T00:00:00Z"}, 55),
        (("pkg", "pstore", "testdata"), {"boot": "2025-01-01T00:00:00Z"}, 411),
        (("..", "azhpc", "journald.log"), {}, 55),
    ],
)
def test_real_logs(tmp_path: Path, parts: tuple[str, ...], options: dict[str, Any], count: int) -> None:
    report = convert(fixture(*parts), tmp_path / "out", node="n1", **options)
    assert report.made["events"] == count
    assert validate_recording(tmp_path / "out") == []


def test_a_real_xid_119_names_its_gpu(tmp_path: Path) -> None:
    convert(fixture(*NVIDIA, "xid", "testdata", "dmesg-with-xid-119.log"), tmp_path / "out", node="n1")
    recording = Recording.open(tmp_path / "out")
    gpus = recording.topology.nodes[0].gpus
    assert [(gpu.gpu, gpu.pci_bus_id, gpu.uuid) for gpu in gpus] == [
        (4, "00000000:9b:00.0", "GPU-509665ad-b600-ac93-3616-d754b23d636d")
    ]
    assert {event.severity for event in recording.events() if "Xid (PCI:0000:9b:00): 119" in event.message} == {
        "critical"
    }


SAMPLE = f"""-- Logs begin at Sat 2021-05-29 10:50:24 UTC, end at Sat 2021-05-29 17:47:12 UTC. --
May 29 10:50:24 ubu kernel: [   12.345678] {XID}
May 29 10:50:25 ubu audit[4635]: SYSCALL arch=c000003e
2025-01-21T04:41:44,285060+00:00 {XID}
[Sun Feb 23 16:24:18 2025] NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d
[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2, Timeout after 6s of waiting for RPC response from GPU4 GSP!
<6>[    2.608284] mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged
6,3964,206764307,-;nvidia-nvswitch2: open (major=510)
[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received an inband message
Message payload details: 1
Tue 2025-01-21 04:41:44 UTC v007 kernel: EDAC MC0: 1 CE memory read error
{{"__REALTIME_TIMESTAMP":"1737434504285060","_HOSTNAME":"v007","PRIORITY":"4","_TRANSPORT":"kernel","MESSAGE":"x"}}
{{"__REALTIME_TIMESTAMP":"1737434504285060","_HOSTNAME":"v007","PRIORITY":"4","MESSAGE":[72,101,108]}}
""".encode()  # noqa: E501 - lines as they are written


@pytest.mark.parametrize("boot", ["", "2024-04-01T08:00:00Z", "2099-12-31T23:59:59Z"])
@fuzzed(SAMPLE)
def test_mangled_logs(content: bytes, boot: str) -> None:
    survives(lambda source, out: convert(source, out, boot=boot), {"v041/dmesg": content})
