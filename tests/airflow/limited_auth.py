"""Airflow's simple auth manager, with a DAG for administrators only, and somebody who sees no logs."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class LimitedAuthManager(SimpleAuthManager):
    """Viewers see every DAG but `secret`, and their logs, except one who is called `nologs`."""

    def is_authorized_dag(
        self, *, user: Any, access_entity: Any = None, details: Any = None, **others: Any
    ) -> bool:
        if details is not None and details.id == "secret" and str(user.role).lower() != "admin":
            return False
        if access_entity is DagAccessEntity.TASK_LOGS and user.username == "nologs":
            return False
        known = {"user": user, "access_entity": access_entity, "details": details}
        return super().is_authorized_dag(**known, **others)
