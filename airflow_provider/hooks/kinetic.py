"""`KineticHook`: jobs of the place and credentials that a connection of type `kinetic` names."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from airflow_provider.access import ENVIRONMENT, Access, ImpersonationChain
from airflow_provider.airflow_sdk import AirflowNotFoundException, BaseHook
from airflow_provider.config import config
from airflow_provider.get_provider_info import FIELDS, GOOGLE, HIDDEN, KUBERNETES, SETTINGS
from kinetic_core.backends.base import backend_name, open_backend
from kinetic_core.backends.kubernetes.connection import blank_configuration, load_this_pods
from kinetic_core.client import Client
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import ConfigurationError, KineticError
from kinetic_core.settings import Account, Settings, read_settings

if TYPE_CHECKING:
    from kinetic_core.job import JobObservation, JobStatus
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.options import RunKeywords


class KineticHook(BaseHook):
    """Hook of a connection of type `kinetic`.

    The connection overrides the environment, and a task's own options override the connection. Credentials
    come from the Google Cloud or Kubernetes connection that it names; without one, from the machine. With
    `conn_id=None` the environment alone says where jobs run, as for a task without `conn_id`. `gcp_conn_id`
    and `impersonation_chain` say whose credentials Google's services get instead.

    An ordinary task may submit, observe and cancel jobs with it:

        hook = KineticHook("tpu_lab")
        job_id = hook.submit(train, [0.1], accelerator="tpu-v6e-8").job_id
        loss = hook.result(job_id)

    A job that is submitted so is nobody's: no task adopts it, and none cancels it. Raises KineticError.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "kinetic_default"
    conn_type = "kinetic"
    hook_name = "Kinetic"

    def __init__(
        self,
        conn_id: str | None = default_conn_name,
        gcp_conn_id: str | None = None,
        impersonation_chain: ImpersonationChain = None,
    ) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.access = Access.of(conn_id, gcp_conn_id, impersonation_chain)

    @property
    def client(self) -> Client:
        """The client of the connection, which the hooks and triggers of this process share.

        Raises ConfigurationError.
        """
        return Client.of(clients.get(self.access))

    def get_conn(self) -> Settings:
        """Return the settings, with the credentials of the connections that this one names.

        Raises ConfigurationError, naming the connection and its field.
        """
        if self.access == ENVIRONMENT:
            return read_settings()
        extra = read_connection(self.conn_id).extra_dejson if self.conn_id else {}
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
        chain = self.access.impersonation_chain
        name = self.access.gcp_conn_id or given.get(GOOGLE) or (_GOOGLE_DEFAULT if chain else "")
        if name:
            accounts["google_account"], project = google_account(name, chain)
        by = f"connection {self.conn_id!r}" if self.conn_id else ""
        settings = read_settings(stated=stated, by=by)
        return replace(settings, project=settings.project or project, **accounts)

    def submit(
        self,
        function: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[RunKeywords],
    ) -> JobHandle:
        """Submit a call of the function with the options of `kinetic_core.run`, and return its handle.

        Waits only for packaging and upload. Raises InvalidRequest or TypeError for options that cannot work.
        """
        return self.client.run(**options)(function).run_async(*args, **(kwargs or {}))

    def status(self, job_id: str) -> JobStatus:
        """Return the status of a job now. Raises JobNotFound."""
        return self.observe(job_id).status

    def observe(self, job_id: str) -> JobObservation:
        """Return what is known of a job now: status, reason, attempt, failure. Raises JobNotFound."""
        return self.client.attach(job_id).observe()

    def logs(self, job_id: str, host: int | None = None) -> str:
        """Return what the job's last attempt has printed; of a slice with `host`, what this host has printed.

        Raises JobNotFound.
        """
        return self.client.attach(job_id).logs(host=host) or ""

    def result(self, job_id: str, timeout: float | None = None) -> object:
        """Wait for a job; return its value, or raise its exception.

        Unpickles nothing: a value that is no plain data is returned as a ResultReference, whose
        `load(trust_store=True)` unpickles it. Raises WaitTimeout after `timeout` seconds, while the job goes
        on; a built-in exception of the function as itself, any other failure as a JobError; JobNotFound.
        """
        from kinetic_core.jobs.collect import collect, result_reference
        from kinetic_core.jobs.observe import wait

        handle = self.client.attach(job_id)
        wait(handle.place, handle, timeout)
        outcome = collect(handle.place, handle, allow_pickle=False)
        if outcome.succeeded and outcome.codec != "typed":
            return result_reference(handle, outcome)
        value: object = outcome.value_or_raise()
        return value

    def cancel(self, job_id: str) -> None:
        """Stop a job; return when none of its pods runs. Stored objects are kept. Raises JobNotFound."""
        self.client.attach(job_id).cancel()

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
    """Clients of one process by the names of what they connect with: triggers of one connection share one.

    A connection is read again after `connection_ttl` seconds. Its client keeps what it holds open for as long
    as the credentials are the same.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Access, tuple[float, Connections]] = {}

    def get(self, access: Access) -> Connections:
        """Return the client of a connection, as whom `access` says; without names, that of the environment.

        Raises ConfigurationError, naming the connection.
        """
        if access == ENVIRONMENT:
            return default_connections()
        at, client = self._known.get(access, (float("-inf"), None))
        if client is None or self._clock() - at > config().connection_ttl:
            settings = KineticHook(**access.to_dict()).get_conn()
            client = Connections(settings) if client is None else client.with_settings(settings)
            self._known[access] = self._clock(), client
        return client


clients = Clients()
"""The clients of this process, of which Airflow lets triggers share nothing but modules."""


_GOOGLE_DEFAULT = "google_cloud_default"
"""Connection of an `impersonation_chain` for which no other is named, as in Google's own operators."""
_KEY = secrets.token_bytes(16)
"""Key of the digests by which credentials are compared: without it, nobody can guess at the credentials."""


def read_connection(conn_id: str) -> Any:
    """Read a connection from Airflow. Raises ConfigurationError if there is none."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as exc:
        raise ConfigurationError(f"there is no connection {conn_id!r}, or it cannot be read now") from exc


def google_account(conn_id: str, impersonation_chain: Sequence[str] = ()) -> tuple[Account, str]:
    """Return a Google Cloud connection's credentials, and its project or "".

    They are those of the last account of the chain; without one, of the connection's own chain.
    """
    try:
        from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
    except ImportError as exc:
        raise _not_installed(conn_id, "Google Cloud", "apache-airflow-providers-google", exc) from exc
    version = _version(read_connection(conn_id))
    chain = list(impersonation_chain) or None
    try:
        hook = GoogleBaseHook(gcp_conn_id=conn_id, impersonation_chain=chain)
        held, project = hook.get_credentials_and_project_id()
    except Exception as exc:
        raise _unusable(conn_id, exc) from exc
    name = f"connection {conn_id}" + (f" as {' > '.join(chain)}" if chain else "")
    return Account(name, version, held), project or ""


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
