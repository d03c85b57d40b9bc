"""What a stream of a replay becomes: samples with their series, staleness markers, and `up`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import TopicPartition

from services.kit.replays import ReplayState
from services.kit.wire import Origin
from services.sink.encode import STALE
from services.sink.pages import Catalogue
from services.sink.units import Outcome, Stream

START = 1_711_958_400_000
INTERVAL = 5000
SHIFT = 7
ORIGIN = Origin("vela", "r", 0, SHIFT, "prometheus")
TOPOLOGY = {"nodes": [{"name": n, "gpus": [{"gpu": 0, "uuid": f"GPU-{n}"}]} for n in ("v001", "v002")]}
STATE = ReplayState(
    cluster="vela", replay="r", generation=0, shift_ms=SHIFT, target="prometheus", recording="x", from_ms=START,
    to_ms=START + 100 * INTERVAL, warm_from_ms=START, speed=0, state="running", streams=("dcgm",),
    intervals_s={"dcgm": 5},
)  # fmt: skip
XID, TEMP = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_TEMP"
BITS = int(np.float64(STALE).view(np.uint64))


class Fed:
    """A stream that takes rows, and all that came of it: (metric, node or instance, code) to [(tick or ms, value)]."""

    def __init__(self, state: ReplayState | None = STATE, origin: Origin = ORIGIN) -> None:
        self.catalogue = Catalogue("v2")
        self.stream = Stream("dcgm", origin, TOPOLOGY, self.catalogue, TopicPartition("telemetry.dcgm", 0))
        self.stream.begin(origin, state, 0)
        self.found: dict[tuple[str, str, str], list[tuple[int, float | str]]] = {}
        self.rows = self.made = 0

    def take(self, rows: list[tuple[int, str, float | None, int | None]], watermark: int | None = None) -> None:
        """Take rows (ms after START, node, temperature, XID), and a watermark at ms after START."""
        times = [START + row[0] for row in rows]
        batch = pa.RecordBatch.from_pydict(
            {
                "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
                "node": pa.array([row[1] for row in rows], pa.string()),
                "gpu": pa.array([0] * len(rows), pa.uint8()),
                TEMP: pa.array([row[2] for row in rows], pa.float64()),
                XID: pa.array([row[3] for row in rows], pa.float64()),
            }
        )
        decoded = self.stream.reader.decoded(batch) if rows else None
        self.keep(self.stream.take(decoded, [] if watermark is None else [(START + watermark, 99)]))

    def end(self, at: int) -> None:
        """End the stream."""
        self.keep(self.stream.end(START + at))

    def keep(self, outcome: Outcome) -> None:
        self.rows += outcome.rows
        self.made += outcome.made
        blocks = outcome.in_order()
        numbers = np.concatenate([block.series for block in blocks]) if blocks else np.zeros(0)
        assert len(np.unique(numbers)) == len(numbers), "a series in two blocks would leave out of order"
        assert sum(block.count for block in blocks) == outcome.rows + outcome.made
        for block in blocks:
            for number, times, values in zip(block.series, block.times, block.values, strict=True):
                labels = self.catalogue.labels(int(number))
                key = labels["__name__"], labels["instance"].partition(":")[0], labels.get("err_code", "")
                series = self.found.setdefault(key, [])
                for at, value in zip(times.tolist(), values, strict=True):
                    shown: Any = "stale" if int(value.view(np.uint64)) == BITS else float(value)
                    series.append((at - START - SHIFT, shown))


def test_samples_land_shifted_in_time_order() -> None:
    fed = Fed()
    fed.take([(5100, "v001", 41.0, 0), (100, "v002", 50.0, 0), (100, "v001", 40.0, 0)])
    assert fed.found[TEMP, "v001", ""] == [(100, 40.0), (5100, 41.0)]
    assert fed.found[TEMP, "v002", ""] == [(100, 50.0)]
    assert fed.found[XID, "v001", "0"] == [(100, 0.0), (5100, 0.0)]
    assert (fed.rows, fed.made) == (6, 0)


def test_a_value_that_is_no_longer_reported_ends_its_series_until_it_is() -> None:
    fed = Fed()
    fed.take([(100, "v001", 40.0, 0), (5100, "v001", None, 0)])
    fed.take([(10100, "v001", None, 0), (15100, "v001", 42.0, 0)])
    assert fed.found[TEMP, "v001", ""] == [(100, 40.0), (5100, "stale"), (15100, 42.0)]
    assert fed.made == 1


def test_a_new_xid_is_a_new_series_and_the_old_one_ends() -> None:
    fed = Fed()
    fed.take([(100, "v001", 40.0, 0)])
    fed.take([(5100, "v001", 40.0, 79), (10100, "v001", 40.0, 79), (15100, "v001", 40.0, 31)])
    fed.take([(20100, "v001", 40.0, 31), (25100, "v001", 40.0, None)])
    assert fed.found[XID, "v001", "0"] == [(100, 0.0), (5100, "stale")]
    assert fed.found[XID, "v001", "79"] == [(5100, 79.0), (10100, 79.0), (15100, "stale")]
    assert fed.found[XID, "v001", "31"] == [(15100, 31.0), (20100, 31.0), (25100, "stale")]


def test_parts_of_a_scrape_end_nothing_but_a_code_that_is_another_now() -> None:
    fed = Fed(state=None, origin=replace(ORIGIN, parts=True))
    fed.take([(100, "v001", 40.0, None), (5100, "v001", 41.0, None)])
    fed.take([(100, "v001", None, 79)])
    fed.take([(5100, "v001", None, 31), (10100, "v001", None, 31), (10100, "v001", 42.0, None)])
    assert fed.found[TEMP, "v001", ""] == [(100, 40.0), (5100, 41.0), (10100, 42.0)]
    assert fed.found[XID, "v001", "79"] == [(100, 79.0), (5100, "stale")]
    assert fed.found[XID, "v001", "31"] == [(5100, 31.0), (10100, 31.0)]
    assert fed.found["up", "v001", ""] == [(100, 1.0), (5100, 1.0), (10100, 1.0)]


def test_up_is_decided_when_the_mark_has_passed() -> None:
    fed = Fed()
    fed.take([(100, "v001", 40.0, 0), (200, "v002", 40.0, 0), (5100, "v001", 40.0, 0)], watermark=4999)
    assert fed.found["up", "v001", ""] == [(100, 1.0)]
    fed.take([], watermark=9999)
    assert fed.found["up", "v002", ""] == [(200, 1.0), (5000, 0.0)]
    assert fed.found[TEMP, "v002", ""] == [(200, 40.0), (5000, "stale")]
    assert fed.found[XID, "v002", "0"] == [(200, 0.0), (5000, "stale")]


def test_the_end_of_a_replay_ends_all_its_series() -> None:
    fed = Fed()
    fed.take([(100, "v001", 40.0, 79), (200, "v002", 40.0, 0)], watermark=4999)
    fed.end(4999)
    ended = {key for key, samples in fed.found.items() if samples[-1] == (5000, "stale")}
    assert ended == set(fed.found)
    assert len(ended) == 6
    assert fed.stream.ended
    assert fed.stream.hold is None


def test_without_an_interval_nobody_is_called_down() -> None:
    fed = Fed(state=None)
    fed.take([(100, "v001", 40.0, 0), (200, "v002", 40.0, 0), (5100, "v001", 40.0, 0)], watermark=9999)
    assert fed.found["up", "v001", ""] == [(100, 1.0), (5100, 1.0)]
    assert fed.found["up", "v002", ""] == [(200, 1.0)]
    assert fed.found[TEMP, "v002", ""] == [(200, 40.0)]


def test_scaled_columns() -> None:
    catalogue = Catalogue("v2")
    stream = Stream("nic", ORIGIN, {}, catalogue, TopicPartition("telemetry.nic", 0))
    stream.begin(ORIGIN, None, 0)
    batch = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([START], pa.timestamp("ms", "UTC")),
            "node": ["v001"],
            "nic": ["mlx5_0"],
            "port_xmit_data": [1000.0],
            "state": [1],
        }
    )
    blocks = stream.take(stream.reader.decoded(batch), []).in_order()
    found = {
        catalogue.labels(int(number))["__name__"]: float(value)
        for block in blocks
        for number, value in zip(block.series, block.values[:, 0], strict=True)
    }
    assert found["node_infiniband_port_data_transmitted_bytes_total"] == 4000.0
    assert found["node_infiniband_state_id"] == 4.0
