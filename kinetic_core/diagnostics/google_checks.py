"""What `doctor` asks Google Cloud about a GKE cluster: APIs, node pools, quotas of the region."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.backends.kubernetes.capacity import makes_pools, meaning, pool_has
from kinetic_core.backends.kubernetes.connection import Target, gke_cluster
from kinetic_core.connections import Connections
from kinetic_core.diagnostics.checks import Check, Finding
from kinetic_core.errors import CloudError, CloudUnreachable
from kinetic_core.google_cloud import GoogleService, ask_google, message_of
from kinetic_core.images.registry import region_of
from kinetic_core.provision.inventory import quota_metric, region_quotas
from kinetic_core.provision.state import PoolState, pool_of

GOOGLE_APIS = "Google APIs"
_ALWAYS = ("container.googleapis.com", "storage.googleapis.com")
_TO_BUILD = ("artifactregistry.googleapis.com", "cloudbuild.googleapis.com")
_USAGE = "https://serviceusage.googleapis.com"
_BROKEN = ("ERROR", "RUNNING_WITH_ERROR")
"""Statuses of pools that get no node, or not all of them: container/v1 NodePool.Status."""


def google_checks(
    connections: Connections, target: Target, accelerator: Accelerator | None
) -> Iterator[Check]:
    """Of a cluster of the GKE API; of another one they say why nothing is asked."""
    if not target.project:
        for name in ("node pools", "regional quota"):
            yield Check(name, partial(_not_asked, target))
        return
    place = connections.settings
    yield Check(GOOGLE_APIS, lambda: _google_apis(connections))
    yield Check(
        "node pools", lambda: pools_finding(gke_cluster(target, connections), accelerator), needs=GOOGLE_APIS
    )
    yield Check(
        "regional quota",
        lambda: quota_finding(GoogleService("compute", connections), place.project, place.zone, accelerator),
        needs=GOOGLE_APIS,
    )


def _not_asked(target: Target) -> Finding:
    return Finding("skip", f"known for clusters of the GKE API only, and this is {target}")


def _google_apis(connections: Connections) -> Finding:
    settings = connections.settings
    base = settings.api_endpoint_overrides.get("serviceusage", _USAGE).rstrip("/")
    url = f"{base}/v1/projects/{settings.project}/services?filter=state:ENABLED&pageSize=200"
    enabled, page = set[str](), url
    while page:
        status, answer = ask_google(connections, "GET", page, account=settings.google_account)
        if status != 200:
            return Finding(
                "fail",
                f"{url}: {message_of(answer)}",
                f"let this account list them (roles/serviceusage.serviceUsageViewer) in {settings.project}, "
                "or correct KINETIC_PROJECT",
            )
        enabled |= {service["name"].rpartition("/")[2] for service in answer.get("services", ())}
        token = answer.get("nextPageToken")
        page = f"{url}&pageToken={quote(token, safe='')}" if token else ""
    builds = settings.container_image in ("", "bundled")
    needed = (*_ALWAYS, *_TO_BUILD) if builds else _ALWAYS
    if missing := [name for name in needed if name not in enabled]:
        return Finding(
            "fail",
            f"not enabled in {settings.project}: {', '.join(missing)}",
            f"gcloud services enable {' '.join(missing)} --project {settings.project}",
        )
    return Finding("ok", f"credentials are accepted, {', '.join(needed)} enabled")


def pools_finding(cluster: dict[str, Any], accelerator: Accelerator | None) -> Finding:
    """Whether the pools of a cluster, as the GKE API describes it, are well and have the hardware."""
    every = list(cluster.get("nodePools") or ())
    broken = {str(pool["name"]): pool for pool in every if pool.get("status") in _BROKEN}
    found = ", ".join(_described(pool_of(pool)) for pool in every) or "none"
    if makes_pools(cluster):
        found = f"{found}; the cluster makes others when jobs need them"
    elif accelerator is not None:
        accelerator = meaning(cluster, accelerator)
        fitting = [pool_of(pool) for pool in every if pool_has(pool, accelerator)]
        if not fitting:
            return Finding("fail", f"{found}; none has {accelerator}", _new_pool(accelerator))
        if all(pool.name in broken for pool in fitting):
            told = "; ".join(_complaint(broken[pool.name]) for pool in fitting)
            return Finding("fail", f"every pool with {accelerator} is broken: {told}", _repair(broken))
        if not any(pool.max_nodes for pool in fitting):
            names = ", ".join(pool.name for pool in fitting)
            return Finding(
                "warn",
                f"{found}; what has {accelerator} does not scale: {names}",
                f"kinetic pool update {fitting[0].name} --max-nodes N, so that waiting jobs get nodes",
            )
    if broken:
        return Finding("warn", "; ".join(map(_complaint, broken.values())), _repair(broken))
    return Finding("ok", found)


def _described(pool: PoolState) -> str:
    nodes = f"{pool.min_nodes} to {pool.max_nodes} nodes" if pool.max_nodes else "does not scale"
    status = "" if pool.status in ("", "RUNNING") else f", {pool.status}"
    return f"{pool.name} ({pool.accelerator or 'cpu'}, {nodes}{status})"


def _complaint(pool: dict[str, Any]) -> str:
    why = pool.get("statusMessage") or "GKE does not say why"
    return f"pool {pool['name']} is {pool['status']}: {why}"


def _new_pool(accelerator: Accelerator) -> str:
    if accelerator.kind == "cpu":
        return "gcloud container node-pools create makes one of plain machines; or choose another accelerator"
    return f"kinetic pool add --accelerator {accelerator}; or choose another accelerator"


def _repair(broken: dict[str, dict[str, Any]]) -> str:
    return (
        f"see what GKE says; kinetic pool remove {next(iter(broken))}, then kinetic pool add, makes it anew"
    )


def quota_finding(
    compute: GoogleService, project: str, location: str, accelerator: Accelerator | None
) -> Finding:
    """Whether the region lets the project have so many chips, as far as its quotas tell."""
    if accelerator is None:
        return Finding("skip", "looked at for the hardware that --accelerator names")
    region, metric = region_of(location), quota_metric(accelerator)
    if metric is None:
        return Finding("skip", f"Compute Engine lists none of {accelerator} by its region")
    try:
        quota = region_quotas(compute, project, region).get(metric)
    except CloudUnreachable:
        raise
    except CloudError as exc:
        return Finding("skip", f"may not be read by this account: {exc}")
    if quota is None:
        return Finding("skip", f"Compute Engine lists no {metric} in {region}")
    limit, usage = float(quota["limit"]), float(quota.get("usage") or 0)
    found = f"{metric} in {region}: {usage:g} of {limit:g} in use, {accelerator} takes {accelerator.chips}"
    larger = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
    if limit < accelerator.chips:
        return Finding("fail", found, f"ask for more ({larger}), or choose another region or accelerator")
    if limit - usage < accelerator.chips:
        return Finding("warn", found, f"wait for what is in use, idle nodes too, or ask for more ({larger})")
    return Finding("ok", found)
