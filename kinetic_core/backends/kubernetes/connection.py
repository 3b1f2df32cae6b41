"""Connection to an API server, from the settings: its address, certificate and token.

The user's kubeconfig is read, never written or switched; no subprocess is run. Any number of clusters can be
used at once: a client has one connection for each target. The `kubernetes` package is imported where only it
knows how to connect: its import takes longer than a warm call.
"""

from __future__ import annotations

import base64
import copy
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import getproxies

from kinetic_core.backends.kubernetes.kubeconfig import GKE_PLUGIN, Access, read_access
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError
from kinetic_core.google_cloud import ask_google, credentials, message_of
from kinetic_core.imports import importing
from kinetic_core.settings import Account

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import PoolManager

_CONNECTIONS = 64


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


@dataclass(frozen=True)
class ApiServer:
    """An API server, and what requests are made with, by all threads.

    `headers` returns those that say who asks; `tls` a context for connections other than those of `pool`.
    `proxy` and `no_proxy` are for such, too. `google` is the account's token, if it is one of Google's.
    """

    host: str
    pool: PoolManager
    headers: Callable[[], dict[str, str]]
    tls: Callable[[], ssl.SSLContext]
    server_name: str | None = None
    proxy: str | None = None
    no_proxy: str | None = None
    google: GoogleToken | None = None

    def close(self) -> None:
        """Close the connections that wait for a request."""
        self.pool.clear()


class GoogleToken:
    """Token of an account, or of this process, for each request."""

    def __init__(self, account: Account | None, connections: Connections) -> None:
        self._account, self._connections = account, connections

    def headers(self) -> dict[str, str]:
        """Return the header that has it. Raises ConfigurationError if none can be had."""
        return {"authorization": f"Bearer {credentials(self._connections, self._account).token()}"}

    def renew(self) -> None:
        """Get another one."""
        credentials(self._connections, self._account).refresh()


def connection(target: Target, connections: Connections) -> ApiServer:
    """Return the connection to a cluster, shared by all threads. Raises ConfigurationError."""
    return connections.get((connection, target), lambda: _connected(target, connections))


def _connected(target: Target, connections: Connections) -> ApiServer:
    access = None
    if target.project and not target.kubeconfig:
        access = _of_gke(target, connections)
    elif target.kubeconfig:
        access = read_access(target.kubeconfig, target.context)
    google = GoogleToken(target.account, connections) if access is not None and access.is_google else None
    if access is None or getproxies().keys() - {"no"}:  # the package knows for what a proxy is used
        return _by_package(target, access, google, connections)
    try:
        return _direct(access, google)
    except (OSError, ValueError) as exc:  # what is said of certificates and keys
        raise _unusable(target, exc) from exc


def _direct(access: Access, google: GoogleToken | None) -> ApiServer:
    """Connect as `access` says. Raises OSError or ValueError for certificates or a key that cannot be."""
    import urllib3
    from urllib3.util.ssl_ import create_urllib3_context

    # urllib3 1.26 compares the server's name itself, and needs a context that does not.
    own = _trusting(access, create_urllib3_context())
    more: dict[str, Any] = {"server_hostname": access.server_name} if access.server_name else {}
    pool = urllib3.PoolManager(maxsize=_CONNECTIONS, retries=False, ssl_context=own, **more)
    held = {"authorization": f"Bearer {access.token}"} if access.token else {}
    return ApiServer(
        access.host,
        pool,
        google.headers if google is not None else held.copy,
        lambda: _trusting(access, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)),
        access.server_name,
        google=google,
    )


def _trusting(access: Access, context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context, which verifies servers, with the certificates to trust and to show."""
    if not access.is_verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif access.authority:
        context.load_verify_locations(cadata=access.authority)
    elif not access.host.lower().startswith("http:"):  # reading them takes 20 ms, for nothing without TLS
        context.load_default_certs()
    if access.certificate:
        with tempfile.TemporaryDirectory() as folder:  # which only this user may enter
            file = Path(folder, "user")
            file.write_bytes(access.certificate + b"\n" + access.key)
            context.load_cert_chain(file)
    return context


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
    google = connection(target, connections).google
    if google is None:
        return False
    google.renew()
    return True


def blank_configuration() -> Configuration:
    """Return an empty configuration, for the caller to fill in."""
    with importing:
        from kubernetes import client

    return client.Configuration()


def load_this_pods(configuration: Configuration) -> None:
    """Fill in the cluster this pod runs in. Raises ConfigurationError."""
    _from_files(configuration, Target())


def _by_package(
    target: Target, access: Access | None, google: GoogleToken | None, connections: Connections
) -> ApiServer:
    """Connect as the package understands the target; `access` is what is known of it."""
    with importing:
        from kubernetes import client

    configuration, certificate = blank_configuration(), ""
    if access is not None and not target.kubeconfig:
        configuration.host, certificate = access.host, access.authority or ""
    elif target.account is not None:
        configuration = copy.deepcopy(target.account.held)
    elif _from_files(configuration, target):
        google = GoogleToken(target.account, connections)
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    pool = client.ApiClient(configuration).rest_client.pool_manager
    if certificate:  # version 36 of the client takes a file only
        pool.connection_pool_kw["ca_cert_data"] = certificate

    def headers() -> dict[str, str]:
        return {way["key"]: way["value"] for way in configuration.auth_settings().values()}

    return ApiServer(
        configuration.host,
        pool,
        headers if google is None else google.headers,
        lambda: _context(configuration, pool),
        configuration.tls_server_name,
        configuration.proxy,
        configuration.no_proxy,
        google,
    )


def _context(configuration: Any, pool: PoolManager) -> ssl.SSLContext:
    """Return what trusts and shows the certificates that the connections of the pool do."""
    told = pool.connection_pool_kw
    context = ssl.create_default_context(cafile=told.get("ca_certs"), cadata=told.get("ca_cert_data"))
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif configuration.assert_hostname is False:
        context.check_hostname = False
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _from_files(configuration: Configuration, target: Target) -> bool:
    """Fill in what a kubeconfig or this pod's files say; return whether the token is one of Google's."""
    with importing:
        from kubernetes import config
        from kubernetes.config.config_exception import ConfigException

    try:
        if target.kubeconfig:
            return _from_kubeconfig(configuration, target)
        config.load_incluster_config(configuration)
    except (ConfigException, OSError) as exc:
        raise _unusable(target, exc) from exc
    return False


def _unusable(target: Target, exc: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"cannot connect with {target}: {exc}. Set KINETIC_KUBECONFIG (and KINETIC_KUBE_CONTEXT) to a "
        "kubeconfig that can, or KINETIC_PROJECT, KINETIC_ZONE and KINETIC_CLUSTER to a GKE cluster"
    )


def _from_kubeconfig(configuration: Configuration, target: Target) -> bool:
    """Fill in what the kubeconfig says; return whether Google's token replaces GKE's plugin, a program.

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
    if any(Path(program).name != GKE_PLUGIN for program in programs):
        raise ConfigurationError(
            f"{target} gets the credentials of user {name!r} from the program {programs[0]!r}, and Kinetic "
            "runs none: use a kubeconfig with a token or a client certificate, or a pod's service account"
        )
    for user in users:
        user.pop("exec", None)
    loader = KubeConfigLoader(merged, active_context=target.context or None)
    loader.load_and_set(configuration)
    return bool(programs)


def _program(user: dict[str, Any]) -> str:
    """Return the program that would get the user's credentials, "" for none."""
    provider = (user.get("auth-provider") or {}).get("config") or {}
    return str((user.get("exec") or {}).get("command") or provider.get("cmd-path") or "")


def _of_gke(target: Target, connections: Connections) -> Access:
    found = gke_cluster(target, connections)
    certificate = base64.b64decode(found["masterAuth"]["clusterCaCertificate"]).decode()
    return Access(f"https://{found['endpoint']}", certificate or None, is_google=True)
