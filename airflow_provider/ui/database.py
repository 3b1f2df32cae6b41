"""What the search for orphans needs of Airflow's database: states of tasks, places of jobs, a name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress

from airflow.models import Variable
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from airflow_provider.airflow_sdk import conf
from airflow_provider.deployment import (
    MEANING_OF_NAME,
    NAME,
    PLACES,
    UsedPlace,
    of_team,
    read_places,
    with_address,
)
from airflow_provider.ui.orphans import ServerSearch


def server_search() -> ServerSearch:
    """Return the search that reads Airflow's database."""
    return ServerSearch(teams, places_of, ensure_name, states_in_database)


async def states_in_database(dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
    """Read the states of task instances of a DAG run, by their names as in `Origin.key`."""
    ti = TaskInstance.__table__.c
    wanted = select(ti.task_id, ti.map_index, ti.state).where(
        ti.dag_id == dag_id, ti.run_id == run_id, ti.task_id.in_(task_ids)
    )
    with create_session(scoped=False) as session:
        found = list(session.execute(wanted))
    return {
        each.task_id if each.map_index < 0 else f"{each.task_id}_{each.map_index}": each.state
        for each in found
    }


def teams() -> list[str]:
    """Return Airflow's teams, and "" for DAGs without one."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return [""]
    from airflow.models.team import Team  # Airflow 3.1 has none

    return ["", *sorted(Team.get_all_team_names())]


def places_of(team: str) -> list[UsedPlace]:
    """Return the places that tasks of the team have recorded."""
    return read_places(_variable(PLACES, team) or "")


def ensure_name(team: str) -> str:
    """Return this Airflow's name, which jobs of the team have, and create it if there is none.

    Workers make it too (`make_name`), and wait for each other to agree on one. Here the first one stays at
    once, because the database takes no second Variable of a name.
    """
    if (found := _variable(NAME, team)) is None:
        more = {"team_name": team} if team else {}  # Airflow 3.1 knows no teams
        row: Callable[..., Variable] = Variable
        with suppress(IntegrityError), create_session(scoped=False) as session:
            session.add(row(of_team(NAME, team), uuid.uuid4().hex, MEANING_OF_NAME, **more))
        found = _variable(NAME, team)
    return with_address(found)


def _variable(name: str, team: str) -> str | None:
    """Read a Variable as a team's tasks see it; the API server can read those of any team."""
    key = of_team(name, team)
    if team:
        found: str | None = Variable.get(key, default_var=None, team_name=team)
    else:  # Airflow 3.1 knows no teams
        found = Variable.get(key, default_var=None)
    return found
