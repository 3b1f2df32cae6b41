"""From the settings to a connection: which API server, which certificate, which token.

The user's kubeconfig is read, never written or switched; no subprocess is run. Clusters of any number can be
used at once: nothing is global but the connections themselves, one for each target and process.
"""

from __future__ import annotations

import base64
import functools
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kinetic_core.errors import ConfigurationError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECONDS = 20.0
_CONNECTIONS = 64


@dataclass(frozen=True)
class Target:
    """Which cluster: a kubeconfig and a context in it ("" for its current one), else a cluster of the GKE
    API, else, without a project, the one this pod runs in.
    """

    kubeconfig: str = ""
    context: str = ""
    project: str = ""
    zone: str = ""
    cluster: str = ""

    def __str__(self) -> str:
        if self.kubeconfig:
            return f"{self.kubeconfig} ({self.context})" if self.context else self.kubeconfig
        if self.project:
            return f"projects/{self.project}/locations/{self.zone}/clusters/{self.cluster}"
        return "the cluster of this pod"


@functools.cache
def connection(target: Target) -> ApiClient:
    """The client for a cluster, shared by all threads. Raises ConfigurationError."""
    from kubernetes import client

    configuration = client.Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    if target.project and not target.kubeconfig:
        _from_gke(configuration, target)
    else:
        _from_files(configuration, target)
    return client.ApiClient(configuration)


def renew(target: Target) -> bool:
    """Get another token after the server has refused one; False where tokens are not ours to get."""
    if target.kubeconfig or not target.project:
        return False
    _credentials().refresh()
    return True


def _from_files(configuration: Configuration, target: Target) -> None:
    from kubernetes import config
    from kubernetes.config.config_exception import ConfigException

    try:
        if target.kubeconfig:
            config.load_kube_config(
                target.kubeconfig, target.context or None, configuration, persist_config=False
            )
        else:
            config.load_incluster_config(configuration)
    except (ConfigException, OSError) as exc:
        raise ConfigurationError(
            f"cannot connect with {target}: {exc}. Set KINETIC_KUBECONFIG (and KINETIC_KUBE_CONTEXT) to a "
            "kubeconfig that can, or KINETIC_PROJECT, KINETIC_ZONE and KINETIC_CLUSTER to a GKE cluster"
        ) from exc


def _from_gke(configuration: Any, target: Target) -> None:
    """Address and certificate from the GKE API (container/v1 projects.locations.clusters.get)."""
    answer = _credentials().get(f"{_endpoint()}/v1/{quote(str(target))}")
    if answer.status_code != 200:
        raise ConfigurationError(
            f"the GKE API does not give {target}: {_message(answer)}. Look at KINETIC_PROJECT, KINETIC_ZONE "
            "and KINETIC_CLUSTER, and at your permission container.clusters.get"
        )
    found = answer.json()
    configuration.host = f"https://{found['endpoint']}"
    configuration.ca_cert_data = base64.b64decode(found["masterAuth"]["clusterCaCertificate"]).decode()
    configuration.api_key_prefix["BearerToken"] = "Bearer"
    configuration.refresh_api_key_hook = _set_token
    _set_token(configuration)


def _set_token(configuration: Configuration) -> None:
    configuration.api_key["BearerToken"] = _credentials().token()


def _endpoint() -> str:
    """The variable is gcloud's own: `gcloud topic configurations`, api_endpoint_overrides/container."""
    override = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER")
    return (override or "https://container.googleapis.com").rstrip("/")


def _message(answer: Any) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"


class _Credentials:
    """Google's application default credentials; refreshed before they expire, by one thread at a time."""

    def __init__(self) -> None:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        try:
            self._credentials, _ = google.auth.default([_SCOPE])
        except DefaultCredentialsError as exc:
            raise ConfigurationError(
                "no Google credentials here. Run `gcloud auth application-default login`, or set "
                "GOOGLE_APPLICATION_CREDENTIALS"
            ) from exc
        self._lock = threading.Lock()

    def token(self) -> str:
        """A token that is valid for some minutes."""
        with self._lock:
            if not self._credentials.valid:
                self._refresh()
            return str(self._credentials.token)

    def refresh(self) -> None:
        """Another token, whether or not the one here looks valid."""
        with self._lock:
            self._refresh()

    def get(self, url: str) -> Any:
        """The answer of a Google API."""
        try:
            return self.send("GET", url)
        except OSError as exc:
            raise ConfigurationError(f"{url} cannot be asked: {exc}") from exc

    def send(self, method: str, url: str, body: Any = None) -> Any:
        """The answer of a Google API, of any status; OSError where there is none."""
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession

        try:
            with AuthorizedSession(self._credentials) as session:
                return session.request(method, url, json=body, timeout=_SECONDS)
        except GoogleAuthError as exc:
            raise ConfigurationError(f"{url} cannot be asked: {exc}") from exc

    def _refresh(self) -> None:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        try:
            self._credentials.refresh(Request())
        except GoogleAuthError as exc:
            raise ConfigurationError(
                f"Google gives no token: {exc}. Run `gcloud auth application-default login` again"
            ) from exc


def ask_google(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of a Google API's answer, asked with this process's credentials.

    Raises ConfigurationError for credentials that are missing or refused, OSError where there is no answer.
    """
    answer = _credentials().send(method, url, body)
    try:
        return answer.status_code, answer.json()
    except ValueError:
        return answer.status_code, {"error": {"message": f"HTTP {answer.status_code}"}}


@functools.cache
def _credentials() -> _Credentials:
    return _Credentials()
