"""What there is: every resource read once, at the same time; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.errors import CloudError, ConfigurationError
from kinetic_core.google_cloud import GoogleService
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.cluster import Cluster
from kinetic_core.provision.plan import Found
from kinetic_core.provision.pools import NodePool, Pool
from kinetic_core.provision.resources import Json, Request, Resource
from kinetic_core.provision.specification import Wanted, WantedPool

_READERS = 8
_PAUSE = 3.0
_PREEMPTIBLE = "PREEMPTIBLE_"
_TPU_QUOTAS = {"v5e": "TPU_LITE_PODSLICE_V5", "v4": "TPU_PODSLICE_V4"}


def project_number(cloud: Cloud, project: str) -> str:
    """The project's number. Raises ConfigurationError if it is not there, or not for us."""
    try:
        found = cloud.read(Request("cloudresourcemanager", "GET", f"projects/{project}"))
    except CloudError as exc:
        if exc.status not in (401, 403):
            raise
        raise ConfigurationError(
            f"project {project} may not be used: {exc}. Look at --project, and at `gcloud auth list`"
        ) from exc
    if found is None:
        raise ConfigurationError(
            f"project {project} cannot be read. If it exists: gcloud services enable "
            f"cloudresourcemanager.googleapis.com --project={project}. Else: gcloud projects create {project}"
        )
    return str(found["projectNumber"])


def clusters(cloud: Cloud, project: str) -> list[Json]:
    """Every cluster of a project. Raises CloudError."""
    path = f"projects/{project}/locations/-/clusters"
    try:
        found = cloud.read(Request("container", "GET", path)) or {}
    except CloudError as exc:
        raise type(exc)(f"clusters of {project} cannot be listed: {exc}", exc.status, exc.reason) from exc
    return list(found.get("clusters", ()))


def read(cloud: Cloud, resources: Sequence[Resource], wanted: Wanted, *, creating: bool) -> Found:
    """What there is of these resources. With `creating`, also what could keep them from being made."""
    every = clusters(cloud, wanted.project)
    mine = [each for each in every if each["name"] == wanted.cluster]
    here = next((each for each in mine if each.get("location") == wanted.location), None)
    answers_kubernetes = here is not None and here.get("status") in ("RUNNING", "RECONCILING")
    with ThreadPoolExecutor(_READERS) as pool:
        looked = list(pool.map(lambda each: _look(cloud, each, here, answers_kubernetes), resources))
        missing = pool.submit(_missing_permissions, cloud, wanted.project, resources) if creating else None
        machines = pool.submit(_missing_machines, cloud, wanted, resources) if creating else None
        quotas = pool.submit(_small_quotas, cloud, wanted, resources) if creating else None
    return Found(
        dict(zip(map(str, resources), looked, strict=True)),
        tuple(str(each.get("location")) for each in mine),
        missing.result() if missing else (),
        machines.result() if machines else {},
        quotas.result() if quotas else (),
    )


def _look(cloud: Cloud, resource: Resource, cluster: Json | None, answers: bool) -> Json | None:
    """One resource; the list of clusters has told what there is to tell of this one and of its pools."""
    if isinstance(resource, Cluster):
        return cluster
    if isinstance(resource, NodePool | Pool):
        if cluster is None or cluster.get("status") == "ERROR":  # such a cluster goes with all of them
            return None
        pools: Iterable[Json] = cluster.get("nodePools") or ()
        return next((pool for pool in pools if pool["name"] == resource.name), None)
    if resource.reading.service == "kubernetes" and not answers:
        return None
    try:
        return cloud.read(resource.reading)
    except CloudError as exc:
        raise type(exc)(f"{resource} cannot be looked at: {exc}", exc.status, exc.reason) from exc


def _missing_permissions(cloud: Cloud, project: str, resources: Sequence[Resource]) -> tuple[str, ...]:
    """None where it cannot be asked, as in a project that has no API enabled."""
    needed = sorted({name for resource in resources for name in resource.permissions})
    path = f"projects/{project}:testIamPermissions"
    answer = cloud.read(Request("cloudresourcemanager", "POST", path, {"permissions": needed}))
    if answer is None:
        return ()
    held = set(answer.get("permissions", ()))
    return tuple(name for name in needed if name not in held)


def read_room(cloud: Cloud, wanted: Wanted, resources: Sequence[Resource], patience: float) -> Found:
    """What could keep machines of the pools from being there, from a Compute Engine that was enabled a moment
    ago: for at most so many seconds it may still say that it is not.
    """
    give_up = cloud.clock() + patience
    while _is_disabled(cloud, wanted) and cloud.clock() < give_up:
        cloud.sleep(_PAUSE)
    machines = _missing_machines(cloud, wanted, resources)
    return Found(missing_machines=machines, small_quotas=_small_quotas(cloud, wanted, resources))


def _is_disabled(cloud: Cloud, wanted: Wanted) -> bool:
    try:
        region_quotas(cloud.service("compute"), wanted.project, wanted.region)
    except CloudError as exc:
        return exc.reason == "SERVICE_DISABLED"
    return False


def _missing_machines(cloud: Cloud, wanted: Wanted, resources: Sequence[Resource]) -> Mapping[str, str]:
    """The machine types that their zone does not have, or no zone of their region, as far as Compute Engine
    can be asked already.
    """
    missing = {}
    for pool in (each.pool for each in resources if isinstance(each, NodePool)):
        machine = str(pool.accelerator.machine_type)
        if wanted.regional and not pool.zones:
            zones = _zones(cloud, wanted)
            if zones and all(_lacks(cloud, wanted.project, zone, machine) for zone in zones):
                missing[machine] = wanted.region
            continue
        for zone in pool.zones or (wanted.location,):
            if _lacks(cloud, wanted.project, zone, machine):
                missing[machine] = zone
    return dict(sorted(missing.items()))


def _zones(cloud: Cloud, wanted: Wanted) -> tuple[str, ...]:
    """Those of the region; none if nobody says."""
    path = f"projects/{wanted.project}/regions/{wanted.region}"
    try:
        found = cloud.service("compute").send("GET", path)
    except CloudError:
        return ()
    return tuple(str(zone).rpartition("/")[2] for zone in found.get("zones", ()))


def _small_quotas(cloud: Cloud, wanted: Wanted, resources: Sequence[Resource]) -> tuple[str, ...]:
    """Quotas of the region that are too small for one machine of a pool, or for its one slice, as far as
    Compute Engine lists them.
    """
    pools = [each.pool for each in resources if isinstance(each, NodePool)]
    needs = [(names, *_chips(pool)) for pool in pools if (names := _metrics(pool))]
    if not needs:
        return ()
    try:
        quotas = region_quotas(cloud.service("compute"), wanted.project, wanted.region)
    except CloudError:
        return ()
    told = []
    for names, chips, what in needs:
        known = [quotas[name]["limit"] for name in names if name in quotas]
        if len(known) == len(names) and max(known) < chips:
            told.append(
                f"quota {names[0]} in {wanted.region} is {max(known):g}, and one {what} needs {chips}"
            )
    return tuple(dict.fromkeys(told))


def _metrics(pool: WantedPool) -> tuple[str, ...]:
    """The quotas any of which the pool's machines may be counted in; none for what is not listed.

    TPUs of a reservation are not counted. Machines that are not there for good come of the preemptible
    quota, and where there is none of the other.
    """
    one = pool.accelerator
    name = _quota_name(one)
    if name is None or (one.kind == "tpu" and pool.reservation):
        return ()
    return (f"{_PREEMPTIBLE}{name}", name) if one.spot or pool.flex_start else (name,)


def _chips(pool: WantedPool) -> tuple[int, str]:
    """How many must be there at once, and what has them."""
    one = pool.accelerator
    return one.chips_per_host * one.hosts, "slice" if one.hosts > 1 else "machine"


def region_quotas(compute: GoogleService, project: str, region: str) -> dict[str, Json]:
    """Compute Engine's quotas of a region by metric, each with `limit` and `usage`. Raises CloudError."""
    found = compute.send("GET", f"projects/{project}/regions/{region}")
    return {quota["metric"]: quota for quota in found.get("quotas", ())}


def quota_metric(hardware: Accelerator) -> str | None:
    """The quota of a region that machines with this hardware count against first, chip by chip; None for
    hardware whose quotas Compute Engine does not list by region, as those of newer TPUs.
    """
    name = _quota_name(hardware)
    return f"{_PREEMPTIBLE}{name}" if name and hardware.spot else name


def _quota_name(hardware: Accelerator) -> str | None:
    """ "GPU quota" in Compute Engine's documentation, "Ensure sufficient quota" in "Plan TPUs in GKE"."""
    if hardware.kind == "gpu":
        return str(hardware.label).upper().replace("-", "_").replace("_TESLA", "") + "_GPUS"
    return _TPU_QUOTAS.get(hardware.family) if hardware.kind == "tpu" else None


def _lacks(cloud: Cloud, project: str, zone: str, machine: str) -> bool:
    compute = cloud.service("compute")
    try:
        compute.send("GET", f"projects/{project}/zones/{zone}/machineTypes/{machine}")
    except CloudError as exc:
        return exc.status == 404
    return False
