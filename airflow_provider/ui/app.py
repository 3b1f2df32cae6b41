"""Application of the page in Airflow's API server: JSON for users who may see the DAG, and static files.

Airflow mounts an application of a plugin without any authentication: every route with data has a dependency
of Airflow's own that answers 401 or 403.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider.ui.instances import Subject
from airflow_provider.ui.queries import Questions
from airflow_provider.ui.rows import Filters

STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_RUN = "/api/dags/{dag_id}/runs/{run_id}/jobs"
_TASK = "/api/dags/{dag_id}/tasks/{task_id}/jobs"
_logs_of_dag = requires_access_dag("GET", DagAccessEntity.TASK_LOGS)
SEE_TASKS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
SEE_LOGS = Depends(_logs_of_dag)


def create_app(questions: Questions | None = None) -> FastAPI:
    """Create the application. `questions` answers its queries; by default with the environment's settings."""
    answers = questions or Questions()
    app = FastAPI(title="Kinetic", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get(_RUN, dependencies=[SEE_TASKS])
    async def jobs(
        dag_id: str,
        run_id: str,
        filters: Annotated[Filters, Depends(_filters)],
        may_read_logs: Annotated[bool, Depends(_may_read_logs)],
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> Mapping[str, Any]:
        """Return the jobs of a DAG run, by task and map index."""
        subject = Subject(dag_id, run_id)
        return await answers.jobs(subject, filters, offset, limit, may_read_logs=may_read_logs)

    @app.get(_TASK, dependencies=[SEE_TASKS])
    async def jobs_of_task(
        dag_id: str,
        task_id: str,
        filters: Annotated[Filters, Depends(_filters)],
        may_read_logs: Annotated[bool, Depends(_may_read_logs)],
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> Mapping[str, Any]:
        """Return the jobs of a task in the latest runs of its DAG, the newest first."""
        subject = Subject(dag_id, "", task_id)
        return await answers.jobs(subject, filters, offset, limit, may_read_logs=may_read_logs)

    @app.get(_RUN + "/{job_id}", dependencies=[SEE_TASKS, SEE_LOGS])
    async def job(dag_id: str, run_id: str, job_id: str) -> Mapping[str, Any]:
        """Return one job of a DAG run, with the end of its log."""
        found = await answers.job(dag_id, run_id, job_id)
        if found is None:
            raise HTTPException(404, f"no task of this run has the job {job_id}")
        return found

    @app.exception_handler(TimeoutError)
    @app.exception_handler(SQLAlchemyError)
    async def without_database(_: Request, error: Exception) -> Response:
        return JSONResponse({"detail": f"Airflow's database gives no answer ({type(error).__name__})"}, 503)

    @app.middleware("http")
    async def with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await answer(request)
        response.headers.update(_HEADERS)
        return response

    app.mount("/page", StaticFiles(directory=STATIC, html=True), name="page")
    return app


def _may_read_logs(request: Request, user: GetUserDep) -> bool:
    """Return whether the user may read the logs of the DAG's tasks, by Airflow's own check."""
    try:
        _logs_of_dag(request, user)
    except HTTPException:
        return False
    return True


def _filters(
    task_id: str = "", map_index: int | None = None, status: str = "", reason: str = "", text: str = ""
) -> Filters:
    return Filters(task_id, map_index, status, reason, text)
