"""Connection to an API server, from the settings: its address, certificate and token.

The user's kubeconfig is read, never written or switched; no subprocess is run. Any number of clusters can be
used at once: a client has one connection for each target.
"""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError
from kinetic_core.google_cloud import ask_google, credentials, message_of
from kinetic_core.imports import importing
from kinetic_core.settings import Account, Settings

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

_CONNECTIONS = 64
_GKE_PLUGIN = "gke-gcloud-auth-plugin"


@dataclass(frozen=True)
class Target:
    """Cluster to connect to: a context of a kubeconfig ("" for its current one), else a cluster of the GKE
    API (at the address `gke_api`), else, without a project, that of a Kubernetes account, else the one this
    pod runs in. `account`: credentials in place of this process's.
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


def connection(target: Target, connections: Connections) -> ApiClient:
    """Return the connection to a cluster, shared by all threads. Raises ConfigurationError."""
    return connections.get((connection, target), lambda: _connected(target, connections))


def _connected(target: Target, connections: Connections) -> ApiClient:
    with importing:
        from kubernetes import client

    configuration, certificate = blank_configuration(), ""
    if target.project and not target.kubeconfig:
        certificate = _from_gke(configuration, target, connections)
    elif target.account is not None:
        configuration = copy.deepcopy(target.account.held)
    else:
        _from_files(configuration, target, connections)
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    api = client.ApiClient(configuration)
    if certificate:  # version 36 of the client takes a file only
        api.rest_client.pool_manager.connection_pool_kw["ca_cert_data"] = certificate
    return api


def gke_cluster(target: Target, connections: Connections) -> dict[str, Any]:
    """Return the cluster as the GKE API describes it (container/v1 projects.locations.clusters.get): its
    endpoint, certificate and `nodePools`. Raises ConfigurationError.
    """
    name = f"projects/{target.project}/locations/{target.zone}/clusters/{target.cluster}"
    url = f"{target.gke_api.rstrip('/')}/v1/{quote(name)}"
    status, found = ask_google(connections, "GET", url, account=target.account)
    if status != 200:
        raise ConfigurationError(
            f"the GKE API does not give {name}: {message_of(found)}. Look at KINETIC_PROJECT, KINETIC_ZONE "
            "and KINETIC_CLUSTER, and at your permission container.clusters.get"
        )
    cluster: dict[str, Any] = found
    return cluster


def renew(target: Target, connections: Connections) -> bool:
    """Get another token after the server has refused one; return False if tokens come from elsewhere."""
    token = connection(target, connections).configuration.refresh_api_key_hook
    if not isinstance(token, _GoogleToken):
        return False
    token.renew()
    return True


def blank_configuration() -> Configuration:
    """Return an empty configuration, for the caller to fill in."""
    with importing:
        from kubernetes import client

    return client.Configuration()


def load_this_pods(configuration: Configuration) -> None:
    """Fill in the cluster this pod runs in. Raises ConfigurationError."""
    _from_files(configuration, Target(), Connections(Settings()))


def _from_files(configuration: Configuration, target: Target, connections: Connections) -> None:
    with importing:
        from kubernetes import config
        from kubernetes.config.config_exception import ConfigException

    try:
        if target.kubeconfig:
            _from_kubeconfig(configuration, target, connections)
        else:
            config.load_incluster_config(configuration)
    except (ConfigException, OSError) as exc:
        raise ConfigurationError(
            f"cannot connect with {target}: {exc}. Set KINETIC_KUBECONFIG (and KINETIC_KUBE_CONTEXT) to a "
            "kubeconfig that can, or KINETIC_PROJECT, KINETIC_ZONE and KINETIC_CLUSTER to a GKE cluster"
        ) from exc


def _from_kubeconfig(configuration: Configuration, target: Target, connections: Connections) -> None:
    """Fill in what the kubeconfig says; Google's token replaces GKE's plugin, which is a program.

    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
    """
    with importing:
        from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

    merged = KubeConfigMerger(target.kubeconfig).config
    if merged is None:
        raise FileNotFoundError(f"no such file: {target.kubeconfig}")
    loader = KubeConfigLoader(merged, active_context=target.context or None)
    name = loader.current_context["context"].get("user")
    users = [node.value["user"] or {} for node in merged["users"] if node["name"] == name]
    programs = [program for user in users if (program := _program(user))]
    if any(Path(program).name != _GKE_PLUGIN for program in programs):
        raise ConfigurationError(
            f"{target} gets the credentials of user {name!r} from the program {programs[0]!r}, and Kinetic "
            "runs none: use a kubeconfig with a token or a client certificate, or a pod's service account"
        )
    for user in users:
        user.pop("exec", None)
    loader = KubeConfigLoader(merged, active_context=target.context or None)
    loader.load_and_set(configuration)
    if programs:
        _with_google_token(configuration, target, connections)


def _program(user: dict[str, Any]) -> str:
    """Return the program that would get the user's credentials, "" for none."""
    provider = (user.get("auth-provider") or {}).get("config") or {}
    return str((user.get("exec") or {}).get("command") or provider.get("cmd-path") or "")


def _from_gke(configuration: Any, target: Target, connections: Connections) -> str:
    """Fill in address and token; return the certificate to trust."""
    found = gke_cluster(target, connections)
    configuration.host = f"https://{found['endpoint']}"
    _with_google_token(configuration, target, connections)
    return base64.b64decode(found["masterAuth"]["clusterCaCertificate"]).decode()


_KEYS = ("authorization", "BearerToken")
"""Names of a token in a configuration: that which the client's older versions read, and the newer ones'."""


class _GoogleToken:
    """Hook of the client that puts a Google token into every request."""

    def __init__(self, account: Account | None, connections: Connections) -> None:
        self._account, self._connections = account, connections

    def __call__(self, configuration: Any) -> None:
        token = credentials(self._connections, self._account).token()
        configuration.api_key |= dict.fromkeys(_KEYS, token)

    def renew(self) -> None:
        credentials(self._connections, self._account).refresh()


def _with_google_token(configuration: Any, target: Target, connections: Connections) -> None:
    configuration.api_key_prefix |= dict.fromkeys(_KEYS, "Bearer")
    configuration.refresh_api_key_hook = _GoogleToken(target.account, connections)
    configuration.refresh_api_key_hook(configuration)
