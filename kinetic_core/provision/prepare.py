"""Each verb's plan: what it is about is read, compared and checked; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from kinetic_core.backends.base import named_cluster
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.connections import Connections
from kinetic_core.errors import CloudError, ConfigurationError, InvalidRequest, StoreRefused
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.inventory import project_number, read
from kinetic_core.provision.plan import (
    Action,
    Found,
    Step,
    absent,
    down_resources,
    namespace,
    namespace_removal,
    plan,
    plan_removal,
    pools,
    problems,
    resources,
)
from kinetic_core.provision.pools import Pool
from kinetic_core.provision.resources import Resource
from kinetic_core.provision.specification import Wanted, WantedNamespace, check
from kinetic_core.provision.state import look_at_pools, made_namespaces
from kinetic_core.store.gcs import GcsObjectStore

_A_PAGE = 1000
Choose = Callable[[Wanted, str], Sequence[Resource]]


@dataclass(frozen=True)
class Prepared:
    """What is wanted, what is there, and the steps from one to the other."""

    wanted: Wanted
    found: Found
    steps: tuple[Step, ...]
    silent: bool = False
    """Whether the cluster does not answer, so that nobody knows what is in it."""

    @property
    def remains(self) -> list[str]:
        """What a removal leaves, for people."""
        left = [
            f"{step.resource} ({', '.join(step.details)})"
            for step in self.steps
            if step.action is Action.LEAVE
        ]
        if self.silent:
            left.append("disks and addresses of jobs, if there are any: the cluster does not answer")
        return [*left, f"the APIs enabled in {self.wanted.project}"]


def open_cloud(connections: Connections) -> Cloud:
    """The way to the cluster that the settings name. Connects to nothing."""
    settings = connections.settings
    target = named_cluster(settings)

    def empty(bucket: str) -> None:
        store = GcsObjectStore(bucket, connections=connections)
        before: list[str] = []
        while names := [info.name for info in islice(store.list(""), _A_PAGE)]:
            if names == before:
                raise StoreRefused(f"gs://{bucket}/{names[0]} cannot be deleted: look at your permissions")
            store.delete_many(names)
            before = names

    parent = f"projects/{settings.project}/locations/{settings.zone}"
    return Cloud(parent, lambda: ClusterApi(target, connections, patience=0.0), empty, connections)


def prepare_up(cloud: Cloud, wanted: Wanted) -> Prepared:
    """Everything. Raises InvalidRequest, ConfigurationError or CloudError."""
    return _prepare(cloud, wanted, resources)


def prepare_pools(cloud: Cloud, wanted: Wanted) -> Prepared:
    """The pools that are wanted, in a cluster that must be there."""
    return _there(_prepare(cloud, wanted, lambda one, _: pools(one)))


def prepare_namespaces(cloud: Cloud, wanted: Wanted) -> Prepared:
    """The namespaces that are wanted, in a cluster that must be there."""
    return _there(_prepare(cloud, wanted, namespace))


def prepare_pool_sizes(
    cloud: Cloud, wanted: Wanted, name: str, least: int | None, most: int | None
) -> Prepared:
    """Another size for a pool that is there. Raises InvalidRequest, naming those that are."""
    resized = Pool(wanted, _pool(cloud, wanted, name), least, most)
    return _there(_prepare(cloud, wanted, lambda _one, _number: (resized,)))


def prepare_pool_removal(cloud: Cloud, wanted: Wanted, name: str) -> Prepared:
    """Without a pool. Raises InvalidRequest for one that is not there, naming those that are."""
    unwanted = Pool(wanted, _pool(cloud, wanted, name))
    return _there(_prepare_removal(cloud, wanted, lambda _one, _number: (unwanted,)))


def prepare_namespace_removal(cloud: Cloud, wanted: Wanted) -> Prepared:
    """Without these namespaces."""
    return _there(_prepare_removal(cloud, wanted, namespace_removal))


def prepare_down(cloud: Cloud, wanted: Wanted) -> Prepared:
    """Nothing of it; the namespaces that were made here are looked up in the cluster.

    Raises ConfigurationError where the cluster is somewhere else.
    """
    names, silent = _namespaces(cloud)
    wanted = replace(wanted, namespaces=tuple(map(WantedNamespace, names)))
    return replace(_prepare_removal(cloud, wanted, lambda one, _: down_resources(one)), silent=silent)


def _namespaces(cloud: Cloud) -> tuple[tuple[str, ...], bool]:
    """The namespaces that were made here, and whether the cluster does not say."""
    try:
        return made_namespaces(cloud), False
    except ConfigurationError:  # there is no cluster
        return (), False
    except CloudError:  # it goes all the same, and with it what nobody can look at
        return (), True


def _prepare(cloud: Cloud, wanted: Wanted, choose: Choose) -> Prepared:
    check(wanted)
    number = project_number(cloud, wanted.project)
    every = choose(wanted, number)
    found = read(cloud, every, wanted, creating=True)
    steps = plan(every, found)
    problems(steps, found, wanted)
    return Prepared(wanted, found, steps)


def _prepare_removal(cloud: Cloud, wanted: Wanted, choose: Choose) -> Prepared:
    check(wanted)
    number = project_number(cloud, wanted.project)
    every = choose(wanted, number)
    found = read(cloud, every, wanted, creating=False)
    problems((), found, wanted)
    return Prepared(wanted, found, plan_removal(every, found))


def _there(prepared: Prepared) -> Prepared:
    if prepared.wanted.location not in prepared.found.locations:
        raise ConfigurationError(absent(prepared.wanted, prepared.found.locations))
    return prepared


def _pool(cloud: Cloud, wanted: Wanted, name: str) -> str:
    """The name, if there is such a pool."""
    check(wanted)
    known = sorted(pool.name for pool in look_at_pools(cloud, wanted))
    if name not in known:
        raise InvalidRequest(
            f"there is no pool {name!r} in {wanted.path}; there are: {', '.join(known) or 'none'}"
        )
    return name
