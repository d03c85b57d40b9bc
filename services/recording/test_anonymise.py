import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.anonymise import anonymise_recording, read_salt
from services.recording.conftest import START, header
from services.recording.model import Event, Gpu, Job, Label, Link, Mount, Nic, Node, Switch, Topology
from services.recording.pseudonyms import Pseudonyms
from services.recording.reader import Recording
from services.recording.schema import TIMESTAMP, name_column
from services.recording.validate import validate_recording
from services.recording.writer import RecordingWriter

SALT = b"0123456789abcdef0123456789abcdef"

# Every identifier has "zq" in it: so that none is part of a word of ours.
WORD = st.text("abcdefghk", min_size=2, max_size=5)
NUMBER = st.integers(1, 9999)
HOST = st.builds(lambda word, number: f"zq{word}{number:03d}", WORD, NUMBER)
FQDN = st.builds(lambda word, number, site: f"zq{word}{number}.zq{site}.example.org", WORD, NUMBER, WORD)
USER = st.builds(lambda word: f"zq{word}", WORD)
JOB_NAME = st.builds(lambda word, number: f"zq {word}/run={number}", WORD, NUMBER)
MOUNT = st.builds(lambda word, more: f"/zq{word}" + (f"/zq{more}" if more else ""), WORD, st.one_of(st.just(""), WORD))
SERIAL = st.builds(lambda word, number: f"ZQ{word.upper()}{number:05d}", WORD, NUMBER)

TEMPLATES = (
    "{host}: NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "<6>1 {HOST} kernel: mlx5_core 0000:17:00.0: link down ({host}-ib0)",
    "user={user} uid=1007123 wrote {mount}/{user}/{host}/checkpoint-120.pt; /home/{user}/run.sh failed",
    "[{host}] job {job} of {user}@zqcorp.example.com: CANCELLED by 1007123",
    "Serial Number: {serial} at {host}.zqlab.local via https://zqwiki.example.com/{user}",
    '{{"node":"{host}","job":"{job}","mount":"{mount}"}}',
    "{host}:{host},{host}({switch}:Ethernet8)",
    "nothing that names anybody, 08:50:44 and 17956.4 | 1/500",
)


@st.composite
def cluster(draw: st.DrawFn) -> dict[str, Any]:
    hosts = draw(st.lists(st.one_of(HOST, FQDN), min_size=2, max_size=5, unique_by=str.lower))
    taken = {host.lower() for host in hosts} | {host.split(".")[0] for host in hosts}
    switches = draw(st.lists(HOST.filter(lambda name: name not in taken), min_size=1, max_size=2, unique=True))
    users = draw(st.lists(USER, min_size=1, max_size=2, unique=True))
    jobs = draw(st.lists(JOB_NAME, min_size=1, max_size=2, unique=True))
    mount, serial = draw(MOUNT), draw(SERIAL)
    parts = {"host": hosts, "switch": switches, "user": users, "job": jobs, "mount": [mount], "serial": [serial]}
    messages = []
    for template in draw(st.lists(st.sampled_from(TEMPLATES), min_size=1, max_size=8)):
        chosen = {key: draw(st.sampled_from(values)) for key, values in parts.items()}
        messages.append(template.format(**chosen, HOST=chosen["host"].upper()))
    return {**parts, "messages": messages}


def written(folder: Path, parts: dict[str, Any]) -> Recording:
    hosts, switches = parts["host"], parts["switch"]
    nodes = [
        Node.model_validate(
            {
                "name": host,
                "rack": "zqrack7",
                "power_feeds": ["pdu-a-zqrack7"],
                "serial": parts["serial"][0],
                "gpus": [Gpu(gpu=0, uuid=f"GPU-zq-{host}", pci_bus_id="00000000:07:00.0")],
                "nics": [Nic(nic="mlx5_0", switch=switches[0], port="Ethernet8")],
            }
        )
        for host in hosts
    ]
    topology = Topology(
        nodes=nodes,
        switches=[Switch(name=name, role="leaf") for name in switches],
        links=[Link(a=f"{switches[0]}:Ethernet1", b=f"{switches[-1]}:Ethernet2")],
        mounts=[Mount(mount=parts["mount"][0], kind="gpfs")],
    )
    count = len(hosts)
    times = pa.array([START + 1000] * count).cast(TIMESTAMP)
    every = np.arange(count)
    dcgm = {
        "timestamp": times,
        "node": name_column(every, hosts),
        "gpu": pa.array(np.zeros(count, np.uint8)),
        "DCGM_FI_DEV_GPU_TEMP": pa.array(every.astype(np.float32)),
        "remark": pa.array([f"seen by zqops on {host}" for host in hosts]),
    }
    storage = {
        "timestamp": times,
        "node": name_column(every, hosts),
        "mount": name_column(every * 0, parts["mount"]),
        "read_bytes": pa.array(every.astype(np.float64)),
    }
    with RecordingWriter(folder / "small") as writer:
        writer.write("dcgm", pa.RecordBatch.from_pydict(dcgm))
        writer.write("storage", pa.RecordBatch.from_pydict(storage))
        writer.write_events(
            Event(timestamp=START + number, source="kernel", node=hosts[0], severity="info", message=text)
            for number, text in enumerate(parts["messages"])
        )
        writer.write_jobs(
            [
                Job.model_validate(
                    {
                        "job_id": f"80{number}",
                        "name": name,
                        "user": parts["user"][0],
                        "account": parts["user"][-1],
                        "nodes": [hosts[number]],
                        "start": START,
                        "state": "RUNNING",
                        "gpus": {hosts[number]: [0]},
                    }
                )
                for number, name in enumerate(parts["job"])
            ]
        )
        entity: dict[str, str | int] = {"node": hosts[0]}
        note = f"{hosts[0]} of {parts['user'][0]} was slow"
        writer.write_labels(
            [
                Label(
                    id="f1",
                    fault="straggler",
                    entity=entity,
                    also=[{"node": hosts[1]}],
                    onset=START,
                    end=START + 1000,
                    within_s=1,
                    note=note,
                )
            ]
        )
        source = {"document": "zqreport", "notes": [f"{hosts[0]} is skewed"]}
        extra = {
            "clock_skew_s": {hosts[0]: 1.5},
            "cut_of": {"name": "zqwhole", "manifest_sha256": "ab"},
            "source": source,
        }
        writer.finish({**header("small"), "title": f"What happened to {hosts[0]}", **extra}, topology)
    return Recording.open(folder / "small")


def everything(directory: Path) -> str:
    """Return every text in a recording: the bytes of its documents, the words and column names of its streams."""
    texts = [path.read_text() for path in directory.iterdir() if path.suffix != ".parquet"]
    for path in directory.glob("*.parquet"):
        table = pq.read_table(path)
        texts += [str(table.schema), str(table.schema.metadata)]
        for column in table.columns:
            chunks: list[Any] = column.chunks
            if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
                texts += [str(text) for chunk in chunks for text in chunk.to_pylist()]
                texts += [
                    str(text)
                    for chunk in chunks
                    if pa.types.is_dictionary(column.type)
                    for text in chunk.dictionary.to_pylist()
                ]
        metadata = pq.ParquetFile(path).metadata
        for group in range(metadata.num_row_groups):
            texts += [str(metadata.row_group(group).column(index).statistics) for index in range(metadata.num_columns)]
    return "\n".join(texts).lower()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(parts=cluster(), salt=st.sampled_from([None, SALT]))
def test_no_name_survives_anywhere(parts: dict[str, Any], salt: bytes | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recording = written(Path(folder), parts)
        out = Path(folder, "shared")
        assert "zq" in everything(recording.path)
        anonymise_recording(recording, out, salt=salt)
        assert validate_recording(out) == []
        left = everything(out)
        known = [one for key in ("host", "switch", "user", "job", "mount", "serial") for one in parts[key]]
        known += [label for host in parts["host"] for label in host.split(".") if label.startswith("zq")]
        known += [
            "zqrack7",
            "zqcorp",
            "zqlab",
            "zqwiki",
            "zqreport",
            "zqwhole",
            "1007123",
            f"GPU-zq-{parts['host'][0]}",
        ]
        for name in known:
            assert name.lower() not in left, name
        assert "seen by zqops on n" in left, "zqops is listed nowhere and has no form of its own"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(parts=cluster())
def test_the_same_name_gets_the_same_new_name_everywhere(parts: dict[str, Any]) -> None:
    hosts = parts["host"]
    parts["messages"] = [f"{host} is up" for host in hosts]
    with tempfile.TemporaryDirectory() as name:
        recording = written(Path(name), parts)
        anonymise_recording(recording, Path(name, "shared"), salt=SALT)
        shared = Recording.open(Path(name, "shared"))
        new = {old.name: fresh.name for old, fresh in zip(recording.topology.nodes, shared.topology.nodes, strict=True)}
        assert len(set(new.values())) == len(hosts)
        assert [event.message for event in shared.events()] == [f"{new[host]} is up" for host in hosts]
        rows = [row for batch in shared.batches("dcgm") for row in batch.to_pylist()]
        assert {row["node"]: row["DCGM_FI_DEV_GPU_TEMP"] for row in rows} == {
            new[host]: at for at, host in enumerate(hosts)
        }
        for job, fresh in zip(recording.jobs(), shared.jobs(), strict=True):
            assert fresh.nodes == [new[node] for node in job.nodes]
            assert fresh.gpus == {new[node]: cards for node, cards in (job.gpus or {}).items()}
            assert fresh.job_id == job.job_id
        (label,) = shared.labels()
        assert (label.entity, label.also) == ({"node": new[hosts[0]]}, [{"node": new[hosts[1]]}])
        assert (shared.manifest.model_extra or {})["clock_skew_s"] == {new[hosts[0]]: 1.5}
        assert shared.topology.nodes[0].gpus[0].pci_bus_id == "00000000:07:00.0"


def names(*, compact: bool = True, salt: bytes = SALT) -> Pseudonyms:
    made = Pseudonyms(salt, compact=compact)
    made.know("node", ["v041", "v042"])
    made.know("user", ["ann", "gpu", "x", "1234"])
    made.know("mount", ["/scale"])
    made.settle()
    return made


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "[2023-11-29 08:50:44,619] 2024-04-01T08:50:44.123Z 00000000:18:00.0 driver 555.42.06",
        " iteration 1/ 500 | elapsed time per iteration (ms): 16.3/17.3 | TFLOP/s/GPU: 412.3 | lm loss: 2.3E+00 |",
        "c10::Error std::vector N/A 127.0.0.1 /usr/lib/python3/x.py /dev/nvidia0 1234567890123456 0x0000000000000048",
        "1 | 03/20/2021 | 00:58:40 | System Firmware Error #0x11 | No usable system memory | Asserted",
    ],
)
def test_what_names_nobody_stays_as_it_is(text: str) -> None:
    assert names().text(text) == text


def test_forms_keep_their_form() -> None:
    made = names()
    cases = {
        "GPU-12345678-1234-1234-1234-123456789abc": r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "aa:bb:cc:dd:ee:f0": r"([0-9a-f]{2}:){5}[0-9a-f]{2}",
        "0x0c42a1030065b4ce": r"0x[0-9a-f]{16}",
        "0c42:a103:0065:b4ce": r"([0-9a-f]{4}:){3}[0-9a-f]{4}",
        "10.1.2.3": r"10\.\d+\.\d+\.\d+",
        "fe80::1:2": r"fd00(:[0-9a-f]{4}){7}",
        "S/N: AB12345": r"S/N: [A-Z]{2}\d{5}|S/N: [A-Z0-9]{7}",
        "/scale/ann/v041/run.pt": r"/fs001/u\d{3}/n\d{3}/p[0-9a-f]+\.pt",
        "bob@corp.example.com": r"u[0-9a-f]+@host-[0-9a-f]+\.invalid",
    }
    import re

    for old, form in cases.items():
        new = made.text(old)
        assert re.fullmatch(form, new), (old, new)
        assert new != old
        assert made.text(f"x {old} y") == f"x {new} y", "alike wherever it stands"


def test_a_salt_makes_several_recordings_fit_together_and_another_one_does_not() -> None:
    first, second, other = names(compact=False), Pseudonyms(SALT, compact=False), names(compact=False, salt=b"x" * 32)
    second.know("node", ["a1", "v042", "v041"])
    second.settle()
    assert first.text("v041") == second.text("v041") != other.text("v041")
    assert first.text("10.1.2.3") != other.text("10.1.2.3")


def test_common_words_are_replaced_in_fields_and_reported() -> None:
    made = names()
    assert made.text("x gpu 1234") == "x gpu 1234"
    assert all(made.name(name) != name for name in ("x", "gpu", "1234"))
    assert sorted(made.only_in_fields) == ["1234", "gpu", "x"]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(names().text(text), str)


@pytest.mark.parametrize("part", ["a.", "/a", "1:", "serial ", "a@", "-"])
@pytest.mark.timeout(60)
def test_a_long_text_that_is_nearly_a_name_all_along_hides_none_behind_it(part: str) -> None:
    # A search in quadratic time would take minutes for each of these.
    made = names()
    shared = made.text(part * 100_000 + " v041 10.1.2.3")
    assert shared.endswith(f" {made.text('v041')} {made.text('10.1.2.3')}")
    assert "v041" not in shared
    assert "10.1.2.3" not in shared


def test_a_salt_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "salt").write_text("short\n")
    with pytest.raises(UserError, match="can be guessed"):
        read_salt(tmp_path / "salt")
    with pytest.raises(UserError, match="cannot be read"):
        read_salt(tmp_path / "none")
    (tmp_path / "salt").write_bytes(SALT + b"\n")
    assert read_salt(tmp_path / "salt") == SALT


def test_a_job_that_only_keeps_its_nodes_goes_on_doing_so(tmp_path: Path) -> None:
    kept = Job(job_id="7", name="MAINT v041, INC-77", user="root", nodes=["v041"], start=START, state="RUNNING")
    with RecordingWriter(tmp_path / "small") as writer:
        writer.write_jobs([kept, kept.model_copy(update={"job_id": "8", "user": "ines", "gpus_per_node": 0})])
        writer.finish(header("small"), Topology())
    anonymise_recording(Recording.open(tmp_path / "small"), tmp_path / "shared", salt=SALT)
    jobs = list(Recording.open(tmp_path / "shared").jobs())
    assert [(job.name, job.user == "root") for job in jobs] == [("MAINT", True), ("MAINT", False)]
    assert jobs[1].user != "ines"
