"""A cluster as the cloud has it, and what would be lost with it. Nothing is kept in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kinetic_core.cluster.informer import SELECTOR
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.errors import CloudError, ConfigurationError
from kinetic_core.model.accelerators import known_accelerators
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.pools import pool_is_mine
from kinetic_core.provision.reading import clusters
from kinetic_core.provision.resources import Json, Request
from kinetic_core.provision.wanted import Wanted

_COUNTED = 1000
"""Objects are counted up to this."""
_ENDS = ("min", "max")


@dataclass(frozen=True)
class PoolState:
    """A node pool. `accelerator` is "" for a pool of plain machines."""

    name: str
    accelerator: str
    machine_type: str
    topology: str
    min_nodes: int
    max_nodes: int
    """Both 0 where the pool does not scale by itself."""
    terms: str
    """`spot`, `flex-start`, `reserved NAME` or `on demand`."""
    status: str
    made_here: bool

    def row(self) -> tuple[str, ...]:
        """For a table."""
        nodes = f"{self.min_nodes} to {self.max_nodes}" if self.max_nodes else "fixed"
        return (self.name, self.accelerator or "cpu", self.machine_type, nodes, self.terms, self.status)


@dataclass(frozen=True)
class State:
    """The cluster at `path`; `status` "" if there is none."""

    path: str
    status: str = ""
    version: str = ""
    endpoint: str = ""
    made_here: bool = False
    pools: tuple[PoolState, ...] = ()
    namespaces: tuple[str, ...] = ()
    """Those made here."""
    running_jobs: tuple[str, ...] = ()
    outputs: Mapping[str, int] | None = None
    """Objects of outputs, by namespace, counted up to 1,000."""

    def row(self) -> tuple[str, ...]:
        """For a table."""
        return (self.path, self.status, self.version, self.endpoint)

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def losses(self) -> list[str]:
        """What goes with the cluster, for people."""
        told = []
        if self.running_jobs:
            told.append(f"running jobs end: {', '.join(self.running_jobs)}")
        if self.pools:
            told.append(f"pools: {', '.join(pool.name for pool in self.pools)}")
        for namespace, count in (self.outputs or {}).items():
            if count:
                number = f"{count}" if count < _COUNTED else f"{_COUNTED} or more"
                told.append(f"outputs of {namespace}: {number} objects are deleted")
        return told


def look(cloud: Cloud, wanted: Wanted) -> State:
    """The state of the cluster that is named. Raises CloudError."""
    every = clusters(cloud, wanted.project)
    found = next((one for one in every if _is(one, wanted)), None)
    if found is None:
        return State(wanted.path)
    namespaces, jobs = _inside(cloud)
    return State(
        wanted.path,
        str(found.get("status", "")),
        str(found.get("currentMasterVersion", "")),
        str(found.get("endpoint", "")),
        bool((found.get("resourceLabels") or {}).get("kinetic")),
        tuple(map(pool_of, found.get("nodePools") or ())),
        namespaces,
        jobs,
        {name: _outputs(cloud, wanted, name) for name in namespaces},
    )


def pool_of(found: Mapping[str, Any]) -> PoolState:
    """A NodePool of the GKE API."""
    config, scaling = found.get("config") or {}, found.get("autoscaling") or {}
    topology = str((found.get("placementPolicy") or {}).get("tpuTopology") or "")
    least, most = (
        scaling.get(f"{end}NodeCount", scaling.get(f"total{end.title()}NodeCount", 0)) for end in _ENDS
    )
    return PoolState(
        str(found["name"]),
        _accelerator(config, topology),
        str(config.get("machineType", "")),
        topology,
        int(least),
        int(most) if scaling.get("enabled") else 0,
        _terms(config),
        str(found.get("status", "")),
        pool_is_mine(found),
    )


def _is(cluster: Json, wanted: Wanted) -> bool:
    return cluster["name"] == wanted.cluster and cluster.get("location") == wanted.location


def _accelerator(config: Mapping[str, Any], topology: str) -> str:
    """The name that `accelerator=` takes for the pool's machines."""
    machine = config.get("machineType")
    gpus: Sequence[Json] = config.get("accelerators") or ()
    for one in (row.accelerator for row in known_accelerators() if row.accelerator.machine_type == machine):
        same_gpu = bool(gpus) and one.label == gpus[0]["acceleratorType"]
        if same_gpu or (one.kind == "tpu" and topology in ("", one.topology)):
            return one.name
    return str(gpus[0]["acceleratorType"]) if gpus else ""


def _terms(config: Mapping[str, Any]) -> str:
    reservations = (config.get("reservationAffinity") or {}).get("values")
    if reservations:
        return f"reserved {', '.join(reservations)}"
    if config.get("flexStart"):
        return "flex-start"
    return "spot" if config.get("spot") else "on demand"


def _inside(cloud: Cloud) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The namespaces made here and the jobs that run in them; none where the cluster does not say."""
    try:
        names = made_namespaces(cloud)
        jobs = [
            f"{name}/{job['metadata']['labels'].get(JOB_ID, job['metadata']['name'])}"
            for name in names
            for job in cloud.items("Job", name, SELECTOR)
            if (job.get("status") or {}).get("active")
        ]
    except (CloudError, ConfigurationError):
        return (), ()
    return names, tuple(jobs)


def made_namespaces(cloud: Cloud) -> tuple[str, ...]:
    """The namespaces made here. Raises CloudError, ConfigurationError where there is no cluster."""
    return tuple(str(item["metadata"]["name"]) for item in cloud.items("Namespace", "", "kinetic=true"))


def _outputs(cloud: Cloud, wanted: Wanted, namespace: str) -> int:
    query = f"prefix={namespace}/outputs/&maxResults={_COUNTED}&fields=items(name)"
    found = cloud.read(Request("storage", "GET", f"b/{wanted.jobs_bucket}/o?{query}"))
    return len((found or {}).get("items", ()))
