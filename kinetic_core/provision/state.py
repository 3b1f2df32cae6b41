"""A cluster as the cloud has it, and what would be lost with it. Nothing is kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from kinetic_core.accelerators.grammar import known_accelerators
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.backends.kubernetes.watch_cache import SELECTOR
from kinetic_core.errors import CloudError, ConfigurationError
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.inventory import clusters
from kinetic_core.provision.plan import absent
from kinetic_core.provision.pools import pool_is_mine
from kinetic_core.provision.resources import Json, Request
from kinetic_core.provision.specification import Wanted

_COUNTED = 1000
"""Objects are counted up to this."""
_ENDS = ("min", "max")
_READERS = 8

Result = TypeVar("Result")


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
    """In every namespace, also those that wait in a queue."""
    outputs: Mapping[str, int] | None = None
    """Objects of outputs, by namespace that has stored anything, counted up to 1,000."""
    unknown: tuple[str, ...] = ()
    """What could not be looked at, and why."""
    elsewhere: tuple[str, ...] = ()
    """If there is none: where else the project has a cluster of this name."""

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
                told.append(f"outputs of {namespace} are deleted, objects: {number}")
        return [*told, *(f"not known: {each}" for each in self.unknown)]


def look(cloud: Cloud, wanted: Wanted) -> State:
    """The state of the cluster that is named. Raises CloudError if nobody says whether it is there."""
    found, elsewhere = _cluster(cloud, wanted)
    if found is None:
        return State(wanted.path, elsewhere=elsewhere)
    unknown: list[str] = []
    inside = _known(lambda: (made_namespaces(cloud), _live_jobs(cloud)), "running jobs", unknown)
    outputs = _known(lambda: _outputs(cloud, wanted), f"outputs in gs://{wanted.jobs_bucket}", unknown)
    return State(
        wanted.path,
        str(found.get("status", "")),
        str(found.get("currentMasterVersion", "")),
        str(found.get("endpoint", "")),
        bool((found.get("resourceLabels") or {}).get("kinetic")),
        tuple(map(pool_of, found.get("nodePools") or ())),
        *(inside or ((), ())),
        outputs,
        tuple(unknown),
    )


def look_at_pools(cloud: Cloud, wanted: Wanted) -> tuple[PoolState, ...]:
    """The pools of the cluster that is named, whoever made them. Raises CloudError, and ConfigurationError if
    it is not there, saying where it is.
    """
    found, elsewhere = _cluster(cloud, wanted)
    if found is None:
        raise ConfigurationError(absent(wanted, elsewhere))
    return tuple(map(pool_of, found.get("nodePools") or ()))


def _cluster(cloud: Cloud, wanted: Wanted) -> tuple[Json | None, tuple[str, ...]]:
    """The cluster, and where others of its name are."""
    named = [one for one in clusters(cloud, wanted.project) if one["name"] == wanted.cluster]
    there = {str(one.get("location")): one for one in named}
    return there.pop(wanted.location, None), tuple(there)


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


def _known(look: Callable[[], Result], what: str, unknown: list[str]) -> Result | None:
    """What looking finds; None, and a note of it, where nobody is let or answers."""
    try:
        return look()
    except (CloudError, ConfigurationError) as exc:
        unknown.append(f"{what} ({exc})")
        return None


def _live_jobs(cloud: Cloud) -> tuple[str, ...]:
    """The jobs of every namespace that have not ended. Whether one has pods does not tell: a queue may hold
    it, and a slice's are a LeaderWorkerSet's (ADR 0032).
    """
    names = (
        f"{about['namespace']}/{(about.get('labels') or {}).get(JOB_ID, about['name'])}"
        for about in (job["metadata"] for job in cloud.items("Job", "", SELECTOR) if not _has_ended(job))
    )
    return tuple(dict.fromkeys(names))


def _has_ended(job: Json) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def made_namespaces(cloud: Cloud) -> tuple[str, ...]:
    """The namespaces made here. Raises CloudError, ConfigurationError where there is no cluster."""
    return tuple(str(item["metadata"]["name"]) for item in cloud.items("Namespace", "", "kinetic=true"))


def live_jobs_by_namespace(cloud: Cloud) -> dict[str, int]:
    """Count the jobs that have not ended, by namespace made here. Raises as `made_namespaces`."""
    owners = [job.partition("/")[0] for job in _live_jobs(cloud)]
    return {name: owners.count(name) for name in made_namespaces(cloud)}


def _outputs(cloud: Cloud, wanted: Wanted) -> dict[str, int]:
    """Counted in each namespace that has stored something, whoever made it."""
    objects = f"b/{wanted.jobs_bucket}/o"
    query = "delimiter=/&fields=prefixes,nextPageToken"
    top = cloud.read(Request("storage", "GET", f"{objects}?{query}")) or {}
    names = [str(prefix).rstrip("/") for prefix in top.get("prefixes", ())]

    def count(name: str) -> int:
        query = f"prefix={quote(name, safe='')}/outputs/&maxResults={_COUNTED}&fields=items(name)"
        return len((cloud.read(Request("storage", "GET", f"{objects}?{query}")) or {}).get("items", ()))

    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(count, names), strict=True))
