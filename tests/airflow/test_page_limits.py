"""The page with five thousand jobs, and with a cluster and a store that never answer, in a real Airflow."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from page_names import CORPUS, INPUTS, UNREACHABLE, VAST
from page_server import Server, browsing, serving

pytestmark = pytest.mark.airflow
COUNTED = """
import sys
from airflow import settings
from sqlalchemy import event
from airflow_provider.ui.instances import Subject, instances

settings.configure_orm()
said = []
event.listen(settings.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
found = instances(Subject(*sys.argv[1:]))
print(len(found), len([each for each in said if each.lstrip().startswith("SELECT")]))
"""
"""How many task instances there are, and how many questions that was for the database."""
ANSWERED = """
import sys
from airflow.api_fastapi.app import create_app
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.engine import Engine

home, token = sys.argv[1:]
client = TestClient(create_app(), headers={"Authorization": f"Bearer {token}"})
said = []


def ask(path):
    answer = client.get(path)
    answer.raise_for_status()
    return answer.json()


with client:
    event.listen(Engine, "before_cursor_execute", lambda *given: said.append(given[2].lstrip()))
    (row,) = ask(f"{home}/jobs?task_id=embed&map_index=-1")["jobs"]
    board = ask(f"{home}/batches/{row['job_id']}")
print(*said, sep="\\n", file=sys.stderr)
print(row["inputs"], len(board["squares"]), len([each for each in said if each.startswith("SELECT")]))
"""
"""How many inputs and squares a batch has, and how many questions both answers took, Airflow's included."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("limits").resolve(), (VAST, UNREACHABLE, CORPUS)) as found:
        yield found


def asked(server: Server, dag_id: str, query: str) -> tuple[float, dict[str, object]]:
    """Seconds it took, and the answer."""
    began = time.monotonic()
    status, answer = server.jobs(dag_id, "admin", query)
    assert status == 200, answer
    return time.monotonic() - began, answer


@pytest.mark.promise("page: 5,000 jobs")
def test_five_thousand_jobs(server: Server) -> None:
    _, first = asked(server, VAST, "?limit=100")
    assert (first["total"], len(first["jobs"]), len(first["troubles"])) == (5000, 100, 3)
    _, last = asked(server, VAST, "?limit=100&offset=4950")
    assert [each["map_index"] for each in last["jobs"]] == list(range(4950, 5000))
    _, few = asked(server, VAST, "?status=FAILED&text=train&limit=500")
    assert (few["total"] > 500, {each["status"] for each in few["jobs"]}) == (True, {"FAILED"})


@pytest.mark.promise("page: No request per job")
@pytest.mark.promise("page: A bounded number of requests")
def test_two_queries_however_many_jobs(server: Server) -> None:
    for dag_id, number in ((VAST, 5000), (UNREACHABLE, 2)):
        done = subprocess.run(
            [sys.executable, "-c", COUNTED, dag_id, server.runs[dag_id]],
            env=server.airflow.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == f"{number} 2"


@pytest.mark.promise("scale: … ≤ 5 database queries")
@pytest.mark.promise("page: A bounded number of requests")
def test_five_queries_however_many_inputs(server: Server) -> None:
    home = f"/kinetic/api/dags/{CORPUS}/runs/{quote(server.runs[CORPUS])}"
    done = subprocess.run(
        [sys.executable, "-c", ANSWERED, home, server.tokens["admin"]],
        env=server.airflow.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    inputs, squares, queries = map(int, done.stdout.splitlines()[-1].split())
    assert (inputs, squares) == (INPUTS, INPUTS)
    assert queries <= 5, done.stderr


@pytest.mark.promise("page: A clear state when either is unreachable")
@pytest.mark.promise("page: Store or cluster down")
def test_a_silent_cluster_is_told_after_eight_seconds(server: Server) -> None:
    while True:
        seconds, answer = asked(server, UNREACHABLE, "")
        runs, ended = answer["jobs"]
        if "could not be read" not in runs["message"]:
            break  # else the server was still importing the connection's provider, on a busy machine
    assert seconds > 7
    assert (runs["status"], ended["status"] in ("SUCCEEDED", "FAILED")) == ("UNKNOWN", True)
    assert answer["troubles"] == [runs["message"]]
    assert "no answer within 8 s about the jobs of namespace default of backend gke" in runs["message"]


@pytest.mark.promise("page: A clear state when either is unreachable")
@pytest.mark.promise("page: Store or cluster down")
def test_a_store_that_never_answers_is_told_too(server: Server) -> None:
    _, answer = asked(server, UNREACHABLE, "?map_index=1")
    job_id = answer["jobs"][0]["job_id"]
    began = time.monotonic()
    status, job = server.jobs(UNREACHABLE, "admin", f"/{job_id}")
    assert (status, job["troubles"]) == (200, [f"no answer about {job_id} within 8 s"])
    assert time.monotonic() - began > 7
    assert job["status"] == answer["jobs"][0]["status"]


@pytest.mark.promise("page: A clear state when either is unreachable")
@pytest.mark.promise("page: 5,000 jobs")
def test_a_browser_shows_what_is_known_without_them(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with browsing(server, tmp_path_factory.mktemp("chromium")) as tab:
        tab.open(server.page(UNREACHABLE))
        tab.until("document.querySelector('#troubles')?.textContent.includes('no answer within 8 s')")
        assert tab.ask("document.querySelectorAll('#jobs tr').length") == 2
        assert tab.ask("document.querySelectorAll('#jobs .timeline span').length") > 0
        tab.open(server.page(VAST))
        tab.until("document.querySelectorAll('#jobs tr').length === 100")
        assert tab.ask("document.querySelector('#place').textContent") == "1 to 100 of 5000"
        assert tab.troubles() == []
