"""Airflow's simple auth manager, with a DAG that only administrators may see."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class LimitedAuthManager(SimpleAuthManager):
    """Viewers see every DAG but `secret`."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **others: Any) -> bool:
        is_hidden = details is not None and details.id == "secret" and str(user.role).lower() != "admin"
        return not is_hidden and super().is_authorized_dag(user=user, details=details, **others)
