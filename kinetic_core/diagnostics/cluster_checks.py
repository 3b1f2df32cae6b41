"""What `doctor` looks at on a cluster: the way to it, permissions, namespace, nodes, image, bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.backends.base import Backend, cluster_target
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import SIGNING_SECRET
from kinetic_core.diagnostics.checks import Check, Finding
from kinetic_core.diagnostics.google_checks import google_checks
from kinetic_core.diagnostics.image_checks import image_check
from kinetic_core.diagnostics.machine_checks import store_check
from kinetic_core.errors import ClusterError

_OLDEST = (1, 33)
_NEWER = 3
"""Minor versions by which a server may be newer than the client: a year of Kubernetes."""
_Rule = tuple[str, str, str, str]
"""Group, resource, verbs, and the name of the only object that they are asked of, or ""."""
_NEEDED: tuple[_Rule, ...] = (
    ("batch", "jobs", "create get list watch patch delete", ""),
    ("", "pods", "get list watch", ""),
    ("", "pods/log", "get", ""),
)
_WISHED: tuple[_Rule, ...] = (
    ("", "events", "list watch", ""),
    ("", "serviceaccounts", "get", ""),
    ("", "secrets", "create", ""),
    ("", "secrets", "get", SIGNING_SECRET),
    ("", "pods", "delete", ""),
    ("batch", "jobs", "deletecollection", ""),
)
"""Without them less is told, outcomes are believed only while their Jobs are there, one input of a batch
cannot be stopped alone, clean-up takes more requests.
"""
_SERVER = "API server"


def cluster_checks(backend: Backend, accelerator: Accelerator | None) -> Iterator[Check]:
    """Of the GKE backend, on GKE or with a kubeconfig. `accelerator` is one to look for a node for."""
    connections = backend.connections
    settings = connections.settings
    target = cluster_target(settings)
    api = ClusterApi(target, connections, patience=0.0)
    namespace = settings.namespace
    yield from google_checks(connections, target, accelerator)
    yield Check(_SERVER, lambda: _server(api, target))
    yield Check("version skew", lambda: skew_finding(api.version(), version("kubernetes")), needs=_SERVER)
    yield Check("namespace", lambda: _namespace(api, namespace), needs=_SERVER)
    yield Check("permissions", lambda: _permissions(api, namespace), needs=_SERVER)
    yield Check("service account", lambda: _service_account(api, namespace), needs="namespace")
    yield Check("quota", lambda: _quota(api, namespace), needs="namespace")
    yield Check("nodes", lambda: _nodes(api, accelerator), needs=_SERVER)
    yield Check("bucket", lambda: store_check(backend))
    yield image_check(connections, accelerator.kind if accelerator else "cpu")


def _server(api: ClusterApi, target: Target) -> Finding:
    told = api.version()
    found = f"{target}: Kubernetes {told} at {api.server}"
    major, _, minor = told.partition(".")
    if (int(major), int(minor)) < _OLDEST:
        return Finding("fail", found, "upgrade the cluster to Kubernetes 1.33 or newer")
    return Finding("ok", found)


def skew_finding(server: str, client: str) -> Finding:
    """Of the API server's version and of the `kubernetes` package's, whose first number is the minor version
    of the API that it was made from.
    """
    found = f"Kubernetes {server} there, version {client} of the client here"
    minor, made_for = int(server.partition(".")[2]), int(client.partition(".")[0])
    if minor > made_for + _NEWER:
        return Finding("warn", f"{found}: too old for it", "pip install --upgrade kubernetes")
    return Finding("ok", found)


def _namespace(api: ClusterApi, namespace: str) -> Finding:
    try:
        there = api.get("Namespace", "", namespace) is not None
    except ClusterError as exc:
        if exc.status != 403:
            raise
        return Finding("ok", f"{namespace} (whether it exists may not be asked)")
    if there:
        return Finding("ok", namespace)
    return Finding(
        "fail",
        f"{namespace} does not exist",
        f"kinetic namespace add {namespace} if `kinetic up` made the cluster, else kubectl create namespace "
        f"{namespace}; or set KINETIC_NAMESPACE",
    )


def _permissions(api: ClusterApi, namespace: str) -> Finding:
    role = "bind the role of docs/guides/clusters.md to this account"
    if refused := list(_refused(api, namespace, _NEEDED)):
        return Finding("fail", f"not permitted in {namespace}: {', '.join(refused)}", role)
    if refused := list(_refused(api, namespace, _WISHED)):
        return Finding(
            "warn", f"not permitted in {namespace}, so that less is told or done: {', '.join(refused)}", role
        )
    return Finding("ok", f"all that jobs need in {namespace}")


def _refused(api: ClusterApi, namespace: str, wanted: tuple[_Rule, ...]) -> Iterator[str]:
    for group, resource, verbs, name in wanted:
        for verb in verbs.split():
            if not api.may(verb, group, resource, namespace, name):
                yield f"{verb} {resource}" + (f" {name}" if name else "")


def _service_account(api: ClusterApi, namespace: str) -> Finding:
    if api.service_account(namespace) == "default":
        return Finding(
            "warn",
            "jobs run as 'default'",
            f"kubectl create serviceaccount kinetic -n {namespace}, bound to one that may use the bucket",
        )
    return Finding("ok", "jobs run as 'kinetic'")


def _quota(api: ClusterApi, namespace: str) -> Finding:
    try:
        quotas = api.list("ResourceQuota", namespace)["items"]
    except ClusterError as exc:
        if exc.status != 403:
            raise
        return Finding("skip", "quotas may not be listed by this account")
    used_up = sorted({name for quota in quotas for name in _used_up(quota)})
    if used_up:
        return Finding("warn", f"used up: {', '.join(used_up)}", "end jobs, or ask for a larger quota")
    return Finding("ok", f"{len(quotas)} quotas, none used up" if quotas else "no quota")


def _used_up(quota: dict[str, Any]) -> list[str]:
    status = quota.get("status") or {}
    used = status.get("used") or {}
    return [name for name, most in (status.get("hard") or {}).items() if used.get(name) == most != "0"]


def _nodes(api: ClusterApi, accelerator: Accelerator | None) -> Finding:
    try:
        nodes = api.list("Node", "")["items"]
    except ClusterError as exc:
        if exc.status != 403:
            raise
        return Finding("skip", "nodes may not be listed by this account, so nothing is said about hardware")
    ready = [node for node in nodes if _is_ready(node)]
    kinds = Counter(_hardware(node) for node in ready)
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no node is ready"
    if accelerator is not None and not any(_fits(node, accelerator) for node in ready):
        return Finding(
            "warn",
            f"{found}; none for {accelerator} now",
            "a pool that scales from zero will make one; without such a pool, create it or choose another",
        )
    return Finding("ok" if ready else "warn", found, "" if ready else "look at the cluster's nodes")


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _hardware(node: dict[str, Any]) -> str:
    labels = node["metadata"].get("labels") or {}
    tpu, gpu = (labels.get(f"cloud.google.com/gke-{kind}accelerator") for kind in ("tpu-", ""))
    return f"{tpu} {labels.get('cloud.google.com/gke-tpu-topology', '')}".strip() if tpu else gpu or "cpu"


def _fits(node: dict[str, Any], accelerator: Accelerator) -> bool:
    labels = (node["metadata"].get("labels") or {}).items()
    return any(each.node_selector().items() <= labels for each in accelerator.meanings)
