"""Credentials of the connections of Airflow's Google and Kubernetes providers.

Neither provider is needed unless a connection of its type is used.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from kinetic_core.backends.kubernetes.connection import blank_configuration, load_this_pods
from kinetic_core.errors import ConfigurationError
from kinetic_core.settings import Account

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
