"""Application of the page in Airflow's API server: JSON for users who may see the DAG, and static files.

Airflow mounts an application of a plugin without any authentication: every route with data has a dependency
of Airflow's own that answers 401 or 403.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider.ui.instances import Subject
from airflow_provider.ui.queries import Questions, Right, Rights
from airflow_provider.ui.rows import TASK_ENDED, Filters

STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_RUN = "/api/dags/{dag_id}/runs/{run_id}/jobs"
_BATCH = "/api/dags/{dag_id}/runs/{run_id}/batches/{group_id}"
_TASK = "/api/dags/{dag_id}/tasks/{task_id}/jobs"
SEE_TASKS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
SEE_LOGS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))


def _filters(
    task_id: str = "",
    map_index: int | None = None,
    status: str = "",
    reason: str = "",
    text: str = "",
    order: Annotated[str, Query(pattern="^(-?(cost|waited|ran))?$")] = "",
) -> Filters:
    return Filters(task_id, map_index, status, reason, text, order)


def _place(
    offset: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> tuple[int, int]:
    return offset, limit


def _rights(user: GetUserDep) -> Rights:
    """Return what the user may do in each DAG, by Airflow's own checks."""

    def of_dag(dag_id: str) -> Right:
        team = _team_of(dag_id)
        details = DagDetails(id=dag_id, team_name=team)

        def may(method: ResourceMethod, entity: DagAccessEntity) -> bool:
            return get_auth_manager().is_authorized_dag(
                method=method, access_entity=entity, details=details, user=user
            )

        tasks = DagAccessEntity.TASK_INSTANCE
        logs = DagAccessEntity.TASK_LOGS
        return Right(may("GET", tasks), may("GET", logs), may("PUT", tasks), team or "")

    return of_dag


def _team_of(dag_id: str) -> str | None:
    """Return the team of a DAG; None for none, and for Airflow 3.1, which has no teams."""
    named = getattr(DagModel, "get_team_name", None)
    return None if named is None else named(dag_id)


GivenFilters = Annotated[Filters, Depends(_filters)]
GivenPlace = Annotated[tuple[int, int], Depends(_place)]
GivenRights = Annotated[Rights, Depends(_rights)]


def create_app(questions: Questions | None = None) -> FastAPI:
    """Create the application. `questions` answers its queries; by default with the environment's settings."""
    answers = questions or Questions()
    app = FastAPI(title="Kinetic", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/api/jobs")
    async def running(rights: GivenRights, filters: GivenFilters, at: GivenPlace) -> Mapping[str, Any]:
        """Return the jobs that run or wait now, of all DAGs that the user may see."""
        return await answers.jobs(Subject(), filters, *at, rights)

    @app.get(_RUN, dependencies=[SEE_TASKS])
    async def jobs(
        dag_id: str, run_id: str, rights: GivenRights, filters: GivenFilters, at: GivenPlace
    ) -> Mapping[str, Any]:
        """Return the jobs of a DAG run, by task and map index."""
        return await answers.jobs(Subject(dag_id, run_id), filters, *at, rights)

    @app.get(_TASK, dependencies=[SEE_TASKS])
    async def jobs_of_task(
        dag_id: str, task_id: str, rights: GivenRights, filters: GivenFilters, at: GivenPlace
    ) -> Mapping[str, Any]:
        """Return the jobs of a task in the latest runs of its DAG, the newest first."""
        return await answers.jobs(Subject(dag_id, "", task_id), filters, *at, rights)

    @app.get(_RUN + "/{job_id}", dependencies=[SEE_TASKS, SEE_LOGS])
    async def job(dag_id: str, run_id: str, job_id: str, rights: GivenRights) -> Mapping[str, Any]:
        """Return one job of a DAG run, with the end of its log, and whether the user may cancel it."""
        found = await answers.job(dag_id, run_id, job_id)
        if found is None:
            raise HTTPException(404, f"no task of this run has the job {job_id}")
        return {**found, "may_cancel": await _may_cancel(rights, dag_id, found)}

    _add_batches(app, answers)

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


def _add_batches(app: FastAPI, answers: Questions) -> None:
    """Add the addresses of batches and their inputs."""

    @app.get(_BATCH, dependencies=[SEE_TASKS])
    async def batch(
        dag_id: str, run_id: str, group_id: str, rights: GivenRights, offset: Annotated[int, Query(ge=0)] = 0
    ) -> Mapping[str, Any]:
        """Return a batch of a DAG run: a letter for each input, why inputs failed, and whether the user may
        cancel it.
        """
        found = await answers.batch(dag_id, run_id, group_id, offset, rights)
        if found is None:
            raise HTTPException(404, f"no task of this run has the batch {group_id}")
        return {**found, "may_cancel": await _may_cancel(rights, dag_id, found)}

    @app.get(_BATCH + "/inputs/{index}", dependencies=[SEE_TASKS, SEE_LOGS])
    async def input_of_batch(dag_id: str, run_id: str, group_id: str, index: int) -> Mapping[str, Any]:
        """Return one input of a batch, with the end of its log."""
        found = await answers.input(dag_id, run_id, group_id, index)
        if found is None:
            raise HTTPException(404, f"no task of this run has an input {index} of {group_id}")
        return found


async def _may_cancel(rights: Rights, dag_id: str, found: Mapping[str, Any]) -> bool:
    """Return whether the user may cancel what was found: a job or batch whose task has not ended."""
    may = await asyncio.to_thread(rights, dag_id)
    return may.cancel and found["task_state"] not in TASK_ENDED
