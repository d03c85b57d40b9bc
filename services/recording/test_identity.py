from pathlib import Path

import pytest

from services.recording.identity import identify, renamed
from services.recording.importers.dcgm_text import convert
from services.recording.merge import merge_recordings
from services.recording.reader import Recording
from services.recording.validate import validate_recording


def seen(folder: Path, name: str, host: str, uuids: dict[int, str]) -> Recording:
    """Return a recording of GPUs by number, each with its UUID, of which the temperature is the last letter's place."""
    lines = [
        f'DCGM_FI_DEV_{field}{{gpu="{gpu}",UUID="GPU-{uuid}",Hostname="{host}"}} {ord(uuid[-1])}\n'
        for gpu, uuid in uuids.items()
        for field in ("GPU_TEMP", f"POWER_USAGE_{name.upper()}")
    ]
    folder = folder / name
    folder.mkdir()
    (folder / "m-1711958400.prom").write_text("".join(lines))
    convert(folder / "m-1711958400.prom", folder / name)
    return Recording.open(folder / name)


@pytest.mark.parametrize(
    ("names", "machine", "why"),
    [
        (("gpu07", "gpu07.lab.example"), "gpu07", "its full name"),
        (("gpu07", "gpu07-bmc"), "gpu07", "the name of its BMC"),
        (("gpu07", "idrac-gpu07.mgmt"), "gpu07", "the name of its BMC"),
        (("gpu07", "GPU07"), "gpu07", "the same name in other letters"),
    ],
)
def test_names_that_are_built_from_one_are_one_machine(
    tmp_path: Path, names: tuple[str, str], machine: str, why: str
) -> None:
    parts = [seen(tmp_path, f"p{number}", name, {number: f"{number}"}) for number, name in enumerate(names)]
    found = identify(parts, {})
    assert {found.name(name) for name in names} == {machine} or set(found.names) | set(found.names.values()) == set(
        names
    )
    assert why in next(iter(found.why.values()))


def test_what_only_looks_alike_stays_apart(tmp_path: Path) -> None:
    names = ("gpu07.a.example", "gpu07.b.example", "gpu08", "gpu17")
    parts = [seen(tmp_path, f"p{number}", name, {0: f"{number}"}) for number, name in enumerate(names)]
    assert identify(parts, {}).names == {}
    assert identify(parts, {"gpu08": ["gpu17"], "gpu07.a.example": []}).names == {"gpu17": "gpu08"}


def test_gpus_are_the_same_under_other_numbers_and_on_a_node_of_another_name(tmp_path: Path) -> None:
    one = seen(tmp_path, "one", "gpu07", {0: "a", 1: "b"})
    other = seen(tmp_path, "other", "10.0.0.7", {0: "b", 1: "a"})
    identity = identify([one, other], {})
    assert identity.names == {"10.0.0.7": "gpu07"}
    assert "the same GPUs, by their UUIDs" in "\n".join(identity.notes())
    assert "2 GPUs of gpu07 have another number" in "\n".join(identity.notes())
    same = [renamed(part, tmp_path / f"r{number}", identity, number) for number, part in enumerate((one, other))]
    assert same[0] is one
    merge_recordings(same, tmp_path / "merged")
    assert validate_recording(tmp_path / "merged") == []
    merged = Recording.open(tmp_path / "merged")
    rows = [row for batch in merged.batches("dcgm") for row in batch.to_pylist()]
    assert [(r["node"], r["gpu"], r["DCGM_FI_DEV_GPU_TEMP"], r["DCGM_FI_DEV_POWER_USAGE_OTHER"]) for r in rows] == [
        ("gpu07", 0, ord("a"), ord("a")), ("gpu07", 1, ord("b"), ord("b"))
    ]  # fmt: skip
    assert [(gpu.gpu, gpu.uuid) for gpu in merged.topology.nodes[0].gpus] == [(0, "GPU-a"), (1, "GPU-b")]
