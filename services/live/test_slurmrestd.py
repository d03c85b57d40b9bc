"""The source against a server of this test's own, with what Slurm 22.05 to 26.05 print; a real one: tests/slurm."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.live.slurm import Slurm
from services.live.slurmrestd import Credentials, Slurmrestd
from tests.answering import Server

PRINTED = Path(__file__).parents[2] / "tests" / "slurm" / "printed"
RESERVED = 1_795_456_916_000
NO_CONTROLLER = '{"errors": [{"error_number": 1800, "error": "Unable to contact slurm controller (connect failure)"}]}'


def offers(*paths: str) -> tuple[int, str]:
    return 200, json.dumps({"openapi": "3.0.3", "paths": {path: {"get": {}} for path in paths}})


def kinds(version: int, end: str = "/") -> list[str]:
    return [f"/slurm/v0.0.{version}/{kind}{end}" for kind in ("jobs", "nodes", "reservations")]


def printed(paths: Sequence[str], *names: str) -> dict[str, tuple[int, str]]:
    return {path: (200, (PRINTED / f"{name}.json").read_text()) for path, name in zip(paths, names, strict=True)}


def source(server: Server, user: str | None = None, token_file: Path | None = None) -> Slurmrestd:
    return Slurmrestd(server.url, Credentials(user, token_file))


@pytest.mark.parametrize(
    ("offered", "chosen", "answers"),
    [
        ([39, 40, 41], 41, ("squeue-24.11", "nodes-24.11", "reservations-24.11")),
        ([43, 44, 45, 46], 45, ("squeue-24.11", "nodes-26.05", "reservations-26.05")),
        ([38], 38, ("squeue-24.11", "sinfo-22.05", "reservations-24.11")),
        ([50, 51], 50, ("squeue-24.11", "nodes-26.05", "reservations-26.05")),
    ],
    ids=["41", "45", "38", "newer-than-known"],
)
def test_the_newest_version_that_is_known_is_read(
    server: Server, offered: list[int], chosen: int, answers: tuple[str, ...]
) -> None:
    end = "" if chosen == 38 else "/"
    paths = [path for version in offered for path in kinds(version, end)]
    server.answers = {"/openapi/v3": offers("/slurmdb/v0.0.41/jobs/", *paths, "/slurm/v0.0.47/jobs/")}
    server.answers |= printed(kinds(chosen, end), *answers)
    slurm = Slurm([source(server).documents], lambda: RESERVED)
    listing = slurm.ask()
    (job,) = listing.jobs
    assert (job.name, job.nodes, job.gpus_per_node, job.end) == ("train", ["v001", "v002"], 8, None)
    assert {node for node, state in listing.nodes.items() if state.closed} == {"v002", "v003"}
    slurm.ask()
    assert [path for path, _ in server.asked].count("/openapi/v3") == 1


def test_the_token_is_read_each_time_and_the_user_is_named(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    server.answers = {"/openapi/v3": offers(*kinds(42))}
    server.answers |= printed(kinds(42), "squeue-24.11", "nodes-24.11", "reservations-24.11")
    rest = source(server, user="proxy", token_file=token)
    rest.documents()
    token.write_text("second\n")
    rest.documents()
    sent = [(one["X-SLURM-USER-TOKEN"], one["X-SLURM-USER-NAME"], one["Authorization"]) for _, one in server.asked]
    assert sent == [("first", "proxy", None)] * 4 + [("second", "proxy", None)] * 3


def test_after_an_upgrade_of_slurm_its_new_version_is_read(server: Server) -> None:
    names = ("squeue-24.11", "nodes-24.11", "reservations-24.11")
    server.answers = {"/openapi/v3": offers(*kinds(40))} | printed(kinds(40), *names)
    rest = source(server)
    rest.documents()
    server.answers = {"/openapi/v3": offers(*kinds(44))} | printed(kinds(44), *names)
    assert [name.removeprefix(server.url) for name, _ in rest.documents()] == kinds(44)


@pytest.mark.parametrize(
    ("path", "answer", "code", "words"),
    [
        ("/openapi/v3", (401, "Authentication failure"), 2, r"let us read /openapi/v3 \(401\): Authentication failure"),
        ("/openapi/v3", (200, "<html>"), 2, "names no /slurm/v0.0.N/"),
        ("/openapi/v3", (200, '{"paths": 3}'), 2, "names no /slurm/v0.0.N/"),
        ("/openapi/v3", offers("/slurm/v0.0.41/jobs/"), 2, "names no /slurm/v0.0.N/"),
        ("/openapi/v3", (404, "not found"), 2, r"has no /openapi/v3 to read \(404\): not found"),
        ("/slurm/v0.0.42/nodes/", (511, NO_CONTROLLER), 2, r"let us read .*nodes/ \(511\): Unable to contact"),
        ("/slurm/v0.0.42/nodes/", (502, NO_CONTROLLER), 3, r"has no answer \(502\): Unable to contact"),
        ("/slurm/v0.0.42/nodes/", (200, '{"errors": []}'), 2, "has no jobs, nodes or reservations"),
        ("/slurm/v0.0.42/jobs/", (200, "[]"), 2, "/jobs/"),
    ],
)
def test_a_server_that_is_of_no_use_is_named(
    server: Server, path: str, answer: tuple[int, str], code: int, words: str
) -> None:
    server.answers = {"/openapi/v3": offers(*kinds(42))}
    server.answers |= printed(kinds(42), "squeue-24.11", "nodes-24.11", "reservations-24.11") | {path: answer}
    with pytest.raises(UserError, match=words) as failed:
        Slurm([source(server).documents], lambda: RESERVED).ask()
    assert failed.value.exit_code == code
    assert failed.value.remedy
