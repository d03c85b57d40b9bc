"""What the exporters show, read back by the importers' own table of names and labels, is the recording's last row."""

import threading
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from services.exporters.app import Fleet, Playhead, build
from services.exporters.latest_rows import EXPORTERS
from services.exporters.settings import ExportersSettings
from services.kit.errors import UserError
from services.kit.serving import Server
from services.recording.conftest import INTERVAL_MS, TICKS, batch, documents, header, topology
from services.recording.importers.parts.series.census import Census, Place
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.writer import RecordingWriter

LAST_OF_SWITCHES = 12
"""Ticks."""
Cells = dict[tuple[str, tuple[object, ...], str], float]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Five minutes of every stream; after a minute nothing more of the switches."""
    out = tmp_path_factory.mktemp("exporters") / "small"
    with RecordingWriter(out) as writer:
        for stream in STREAMS:
            writer.write(stream, batch(stream, last=LAST_OF_SWITCHES if stream == "switch" else TICKS), interval_s=5)
        documents(writer)
        writer.finish(header("small"), topology())
    return Recording.open(out)


class Cluster:
    """The exporters, with a clock (seconds) that is set by hand."""

    def __init__(self, recording: Recording, speed: float = 1.0) -> None:
        self.now_s = 0.0
        manifest = recording.manifest
        playhead = Playhead(manifest.start, manifest.end, speed, lambda: self.now_s, 0.0)
        self.fleet = Fleet(recording, playhead)

    def scraped(self) -> tuple[Cells, set[str], dict[str, str | None]]:
        """Return cells by stream, entity and column; instances that are down; jobs by GPU."""
        census, cells, down, jobs = Census(), Cells(), set(), {}
        for target in self.fleet.targets("localhost:9400"):
            labels = target["labels"]
            _, exporter, name, _ = labels["__metrics_path__"].split("/")
            text = self.fleet.text(exporter, name)
            if text is None:
                down.add(labels["instance"])
                continue
            for family in text_string_to_metric_families(text.decode()):
                for sample in family.samples:
                    own = {**sample.labels, "instance": labels["instance"], "job": labels["job"]}
                    place = census.place(sample.name, own)
                    if sample.name == "node_uname_info":
                        continue
                    assert isinstance(place, Place), (sample, place)
                    reading = place.reading
                    cells[reading.stream, place.key, reading.column] = (sample.value - reading.offset) / reading.scale
                    if reading.stream == "dcgm":
                        jobs[f"{place.key[0]}/{place.key[1]}"] = place.job
        return cells, down, jobs


def expected(tick: int) -> Cells:
    cells: Cells = {}
    for stream in EXPORTERS:
        for row in batch(stream, tick, tick + 1).to_pylist():
            key = tuple(row[name] for name in STREAMS[stream].key_names) + (("W",) if stream == "bmc" else ())
            for name, value in row.items():
                if name not in {"timestamp", "unit", *STREAMS[stream].key_names} and value is not None:
                    cells[stream, key, name] = value
    return cells


@given(st.lists(st.floats(0, (TICKS - 1) * INTERVAL_MS / 1000), min_size=1, max_size=5), st.sampled_from([1.0, 2.5]))
def test_a_scrape_shows_the_last_row_and_targets_without_a_fresh_one_are_down(
    recording: Recording, moments: list[float], speed: float
) -> None:
    cluster = Cluster(recording, speed)
    for moment in sorted(moments):
        cluster.now_s = moment / speed
        check(cluster, cluster.fleet.playhead.at() - recording.manifest.start)


def check(cluster: Cluster, at: int) -> None:
    cells, down, _ = cluster.scraped()
    tick, last = at // INTERVAL_MS, LAST_OF_SWITCHES - 1
    gone = at >= (last + 1.5) * INTERVAL_MS
    wanted = {cell: value for cell, value in expected(tick).items() if cell[0] != "switch"}
    if not gone:
        wanted |= {cell: value for cell, value in expected(min(tick, last)).items() if cell[0] == "switch"}
    assert cells == pytest.approx(wanted)
    assert {one for one in down if one.endswith(":9101")} == ({"spine-1:9101", "tor-1:9101"} if gone else set())


def test_a_gpus_job_is_named_while_it_has_it(recording: Recording) -> None:
    cluster = Cluster(recording)
    assert set(cluster.scraped()[2].values()) == {None}
    cluster.now_s = 2.0
    assert set(cluster.scraped()[2].values()) == {"812"}


def test_when_the_recording_is_over_nothing_answers(recording: Recording) -> None:
    cluster = Cluster(recording)
    cluster.now_s = TICKS * INTERVAL_MS / 1000 + 1
    cells, down, _ = cluster.scraped()
    assert not cells
    assert len(down) == len(cluster.fleet.targets(""))


def test_a_recording_without_an_exporters_stream_is_refused(recording: Recording, tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "steps") as writer:
        writer.write("steps", batch("steps"))
        writer.finish(header("steps"), topology())
    with pytest.raises(UserError, match="no exporter gives steps"):
        Cluster(Recording.open(tmp_path / "steps"))


def test_prometheus_finds_and_scrapes_them_by_http(recording: Recording) -> None:
    settings, stop = ExportersSettings(port=0), threading.Event()
    server = Server(build(Cluster(recording).fleet, settings), settings, stop, grace_s=1)
    with settings.listen() as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with httpx.Client(base_url=settings.address(listening)) as client:
                (target, *_) = client.get("/sd").json()
                assert target["targets"] == [settings.address(listening).removeprefix("http://")]
                answer = client.get(target["labels"]["__metrics_path__"])
                assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE_LATEST)
                assert "DCGM_FI_DEV_GPU_TEMP{" in answer.text
                assert client.get("/other/n1/metrics").status_code == 404
                assert client.get("/dcgm/none/metrics").status_code == 503
        finally:
            stop.set()
            thread.join()
