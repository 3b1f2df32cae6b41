"""The page's application by itself: what it answers when Airflow's database gives no answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

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


def test_every_state_before_a_job_has_its_words() -> None:
    """Also those of an Airflow that is newer than these words."""
    from airflow.utils.state import TaskInstanceState

    from airflow_provider.ui.rows import BEFORE_JOB, TASK_ENDED

    assert {state.value for state in TaskInstanceState} <= {*BEFORE_JOB, *TASK_ENDED}
