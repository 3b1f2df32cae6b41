"""`KineticHook`: settings of jobs from a connection of type `kinetic`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider.hooks.connection_form import FIELDS, GOOGLE, HIDDEN, KUBERNETES, SETTINGS
from airflow_provider.hooks.credentials import google_account, kubernetes_account, read_connection
from kinetic_core.backends.base import backend_name, open_backend
from kinetic_core.errors import ConfigurationError, KineticError
from kinetic_core.settings import Settings, read_settings

_FRESH_SECONDS = 60.0
_TEST_SECONDS = 10.0
_recent: dict[str, tuple[float, Settings]] = {}
"""Time (monotonic) of the last reading of a connection, and its settings: a triggerer needs them often."""


class KineticHook(BaseHook):
    """Hook of a connection of type `kinetic`.

    The connection overrides the environment, and a task's own options override the connection. Credentials
    come from the Google Cloud or Kubernetes connection that it names; without one, from the machine.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "kinetic_default"
    conn_type = "kinetic"
    hook_name = "Kinetic"

    def __init__(self, conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> Settings:
        """Return the settings, with the credentials of the connections that this one names.

        Raises ConfigurationError, naming the connection and its field.
        """
        extra = read_connection(self.conn_id).extra_dejson
        if unknown := sorted(set(extra) - set(FIELDS)):
            raise ConfigurationError(
                f"connection {self.conn_id!r} says {', '.join(map(repr, unknown))}, which is none of its "
                f"fields: {', '.join(FIELDS)}"
            )
        given = {name: str(value) for name, value in extra.items() if value}
        stated = {name: value for name, value in given.items() if name in SETTINGS}
        accounts: dict[str, Any] = {}
        project = ""
        if name := given.get(KUBERNETES):
            accounts["kubernetes_account"], namespace = kubernetes_account(name)
            stated = {"namespace": namespace, **stated}
        if name := given.get(GOOGLE):
            accounts["google_account"], project = google_account(name)
        settings = read_settings(stated=stated, by=f"connection {self.conn_id!r}")
        return replace(settings, project=settings.project or project, **accounts)

    def test_connection(self) -> tuple[bool, str]:
        """Test whether cluster and store can be used, for the form's *Test* button; say what is missing."""
        from kinetic_core.diagnostics.checks import perform
        from kinetic_core.diagnostics.cluster_checks import cluster_checks
        from kinetic_core.diagnostics.machine_checks import local_checks

        try:
            settings = self.get_conn()
            backend = open_backend(backend_name(None, 1, settings), settings)
        except KineticError as error:
            return False, str(error)
        if backend.name == "local":
            checks = list(local_checks(settings, backend))
        else:
            checks = list(cluster_checks(settings, backend, None))
        found = [(each.name, each.finding) for each in perform(checks, _TEST_SECONDS)]
        bad = [f"{name}: {each.found}. {each.fix}" for name, each in found if each.outcome == "fail"]
        good = [f"{name}: {each.found}" for name, each in found if each.outcome in ("ok", "warn")]
        return not bad, "; ".join(bad or good)

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the form's fields for Airflow 3.1; newer versions read the provider's metadata."""
        from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
        from wtforms import StringField

        return {
            name: StringField(label, description=purpose, widget=BS3TextFieldWidget())
            for name, (label, purpose) in FIELDS.items()
        }

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the form's labels and placeholders for Airflow 3.1."""
        return {"hidden_fields": list(HIDDEN), "relabeling": {}}


def recent_settings(conn_id: str) -> Settings:
    """Return a connection's settings, read at most once a minute in one process."""
    known = _recent.get(conn_id)
    if known is None or time.monotonic() - known[0] > _FRESH_SECONDS:
        known = _recent[conn_id] = time.monotonic(), KineticHook(conn_id).get_conn()
    return known[1]
