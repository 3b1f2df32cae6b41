"""The page's application by itself: what it answers when Airflow's database gives no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.records import BuildWait
from airflow_provider.ui.places import Places
from airflow_provider.ui.rows import Filters, Instance
from kinetic_core.settings import Settings
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.airflow_provider.records_of_jobs import instance

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),  # Airflow's API imports starlette's test client
]


def answer(error: Exception) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of what somebody gets who may see everything."""
    from airflow.api_fastapi.core_api.security import get_user

    from airflow_provider.ui import app as module
    from airflow_provider.ui.queries import Questions

    class Broken(Questions):
        async def jobs(self, *_: Any) -> Any:
            raise error

    app = module.create_app(Broken())
    for each in (module.SEE_TASKS, module.SEE_LOGS):
        app.dependency_overrides[each.dependency] = lambda: None
    app.dependency_overrides[get_user] = lambda: None
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    path = "/api/dags/d/runs/r/jobs"
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in told[0]["headers"]}
    return told[0]["status"], headers, json.loads(b"".join(each.get("body", b"") for each in told[1:]))


@pytest.mark.promise("page: Airflow's own database gives no answer")
def test_a_database_that_gives_no_answer_is_told() -> None:
    from sqlalchemy.exc import OperationalError

    for error in (TimeoutError(), OperationalError("SELECT secret", {}, Exception("hunter2"))):
        status, headers, told = answer(error)
        assert status == 503
        assert told == {"detail": f"Airflow's database gives no answer ({type(error).__name__})"}
        assert headers["x-content-type-options"] == "nosniff"


class Elsewhere:
    """A backend that knows no job of another store."""

    name, namespace, cluster, key = "gke", None, None, "elsewhere"
    store = MemoryObjectStore("memory://ours")


def seen_by_somebody(all_of_airflow: list[Instance], *dag_ids: str) -> Mapping[str, Any]:
    """What runs now, for who may see these DAGs."""
    from airflow_provider.ui.instances import Subject
    from airflow_provider.ui.queries import Questions, Right

    places = Places(lambda _: [Settings()], lambda *_: Elsewhere())  # type: ignore[arg-type]
    questions = Questions(places, lambda: None, lambda _: all_of_airflow)
    return asyncio.run(questions.jobs(Subject(), Filters(), 0, 10, lambda each: Right(see=each in dag_ids)))


@pytest.mark.attack
def test_troubles_are_told_only_of_dags_that_one_may_see() -> None:
    ours = replace(instance(0, store_uri="gs://theirs"), dag_id="ours")
    hidden = replace(instance(1, store_uri="gs://a-secret-project"), dag_id="hidden")
    told = seen_by_somebody([ours, hidden], "ours")
    assert told["troubles"] == ["jobs with objects in gs://theirs are not known here: memory://ours is set"]
    assert len(seen_by_somebody([ours, hidden], "ours", "hidden")["troubles"]) == 2
    assert seen_by_somebody([ours, hidden])["troubles"] == []


@pytest.mark.attack
def test_a_build_counts_only_tasks_that_one_may_see() -> None:
    ours = Instance("train", -1, "", "deferred", 1, None, dag_id="ours", build=BuildWait(1, 5.0, page="a"))
    hidden = replace(ours, dag_id="hidden", build=BuildWait(1, 3.0, page="a"))
    for dag_ids, tasks, since in [(("ours",), 1, 5.0), (("ours", "hidden"), 2, 3.0)]:
        (told, *_) = seen_by_somebody([ours, hidden], *dag_ids)["jobs"]
        assert (told["build"]["tasks"], told["build"]["since"]) == (tasks, since)


def test_every_state_before_a_job_has_its_words() -> None:
    """Also those of an Airflow that is newer than these words."""
    from airflow.utils.state import TaskInstanceState

    from airflow_provider.ui.rows import BEFORE_JOB, TASK_ENDED

    assert {state.value for state in TaskInstanceState} <= {*BEFORE_JOB, *TASK_ENDED}
