"""Postmortems, scores and imports over HTTP, and the command line's postmortem of a run."""

import gzip
import io
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.api.conftest import SMALL, Client, client_of, over, run_over, settings_at
from services.api.runs.lifecycle import Lifecycle
from services.api.runs.workers import Workers
from services.kit.errors import UserError
from services.kit.unpacking import unpacked
from services.kit.wait import until
from tests.answering import Answer, Request, serving

SACCT = (
    "JobID|JobName|User|State|Submit|Start|End|NodeList|AllocTRES\n"
    "7|llm|ann|COMPLETED|2024-04-01T08:00:00|2024-04-01T08:01:00|2024-04-01T09:00:00|n[001-002]|gres/gpu=16\n"
)
Done = tuple[Client, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def done(folder: Path) -> Iterator[Done]:
    """Give an API with a run over the job hang, with a setting of its own, that is done."""
    with client_of(settings_at(folder)) as client:
        yield client, run_over(client, "sakuraone-job-hang", job_health={"hang_spinning_s": 100})


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Client]:
    with client_of(settings_at(tmp_path, unpacked_bytes=2_000_000, task_workers=2)) as client:
        yield client


def packed(files: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return whole.getvalue()


def test_the_postmortem_of_a_run_is_that_of_the_command_line(done: Done, folder: Path, tmp_path: Path) -> None:
    client, run = done
    incident = client.get(f"/api/v1/runs/{run}/incidents").json()["items"][0]["id"]
    asked = {"run": run, "incident": incident, "price": 2.5, "what_if": False}
    task = over(client, client.post("/api/v1/postmortems", json=asked))
    assert (task["state"], task["result"]["incident"]) == ("done", incident), task
    assert "job_hang" in task["result"]["title"]
    report = client.get(f"/api/v1/postmortems/{task['id']}/report")
    assert report.headers["content-type"] == "text/html; charset=utf-8"
    assert "sandbox" in report.headers["content-security-policy"]
    text = client.get(f"/api/v1/postmortems/{task['id']}/report", params={"form": "md"}).text
    assert "`hang_spinning_s: 100.0`" in text
    settings = client.get(f"/api/v1/postmortems/{task['id']}/report", params={"form": "detectors"}).text
    assert settings == "job_health:\n  hang_spinning_s: 100\n"

    out = tmp_path / "report.md"
    words = ["postmortem", run, "--out", str(out), "--incident", incident, "--price", "2.5", "--no-what-if"]
    env = os.environ | {"HINDCAST_API_DATA_DIR": str(folder / "data")}
    subprocess.run([sys.executable, "-m", "services.cli", *words], cwd=SMALL.parents[1], env=env, check=True)
    assert out.with_name("report.detectors.yaml").read_text() == settings
    assert out.read_text() == text.replace("detectors.yaml", "report.detectors.yaml")


def test_wrong_postmortems_are_refused_before_anything_runs(done: Done) -> None:
    client, run = done
    for asked, status in (
        ({}, 400),
        ({"run": run, "recording": "vela-healthy"}, 400),
        ({"run": "0123456789ab"}, 404),
        ({"run": run, "incident": "0123456789abcdef"}, 404),
        ({"recording": "nothing"}, 404),
        ({"recording": "vela-healthy", "detectors": {"nonsense": {}}}, 400),
    ):
        answer = client.post("/api/v1/postmortems", json=asked)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), asked
    failed = over(client, client.post("/api/v1/postmortems", json={"recording": "vela-healthy", "what_if": False}))
    assert failed["state"] == "failed"
    assert failed["error"].startswith("vela-healthy: no incident was found")
    assert client.get(f"/api/v1/postmortems/{failed['id']}/report").status_code == 409
    assert client.get(f"/api/v1/scores/{failed['id']}").status_code == 404
    assert client.delete(f"/api/v1/tasks/{failed['id']}").status_code == 204
    assert client.get(f"/api/v1/tasks/{failed['id']}").status_code == 404


def test_the_score_of_the_library_counts_what_is_known_of_it(done: Done, folder: Path) -> None:
    client, _ = done
    asked = {"recordings": ["sakuraone-job-hang", "vela-healthy"]}
    task = over(client, client.post("/api/v1/scores", json=asked))
    assert task["state"] == "done", task
    score = client.get(f"/api/v1/scores/{task['id']}").json()
    assert [one["name"] for one in score["recordings"]] == asked["recordings"]
    everything = score["faults"]["all"]
    assert (everything["recall"], everything["false_alarms"]) == (1.0, 0)
    first, last = score["curve"][0], score["curve"][-1]
    assert (first["least_score"], first["recall"], first["precision"]) == (0.0, 1.0, 1.0)
    assert last["recall"] < 1
    assert score["controls"]["random"]["precision"] < 0.5
    (folder / "data" / "tasks" / task["id"] / "score.json").write_text("{}")  # as an earlier version, which wrote less
    assert client.get(f"/api/v1/scores/{task['id']}").status_code == 410


def test_what_others_recorded_is_imported(api: Client) -> None:
    listed = {one["name"]: one for one in api.get("/api/v1/importers").json()}
    assert {"slurm", "redfish", "dcgm-text"} <= set(listed)
    assert "prometheus" not in listed
    zone = next(one for one in listed["slurm"]["options"] if one["name"] == "timezone")
    assert (zone["type"], zone["default"]) == ("str", "UTC")
    wanted = {"name": "zipped", "filename": "sacct.txt", "option": ["cluster=lab", "timezone=Europe/Zurich"]}
    task = over(api, api.post("/api/v1/imports/slurm", params=wanted, content=gzip.compress(SACCT.encode())))
    assert task["state"] == "done", task
    assert task["result"]["recording"] == "zipped"
    recording = api.get("/api/v1/recordings/zipped").json()
    assert (recording["origin"], recording["cluster"]["name"]) == ("imported", "lab")
    assert recording["jobs"][0]["start"] == "2024-04-01T06:01:00.000Z"
    whole = packed({"dumps/one.txt": SACCT.encode(), "dumps/two.txt": SACCT.replace("7|", "8|").encode()})
    task = over(api, api.post("/api/v1/imports/slurm", params={"name": "folder"}, content=whole))
    assert task["state"] == "done", task
    assert len(api.get("/api/v1/recordings/folder").json()["jobs"]) == 2


def test_what_goes_wrong_once_holds_up_nothing(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk that was full, or a store that was locked: before it was begun, and when it had begun."""
    wrong = iter(["claim", "_process"])
    owners: tuple[tuple[Any, str], ...] = ((Lifecycle, "claim"), (Workers, "_process"))
    for owner, name in owners:
        right = getattr(owner, name)

        def broken(self: Lifecycle | Workers, *given: Any, name: str = name, right: Any = right) -> Any:
            table = self.table if isinstance(self, Lifecycle) else self._lifecycle.table
            if table == "tasks" and name == following[0]:
                following[:] = [next(wrong, "")]
                raise sqlite3.OperationalError("database or disk is full")
            return right(self, *given)

        monkeypatch.setattr(owner, name, broken)
    following = [next(wrong)]
    task = over(api, api.post("/api/v1/imports/slurm", params={"name": "late"}, content=SACCT.encode()))
    assert (task["state"], following) == ("done", [""]), task


def test_foreign_uploads_are_no_way_out(api: Client, tmp_path: Path) -> None:
    for wrong, status in (
        ({"name": "vela-healthy"}, 409),
        ({"name": "../up"}, 400),
        ({"name": "x", "option": ["trial=../../etc"]}, 400),
        ({"name": "x", "option": ["nonsense=1"]}, 400),
        ({"name": "x", "option": ["timezone"]}, 400),
    ):
        answer = api.post("/api/v1/imports/slurm", params=wrong, content=b"x")
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), wrong
    for importer in ("prometheus", "nothing"):
        assert api.post(f"/api/v1/imports/{importer}", params={"name": "x"}, content=b"").status_code == 404
    task = over(api, api.post("/api/v1/imports/slurm", params={"name": "no"}, content=packed({"../../escaped": b"x"})))
    assert (task["state"], "a name that is not taken" in task["error"]) == ("failed", True), task
    assert not list(tmp_path.rglob("escaped"))
    assert "no" not in [one["name"] for one in api.get("/api/v1/recordings").json()]


@pytest.mark.parametrize(
    ("body", "filename", "words"),
    [
        (packed({"/escaped": b"x"}), "x", "a name that is not taken"),
        (packed({"a/.hidden": b"x"}), "x", "a name that is not taken"),
        (packed({"a.gz": gzip.compress(b"x")}), "x", "packed itself"),
        (packed({"a": b"x" * 15_000, "b": b"x" * 15_000}), "x", "more than 20,000 bytes"),
        (SACCT.encode(), "../escaped", "a plain file name"),
        (gzip.compress(b"\0" * 30_000), "x", "more than 20,000 bytes"),
        (gzip.compress(SACCT.encode())[:40], "x", "damaged"),
        (packed({}), "x", "is empty"),
    ],
    ids=("root", "hidden", "packed", "two", "name", "bomb", "cut", "empty"),
)
def test_what_is_uploaded_is_looked_at_before_it_is_read(
    tmp_path: Path, body: bytes, filename: str, words: str
) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(body)
    (tmp_path / "scratch").mkdir()
    with pytest.raises(UserError, match=words):
        unpacked(upload, tmp_path / "scratch", filename, 20_000)
    assert not list(tmp_path.rglob("escaped"))


def test_captures_ask_no_server_but_those_that_are_named(api: Client) -> None:
    assert api.get("/api/v1/sources").json() == []
    asked = {"source": "http://127.0.0.1:1", "name": "x", "from": "2024-04-01T08:00:00Z", "to": "2024-04-01T09:00:00Z"}
    answer = api.post("/api/v1/captures", json=asked)
    assert (answer.status_code, "HINDCAST_API_SOURCES" in answer.json()["remedy"]) == (404, True)


def test_a_source_is_shown_its_own_credential_and_nobody_else_is_shown_where_it_lies(tmp_path: Path) -> None:
    token = tmp_path / "token-of-thanos"
    token.write_text("a-planted-secret")
    shown = set()

    def refused(request: Request) -> Answer:
        shown.add((request.headers["Authorization"], request.headers["THANOS-TENANT"]))
        return Answer(403)

    with serving(refused) as url:
        source = {"url": url, "bearer_file": str(token), "tenant": "team-a"}
        with client_of(settings_at(tmp_path, sources={"thanos": source, "open": "http://127.0.0.1:9"})) as client:
            assert [one["name"] for one in client.get("/api/v1/sources").json()] == ["open", "thanos"]
            asked = {"name": "x", "from": "2024-04-01T08:00:00Z", "to": "2024-04-01T09:00:00Z"}
            task = client.post("/api/v1/captures", json={"source": "thanos"} | asked).json()["id"]
            path = f"/api/v1/tasks/{task}"
            until(lambda: client.get(path).json()["state"] == "failed", what="the capture to fail")
            page = client.get(path).text
    assert shown == {("Bearer a-planted-secret", "team-a")}
    assert "403" in page
    assert not any(word in page for word in ("a-planted-secret", str(tmp_path), url))


def test_a_task_is_cancelled_and_its_files_go(api: Client, tmp_path: Path) -> None:
    made = api.post("/api/v1/postmortems", json={"recording": "vela-power-brake"}).json()
    path = f"/api/v1/tasks/{made['id']}"
    assert api.delete(path).status_code == 409
    assert api.post(f"{path}/cancel").json()["state"] == "cancelled"
    assert api.post(f"{path}/cancel").status_code == 409
    assert api.get("/api/v1/tasks", params={"kind": "postmortem"}).json()["total"] == 1
    assert api.get("/api/v1/tasks", params={"kind": "score"}).json()["total"] == 0
    assert api.delete(path).status_code == 204
    assert not (tmp_path / "data" / "tasks" / made["id"]).exists()
