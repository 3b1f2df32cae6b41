"""From the settings to a connection: which API server, which certificate, which token.

The user's kubeconfig is read, never written or switched; no subprocess is run. Clusters of any number can be
used at once: nothing is global but the connections themselves, one for each target and process.
"""

from __future__ import annotations

import base64
import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kinetic_core.accounts import Account
from kinetic_core.cluster.credentials import ask_google, credentials, message_of
from kinetic_core.errors import ConfigurationError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

_CONNECTIONS = 64


@dataclass(frozen=True)
class Target:
    """Which cluster: a kubeconfig and a context in it ("" for its current one), else a cluster of the GKE
    API (at the address `gke_api`), else, without a project, that of a Kubernetes account, else the one this
    pod runs in. `account`: as whom, instead of as this process.
    """

    kubeconfig: str = ""
    context: str = ""
    project: str = ""
    zone: str = ""
    cluster: str = ""
    gke_api: str = "https://container.googleapis.com"
    account: Account | None = None

    def __str__(self) -> str:
        if self.kubeconfig:
            return f"{self.kubeconfig} ({self.context})" if self.context else self.kubeconfig
        if self.project:
            return f"projects/{self.project}/locations/{self.zone}/clusters/{self.cluster}"
        return f"the cluster of {self.account.name}" if self.account else "the cluster of this pod"


@functools.cache
def connection(target: Target) -> ApiClient:
    """The client for a cluster, shared by all threads. Raises ConfigurationError."""
    from kubernetes import client

    configuration, certificate = blank_configuration(), ""
    if target.project and not target.kubeconfig:
        certificate = _from_gke(configuration, target)
    elif target.account is not None:
        configuration = copy.deepcopy(target.account.held)
    else:
        _from_files(configuration, target)
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    api = client.ApiClient(configuration)
    if certificate:  # version 36 of the client takes a file only
        api.rest_client.pool_manager.connection_pool_kw["ca_cert_data"] = certificate
    return api


def gke_cluster(target: Target) -> dict[str, Any]:
    """The cluster as the GKE API describes it (container/v1 projects.locations.clusters.get): its endpoint,
    its certificate, its `nodePools`. Raises ConfigurationError.
    """
    name = f"projects/{target.project}/locations/{target.zone}/clusters/{target.cluster}"
    url = f"{target.gke_api.rstrip('/')}/v1/{quote(name)}"
    status, found = ask_google("GET", url, account=target.account)
    if status != 200:
        raise ConfigurationError(
            f"the GKE API does not give {name}: {message_of(found)}. Look at KINETIC_PROJECT, KINETIC_ZONE "
            "and KINETIC_CLUSTER, and at your permission container.clusters.get"
        )
    cluster: dict[str, Any] = found
    return cluster


def renew(target: Target) -> bool:
    """Get another token after the server has refused one; False where tokens are not ours to get."""
    if target.kubeconfig or not target.project:
        return False
    credentials(target.account).refresh()
    return True


def blank_configuration() -> Configuration:
    """For somebody else to fill in."""
    from kubernetes import client

    return client.Configuration()


def load_this_pods(configuration: Configuration) -> None:
    """Fill in the cluster this pod runs in. Raises ConfigurationError."""
    _from_files(configuration, Target())


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


def _from_gke(configuration: Any, target: Target) -> str:
    """Fill in address and token; the certificate to trust."""
    found = gke_cluster(target)
    configuration.host = f"https://{found['endpoint']}"
    configuration.api_key_prefix["BearerToken"] = "Bearer"

    def set_token(refreshed: Any) -> None:
        refreshed.api_key["BearerToken"] = credentials(target.account).token()

    configuration.refresh_api_key_hook = set_token
    set_token(configuration)
    return base64.b64decode(found["masterAuth"]["clusterCaCertificate"]).decode()
