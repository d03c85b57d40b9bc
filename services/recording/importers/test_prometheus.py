"""The importer against a server of this test's own; against the real ones: tests/integration/test_capture.py."""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from services.kit.errors import UserError
from services.recording.conftest import rows_in
from services.recording.importers.parts.series import query_api, series_reader
from services.recording.importers.parts.series.query_api import PASSWORD_VARIABLE, TOKEN_VARIABLE
from services.recording.importers.prometheus import convert
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.answering import Answer, Request, Served
from tests.mangled import fuzzed

START = 1_711_958_400_000  # 2024-04-01T08:00:00Z
FROM, TO = "2024-04-01T08:00:00Z", "2024-04-01T08:05:00Z"
Sample = tuple[int, float]


def gpu(metric: str, number: int = 0, **labels: str) -> tuple[dict[str, str], list[Sample]]:
    """Five minutes of a GPU's series, a sample every five seconds, and one on either side."""
    named = {"gpu": str(number), "UUID": f"GPU-{number}", "Hostname": "n1", "modelName": "H100"}
    times = range(START - 5000, START + 305_001, 5000)
    return {"__name__": metric, **named, **labels}, [(ms, float(ms % 977)) for ms in times]


class Server(Served):
    """Answers queries for metrics by name from what it holds; `script` answers come first."""

    def __init__(self, held: list[tuple[dict[str, str], list[Sample]]]) -> None:
        self.held = held
        self.script: list[Answer] = []
        self.most = 10**9
        self.mangle: Callable[[bytes], bytes] = lambda body: body
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        super().__init__(self._asked)

    def _asked(self, request: Request) -> Answer:
        target = urlsplit(request.target)
        fields = {name: values[0] for name, values in parse_qs(target.query or request.body.decode()).items()}
        self.requests.append((target.path, fields, dict(request.headers)))
        return self.script.pop(0) if self.script else self.answer(target.path, fields)

    def answer(self, path: str, fields: dict[str, str]) -> Answer:
        if path.startswith("/api/v1/label/"):
            label, first, last = path.split("/")[4], float(fields["start"]) * 1000, float(fields["end"]) * 1000
            named = re.search(r'__name__="([^"]+)"', fields["match[]"])
            there = [
                labels
                for labels, samples in self.held
                if any(first <= at <= last for at, _ in samples) and (not named or labels["__name__"] == named[1])
            ]
            return self._good(sorted({labels[label] for labels in there if label in labels}))
        query = fields["query"]
        if "node_uname_info" in query or "kube_pod_info" in query:
            return self._good({"resultType": "vector", "result": []})
        name = re.search(r'__name__="([^"]+)"', query)
        assert name is not None, query
        end = float(fields.get("end") or fields["time"]) * 1000
        reach = re.search(r"\[(\d+)ms\]$", query)
        begin = end - int(reach[1]) if reach else float(fields["start"]) * 1000
        result = []
        for labels, samples in self.held:
            # As Prometheus 2 does it: the sample at the left end is there too.
            chosen = [[ms / 1000, f"{value:g}"] for ms, value in samples if begin <= ms <= end]
            if labels["__name__"] == name[1] and chosen:
                result.append({"metric": labels, "values": chosen})
        if sum(len(one["values"]) for one in result) > self.most:
            error = {
                "status": "error",
                "errorType": "execution",
                "error": "query processing would load too many samples",
            }
            return Answer(422, json.dumps(error).encode())
        return self._good({"resultType": "matrix", "result": result})

    def _good(self, data: Any) -> Answer:
        body = json.dumps({"status": "success", "data": data}, separators=(",", ":")).encode()
        return Answer(200, self.mangle(body))


@pytest.fixture
def server() -> Iterator[Server]:
    held = [gpu("DCGM_FI_DEV_GPU_TEMP", n) for n in range(2)] + [gpu("DCGM_FI_DEV_POWER_USAGE", n) for n in range(2)]
    made = Server(held)
    yield made
    made.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no time between tries."""
    monkeypatch.setattr(query_api, "_PATIENCE_S", 0.0)


def ms(row: dict[str, Any]) -> int:
    at: float = row["timestamp"].timestamp()
    return round(at * 1000)


@pytest.mark.parametrize("chunk", [7.0, 60.0, 3600.0])
def test_every_sample_between_the_two_instants_is_there_once(server: Server, tmp_path: Path, chunk: float) -> None:
    report = convert(tmp_path / "mine", url=server.url, from_=FROM, to=TO, chunk=chunk)
    found = rows_in(tmp_path / "mine")
    assert len(found) == 2 * 61
    for row in found:
        assert row["DCGM_FI_DEV_GPU_TEMP"] == row["DCGM_FI_DEV_POWER_USAGE"] == ms(row) % 977
    assert (report.read["samples"], report.skipped) == (4 * 61, {})
    manifest = Recording.open(tmp_path / "mine").manifest
    assert (manifest.start, manifest.end, manifest.streams["dcgm"].interval_s) == (START, START + 300_000, 5)


def test_a_server_that_refuses_long_stretches_is_asked_for_short_ones(server: Server, tmp_path: Path) -> None:
    server.most = 10
    convert(tmp_path / "mine", url=server.url, from_=FROM, to=TO)
    assert len(rows_in(tmp_path / "mine")) == 2 * 61
    server.most = 0
    with pytest.raises(UserError, match="not even answer for one second") as raised:
        convert(tmp_path / "none", url=server.url, from_=FROM, to=TO)
    assert raised.value.exit_code == 3


def test_an_answer_that_is_too_large_is_broken_off_and_asked_for_in_parts(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_api, "MOST_BYTES", 1500)
    convert(tmp_path / "mine", url=server.url, from_=FROM, to=TO)
    assert len(rows_in(tmp_path / "mine")) == 2 * 61


def test_stretches_follow_from_how_many_samples_there_are(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_reader, "SAMPLES_AT_ONCE", 20)
    convert(tmp_path / "mine", url=server.url, from_=FROM, to=TO)
    assert len(rows_in(tmp_path / "mine")) == 2 * 61
    reaches = [
        int(found[1]) for _, fields, _ in server.requests if (found := re.search(r"\[(\d+)ms", fields.get("query", "")))
    ]
    assert max(reaches[3:]) <= 60_000
    assert len(reaches) > 10


@pytest.mark.usefixtures("at_once")
def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.script = [Answer(429, b"slow down", {"Retry-After": "1"}), Answer(503), Answer(500, b"oops")]
    convert(tmp_path / "mine", url=server.url, from_=FROM, to=TO)
    assert len(rows_in(tmp_path / "mine")) == 2 * 61
    server.script = [Answer(503, b"down")] * 3
    with pytest.raises(UserError, match=r"503 still after 2 retries: down") as raised:
        convert(tmp_path / "none", url=server.url, from_=FROM, to=TO, retries=2)
    assert raised.value.exit_code == 3
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("script", "message", "code"),
    [
        (Answer(401, b"who are you"), "does not let us in", 2),
        (Answer(403, b"no"), "does not let us in", 2),
        (Answer(404), "no Prometheus query API", 2),
        (Answer(302, b"", {"Location": "https://elsewhere"}), "redirect", 2),
        (Answer(400, b'{"status":"error","error":"parse error"}'), "refuses the query.*parse error", 2),
        (Answer(200, b"<html>hello</html>"), "no query result", 3),
    ],
)
def test_a_refusal_is_reported_with_what_to_do(
    server: Server, tmp_path: Path, script: Answer, message: str, code: int
) -> None:
    server.script = [script]
    with pytest.raises(UserError, match=message) as raised:
        convert(tmp_path / "none", url=server.url, from_=FROM, to=TO)
    assert (raised.value.exit_code, bool(raised.value.remedy)) == (code, True)


@pytest.mark.usefixtures("at_once")
def test_a_server_that_is_not_there_is_exit_code_three(tmp_path: Path) -> None:
    gone = Server([])
    gone.close()
    with pytest.raises(UserError, match="cannot be reached") as raised:
        convert(tmp_path / "none", url=gone.url, from_=FROM, to=TO, retries=1)
    assert raised.value.exit_code == 3


def test_secrets_come_from_files_or_the_environment_and_go_into_headers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t0ken\n")

    def headers(**options: Any) -> dict[str, str]:
        server.requests.clear()
        convert(tmp_path / f"out-{len(list(tmp_path.iterdir()))}", url=server.url, from_=FROM, to=TO, **options)
        (one,) = {json.dumps(sent) for _, _, sent in server.requests if not sent.get("Content-Length")} or {"{}"}
        return {name.lower(): value for name, value in json.loads(one).items()}

    sent = headers(bearer_file=tmp_path / "token", tenant="team-a")
    assert sent["authorization"] == "Bearer t0ken"
    assert (sent["thanos-tenant"], sent["x-scope-orgid"]) == ("team-a", "team-a")
    monkeypatch.setenv(TOKEN_VARIABLE, "other")
    assert headers()["authorization"] == "Bearer other"
    monkeypatch.setenv(PASSWORD_VARIABLE, "pass:word")
    basic = headers(user="me")["authorization"]
    assert base64.b64decode(basic.removeprefix("Basic ")) == b"me:pass:word"
    with pytest.raises(UserError, match="list of processes"):
        convert(tmp_path / "none", url=server.url.replace("//", "//me:secret@"), from_=FROM, to=TO)
    for options in ({"bearer_file": tmp_path / "no"}, {"ca_file": tmp_path / "no"}, {"ca_file": tmp_path / "token"}):
        with pytest.raises(UserError) as raised:
            convert(tmp_path / "none", url=server.url, from_=FROM, to=TO, **options)  # type: ignore[arg-type]
        assert raised.value.exit_code == 2


def test_filters_are_part_of_every_query(server: Server, tmp_path: Path) -> None:
    convert(
        tmp_path / "mine",
        url=server.url,
        from_=FROM,
        to=TO,
        cluster="v",
        replay='a"b',
        match=["{rack=~'r1|r2',}", "up"],
    )
    asked = [
        f.get("match[]") or f["query"] for _, f, _ in server.requests if "last_over_time" not in f.get("query", "")
    ]
    assert all('cluster="v",replay="a\\"b"' in one for one in asked)
    assert any("rack=~'r1|r2',cluster=" in one for one in asked)
    with pytest.raises(UserError, match="is no selector"):
        convert(tmp_path / "none", url=server.url, from_=FROM, to=TO, match=["a b c"])


@pytest.mark.parametrize("label", ["cluster", "replay"])
def test_two_clusters_are_not_mixed(tmp_path: Path, label: str) -> None:
    server = Server([gpu("DCGM_FI_DEV_GPU_TEMP", 0, **{label: name}) for name in ("a", "b")])
    try:
        with pytest.raises(UserError, match=f"2 {label}s there: a, b"):
            convert(tmp_path / "none", url=server.url, from_=FROM, to=TO)
    finally:
        server.close()


def test_what_has_no_place_is_counted(tmp_path: Path) -> None:
    held = [
        gpu("DCGM_FI_DEV_GPU_TEMP"),
        gpu("DCGM_FI_DEV_GPU_TEMP", hpc_job="812"),
        gpu("DCGM_FI_PROF_SM_ACTIVE", GPU_I_ID="1"),
        gpu("DCGM_EXP_P2P_STATUS"),
    ]
    server = Server(held)
    try:
        report = convert(tmp_path / "mine", url=server.url, from_=FROM, to=TO)
    finally:
        server.close()
    assert len(rows_in(tmp_path / "mine")) == 61
    counts = {reason.split(" ")[0] + reason[-12:]: count for reason, count in report.skipped.items()}
    assert sorted(report.skipped.values()) == [1, 61], counts
    (job,) = Recording.open(tmp_path / "mine").jobs()
    assert (job.job_id, job.nodes, job.gpus, job.state) == ("812", ["n1"], None, "RUNNING")


def test_times_can_be_moved_and_links_come_from_the_fields(tmp_path: Path) -> None:
    constant = [(ms, 4.0) for ms in range(START, START + 300_001, 5000)]
    server = Server([gpu("DCGM_FI_DEV_GPU_TEMP"), (gpu("DCGM_FI_DEV_PCIE_MAX_LINK_GEN")[0], constant)])
    try:
        convert(tmp_path / "shifted", url=server.url, from_=FROM, to=TO, shift=3600)
        convert(tmp_path / "rebased", url=server.url, from_=FROM, to=TO, rebase="2024-04-01T07:00:00Z")
    finally:
        server.close()
    for name in ("shifted", "rebased"):
        recording = Recording.open(tmp_path / name)
        assert next(ms(row) for row in rows_in(tmp_path / name)) == START - 3_600_000
        assert recording.topology.nodes[0].gpus[0].pcie_gen == 4


@pytest.mark.parametrize(
    "options",
    [
        {"from_": "yesterday"}, {"from_": TO}, {"to": "2024-04-01"}, {"chunk": 0.0}, {"chunk": math.nan},
        {"step": 0.0}, {"step": math.inf}, {"retries": -1}, {"shift": math.nan}, {"url": "ftp://x"},
        {"url": "prometheus:9090"}, {"rebase": "x"}, {"rebase": FROM, "shift": 1.0},
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UserError) as raised:
        convert(tmp_path / "none", **{"url": "http://127.0.0.1:9", "from_": FROM, "to": TO} | options)
    assert (raised.value.exit_code, bool(raised.value.remedy)) == (2, True)


def test_an_empty_stretch_is_answered_with_what_the_server_holds(tmp_path: Path) -> None:
    server = Server([gpu("DCGM_FI_DEV_GPU_TEMP"), gpu("DCGM_FI_DEV_POWER_USAGE"), gpu("up")])
    try:
        with pytest.raises(UserError) as raised:
            convert(tmp_path / "none", url=server.url, from_="2024-03-01T08:00:00Z", to="2024-03-01T09:00:00Z")
        held = "holds such from 2024-04-01T07:59:55Z to 2024-04-01T08:05:05Z"
        assert held in raised.value.message
        assert "(dcgm: DCGM_FI_DEV_GPU_TEMP, DCGM_FI_DEV_POWER_USAGE)" in raised.value.message
        assert "--from and --to" in (raised.value.remedy or "")
        with pytest.raises(UserError, match=held) as raised:
            convert(tmp_path / "none", url=server.url, from_=FROM, to=TO, match=["up"])
        assert raised.value.remedy == "correct --match"
    finally:
        server.close()


def test_a_server_without_series_that_we_know_is_described_by_what_it_has(tmp_path: Path) -> None:
    for held, words in (([gpu("up"), gpu("go_threads")], "it holds go_threads, up"), ([], "it holds no series at all")):
        server = Server(held)
        try:
            with pytest.raises(UserError, match=words) as raised:
                convert(tmp_path / "none", url=server.url, from_=FROM, to=TO)
            assert "dcgm-exporter" in (raised.value.remedy or "")
        finally:
            server.close()


@fuzzed(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
    {"metric": labels, "values": [[at / 1000, f"{value:g}"] for at, value in samples[:20]]}
    for labels, samples in (gpu("DCGM_FI_DEV_GPU_TEMP"), gpu("DCGM_FI_DEV_XID_ERRORS", 1, err_code="79"))
]}}, separators=(",", ":")).encode())  # fmt: skip
def test_mangled_answers_give_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    server = Server([gpu("DCGM_FI_DEV_GPU_TEMP")])
    plain = server.answer

    def answer(path: str, fields: dict[str, str]) -> Answer:
        return Answer(200, content) if "__name__=" in fields.get("query", "") else plain(path, fields)

    server.answer = answer  # type: ignore[method-assign]
    try:
        with TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            try:
                convert(out, url=server.url, from_=FROM, to=TO, retries=0)
            except UserError:
                assert not out.exists()
            else:
                assert validate_recording(out) == []
    finally:
        server.close()
