"""What somebody wants: a cluster, its pools and namespaces; checked as far as nobody needs to be asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from kinetic_core.accelerators.grammar import Accelerator, parse_accelerator
from kinetic_core.errors import InvalidRequest
from kinetic_core.images.registry import LOCATION, region_of
from kinetic_core.provision.vendored import AddOn

if TYPE_CHECKING:
    from kinetic_core.jobs.cost import Prices

CHANNELS = ("RAPID", "REGULAR", "STABLE", "EXTENDED")
REGIONS = (
    *("africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2", "asia-northeast3"),
    *("asia-south1", "asia-south2", "asia-southeast1", "asia-southeast2", "asia-southeast3"),
    *("australia-southeast1", "australia-southeast2", "europe-central2", "europe-north1", "europe-north2"),
    *("europe-southwest1", "europe-west1", "europe-west2", "europe-west3", "europe-west4", "europe-west6"),
    *("europe-west8", "europe-west9", "europe-west10", "europe-west12", "me-central1", "me-central2"),
    *("me-west1", "northamerica-northeast1", "northamerica-northeast2", "northamerica-south1"),
    *("southamerica-east1", "southamerica-west1", "us-central1", "us-east1", "us-east4", "us-east5"),
    *("us-south1", "us-west1", "us-west2", "us-west3", "us-west4"),
)
"""Regions of Google Cloud, for suggestions only: others open now and then, and are asked for all the same."""
_POOL_NODES = 10
"""Most nodes of a pool of single hosts, if nobody says."""


@dataclass(frozen=True)
class WantedPool:
    """A node pool for one accelerator. `max_nodes` counts machines; one slice of several hosts is a pool."""

    accelerator: Accelerator
    name: str
    min_nodes: int = 0
    max_nodes: int = _POOL_NODES
    reservation: str = ""
    flex_start: bool = False
    """Dynamic Workload Scheduler: machines come when there are some, for at most a week."""
    max_run_hours: int = 0
    """Machines are taken away after so many hours; 0 never."""
    zones: tuple[str, ...] = ()
    """Where its nodes are, if that is not where the cluster is."""

    def notices(self) -> tuple[str, ...]:
        """What the name of the accelerator might also have meant."""
        made = f"pool {self.name} is {self.accelerator.describe()}"
        return tuple(
            f"{made}; --accelerator {each.exact} is {each.describe()}" for each in self.accelerator.others
        )


@dataclass(frozen=True)
class WantedNamespace:
    """A namespace for jobs, and the people (`user:…`, `group:…`) who may submit there."""

    name: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """A cluster and all that belongs to it. None leaves a property to its default, or as it is."""

    project: str
    location: str
    """A zone, or a region for a regional or Autopilot cluster."""
    cluster: str
    pools: tuple[WantedPool, ...] = ()
    namespaces: tuple[WantedNamespace, ...] = field(default=(WantedNamespace("default"),))
    autopilot: bool | None = None
    private: bool | None = None
    channel: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    machine_type: str | None = None
    """Of the default pool, whose nodes run what the cluster itself needs."""
    add_ons: tuple[AddOn, ...] = ()
    prices: Prices | None = None
    """What accelerators cost, if somebody has said it."""

    @property
    def region(self) -> str:
        return region_of(self.location)

    @property
    def regional(self) -> bool:
        return self.location == self.region

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def path(self) -> str:
        """The cluster's name in the GKE API."""
        return f"{self.parent}/clusters/{self.cluster}"

    @property
    def jobs_bucket(self) -> str:
        return f"{self.project}-kn-{self.cluster}-jobs"

    @property
    def builds_bucket(self) -> str:
        return f"{self.project}-kn-{self.cluster}-builds"

    def account(self, use: str) -> str:
        """The id of the service account of `nodes` or `builds`."""
        return f"kn-{self.cluster}-{use}"

    def email(self, use: str) -> str:
        return f"{self.account(use)}@{self.project}.iam.gserviceaccount.com"


def wanted_pool(
    accelerator: str,
    *,
    name: str | None = None,
    spot: bool = False,
    min_nodes: int = 0,
    max_nodes: int | None = None,
    reservation: str = "",
    flex_start: bool = False,
    max_run_hours: int = 0,
    zones: tuple[str, ...] = (),
) -> WantedPool:
    """The pool for an accelerator, named after it unless it is named. Raises InvalidRequest."""
    hardware = parse_accelerator(
        accelerator + (":spot" if spot and not accelerator.endswith(":spot") else "")
    )
    if hardware.kind == "cpu":
        raise InvalidRequest(f"--accelerator {accelerator}: the default pool runs it; name a TPU or a GPU")
    most = max_nodes if max_nodes is not None else max(_POOL_NODES if hardware.hosts == 1 else 0, min_nodes)
    if hardware.hosts > 1:
        if min_nodes not in (0, hardware.hosts) or max_nodes not in (None, hardware.hosts):
            raise InvalidRequest(
                f"a pool of {hardware} is one slice of {hardware.hosts} machines, all or none: --min-nodes "
                f"is 0 or {hardware.hosts}. More slices are more pools: --slices"
            )
        most = hardware.hosts
    kinds = [word for word, on in (("spot", hardware.spot), ("flex", flex_start)) if on]
    default = "-".join([hardware.name.replace(":", "-"), *kinds, *([reservation] if reservation else [])])
    return WantedPool(
        hardware, name or default, min_nodes, most, reservation, flex_start, max_run_hours, zones
    )


def check(wanted: Wanted) -> None:
    """Raises InvalidRequest, naming all that is wrong, before anything is asked of the cloud."""
    if wrong := list(_faults(wanted)):
        raise InvalidRequest("; ".join(wrong))


def meant_location(location: str) -> str | None:
    """Return the zone or region that a mis-spelt one most resembles; None for one that there may be.

    An unknown number behind a known area, as in `us-west9`, is taken for that of a new region.
    """
    parts = re.fullmatch(r"(.+?\d+)-?((?:ai\d+)?[a-z]?)", location)
    region, zone = (parts[1], parts[2]) if parts else (location, "")
    areas = {each.rstrip("0123456789") for each in REGIONS}
    if LOCATION.fullmatch(location) and region.rstrip("0123456789") in areas:
        return None
    close = get_close_matches(region, REGIONS, n=1, cutoff=0.8)
    return "-".join(filter(None, (*close, zone))) if close else None


def location_faults(location: str) -> Iterator[str]:
    """Yield what is wrong with the form of a zone or region, if anything is."""
    if not LOCATION.fullmatch(location):
        meant = "".join(f". Did you mean {one!r}?" for one in filter(None, [meant_location(location)]))
        yield f"--zone {location!r} is neither a zone (us-central1-a) nor a region (us-central1){meant}"


def _faults(wanted: Wanted) -> Iterator[str]:
    # Google's rules: project ids, locations, service account ids (6 to 30), buckets (63), GKE names (40).
    if not re.fullmatch(r"[a-z][-a-z0-9]{4,28}[a-z0-9]", wanted.project):
        yield f"--project {wanted.project!r} is no project id: 6 to 30 lower-case letters, digits and dashes"
    yield from location_faults(wanted.location)
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?", wanted.cluster):
        yield (
            f"--cluster {wanted.cluster!r}: at most 20 lower-case letters, digits and dashes, a letter "
            "first, since the service account kn-CLUSTER-builds may have 30"
        )
    if len(wanted.builds_bucket) > 63:
        over = len(wanted.builds_bucket) - 63
        yield f"the bucket {wanted.builds_bucket} has over 63 letters: a --cluster {over} shorter will do"
    if wanted.channel is not None and wanted.channel not in CHANNELS:
        close = "".join(
            f". Did you mean {one!r}?" for one in get_close_matches(wanted.channel, CHANNELS, n=1)
        )
        yield f"--channel {wanted.channel!r} is not one of {', '.join(CHANNELS)}{close}"
    if wanted.autopilot and not wanted.regional:
        yield f"an Autopilot cluster is regional: --zone {wanted.region}"
    asked = (("--accelerator", wanted.pools), ("--machine-type", wanted.machine_type))
    for option in (option for option, value in asked if wanted.autopilot and value):
        yield f"an Autopilot cluster makes nodes by itself: leave {option} out"
    for namespace in wanted.namespaces:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace.name):
            yield f"--namespace {namespace.name!r}: at most 63 lower-case letters, digits and dashes"
        for member in namespace.members:
            if not re.fullmatch(r"(user|group|serviceAccount):[^@\s]+@[^@\s]+", member):
                yield f"--member {member!r} is none of user:, group:, serviceAccount: and an address"
    for pool in wanted.pools:
        yield from _pool_faults(pool, wanted)


def _pool_faults(pool: WantedPool, wanted: Wanted) -> Iterator[str]:
    what = f"pool {pool.name}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", pool.name):
        yield f"{what}: at most 40 lower-case letters, digits and dashes, a letter first: --name another"
    if not 0 <= pool.min_nodes <= pool.max_nodes or not pool.max_nodes:
        yield f"{what}: --min-nodes {pool.min_nodes} and --max-nodes {pool.max_nodes} leave it no nodes"
    ways = [("spot machines", pool.accelerator.spot), ("--reservation", bool(pool.reservation))]
    chosen = [way for way, on in [*ways, ("--flex-start", pool.flex_start)] if on]
    if len(chosen) > 1:
        yield f"{what}: {' and '.join(chosen)} exclude each other"
    if pool.flex_start and not 0 <= pool.max_run_hours <= 168:
        yield f"{what}: flex-start machines stay 168 hours at most: --max-run-hours"
    elif pool.max_run_hours < 0:
        yield f"{what}: --max-run-hours {pool.max_run_hours} is negative; 0 is no limit"
    for zone in pool.zones:
        if not _is_zone_of(wanted.region, zone):
            like = f"{wanted.region}-b"
            yield f"{what}: --node-zone {zone!r} is not a zone of {wanted.region}: name one as {like}"
    if wanted.regional and pool.accelerator.kind == "tpu" and len(pool.zones) != 1:
        yield f"{what}: TPUs of a regional cluster are in one zone: name it with --node-zone"


def _is_zone_of(region: str, zone: str) -> bool:
    found = LOCATION.fullmatch(zone)
    return found is not None and found[1] == region and found[2] is not None
