"""`KineticHook`: settings of jobs from a connection of type `kinetic`."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider.config import config
from airflow_provider.get_provider_info import FIELDS, GOOGLE, HIDDEN, KUBERNETES, SETTINGS
from kinetic_core.backends.base import backend_name, open_backend
from kinetic_core.backends.kubernetes.connection import blank_configuration, load_this_pods
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import ConfigurationError, KineticError
from kinetic_core.settings import Account, Settings, read_settings


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
            connections = Connections(settings)
            backend = open_backend(backend_name(None, 1, connections), connections)
        except KineticError as error:
            return False, str(error)
        if backend.name == "local":
            checks = list(local_checks(settings, backend))
        else:
            checks = list(cluster_checks(backend, None))
        found = [(each.name, each.finding) for each in perform(checks, config().connection_test_timeout)]
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


class Clients:
    """Clients of one process by the ids of their connections: triggers of one connection share one.

    A connection is read again after `connection_ttl` seconds. Its client keeps what it holds open for as long
    as the credentials are the same.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Connections]] = {}

    def get(self, conn_id: str | None) -> Connections:
        """Return the client of a connection; without one, that of the environment.

        Raises ConfigurationError, naming the connection.
        """
        if not conn_id:
            return default_connections()
        at, client = self._known.get(conn_id, (float("-inf"), None))
        if client is None or self._clock() - at > config().connection_ttl:
            settings = KineticHook(conn_id).get_conn()
            client = Connections(settings) if client is None else client.with_settings(settings)
            self._known[conn_id] = self._clock(), client
        return client


clients = Clients()
"""The clients of this process, of which Airflow lets triggers share nothing but modules."""


_KEY = secrets.token_bytes(16)
"""Key of the digests by which credentials are compared: without it, nobody can guess at the credentials."""


def read_connection(conn_id: str) -> Any:
    """Read a connection from Airflow. Raises ConfigurationError if there is none."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as exc:
        raise ConfigurationError(f"there is no connection {conn_id!r}, or it cannot be read now") from exc


def google_account(conn_id: str) -> tuple[Account, str]:
    """Return a Google Cloud connection's credentials, impersonation included, and its project or ""."""
    try:
        from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
    except ImportError as exc:
        raise _not_installed(conn_id, "Google Cloud", "apache-airflow-providers-google", exc) from exc
    version = _version(read_connection(conn_id))
    try:
        held, project = GoogleBaseHook(gcp_conn_id=conn_id).get_credentials_and_project_id()
    except Exception as exc:
        raise _unusable(conn_id, exc) from exc
    return Account(f"connection {conn_id}", version, held), project or ""


def kubernetes_account(conn_id: str) -> tuple[Account, str]:
    """Return how to connect by a Kubernetes connection, and its namespace or ""."""
    try:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    except ImportError as exc:
        package = "apache-airflow-providers-cncf-kubernetes"
        raise _not_installed(conn_id, "Kubernetes", package, exc) from exc
    version = _version(read_connection(conn_id))
    # The hook's other methods fill in the client's global default, which other threads may use meanwhile.
    held = blank_configuration()
    hook = KubernetesHook(conn_id=conn_id, client_configuration=held)
    try:
        if _says_in_cluster(hook.conn_extras):
            load_this_pods(held)
        else:
            held = hook.get_conn().configuration
        namespace = hook.get_namespace()
    except Exception as exc:
        raise _unusable(conn_id, exc) from exc
    return Account(f"connection {conn_id}", version, held), namespace or ""


def _says_in_cluster(extra: Mapping[str, Any]) -> bool:
    return bool(extra.get("in_cluster") or extra.get("extra__kubernetes__in_cluster"))


def _version(connection: Any) -> str:
    """Return a digest of the connection's content, comparable within this process."""
    content = [connection.conn_type, connection.host, connection.port, connection.schema]
    content += [connection.login, connection.password, connection.extra]
    return hashlib.blake2b(json.dumps(content).encode(), key=_KEY, digest_size=8).hexdigest()


def _not_installed(conn_id: str, kind: str, package: str, exc: ImportError) -> ConfigurationError:
    return ConfigurationError(
        f"{conn_id!r} is used as a {kind} connection, which needs {package}: install it where tasks and "
        f"triggers run, and where the page is served ({exc})"
    )


def _unusable(conn_id: str, exc: Exception) -> ConfigurationError:
    return ConfigurationError(f"the connection {conn_id!r} cannot be used: {type(exc).__name__}: {exc}")
