"""The plan: pure functions from what is wanted and what was found to steps, in the order they are done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kinetic_core.errors import ConfigurationError
from kinetic_core.provision.add_ons import AddOnReady, add_on_of, add_ons, left_alone
from kinetic_core.provision.cluster import Cluster
from kinetic_core.provision.iam import Policy, builds_policy, jobs_policy, project_policy, registry_policy
from kinetic_core.provision.namespaces import KubernetesObject, namespace_objects
from kinetic_core.provision.pools import NodePool
from kinetic_core.provision.project import Account, Bucket, Registry, Services
from kinetic_core.provision.resources import Resource
from kinetic_core.provision.specification import Wanted


class Action(StrEnum):
    """What a step does."""

    CREATE = "create"
    CHANGE = "change"
    REPLACE = "replace"
    WAIT = "wait"
    """For what somebody has begun: an earlier run, or another one."""
    KEEP = "keep"
    DELETE = "delete"
    LEAVE = "leave"
    """What is neither changed nor removed, as somebody else made it."""


@dataclass(frozen=True)
class Step:
    """What is done to one resource, and why."""

    action: Action
    resource: Resource
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.action} {self.resource}"

    @property
    def acts(self) -> bool:
        return self.action not in (Action.KEEP, Action.LEAVE)


@dataclass(frozen=True)
class Found:
    """What the cloud says. `resources` are by `str()` of them, None for what is not there."""

    resources: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    locations: tuple[str, ...] = ()
    """Where there is a cluster of this name."""
    missing_permissions: tuple[str, ...] = ()
    missing_machines: Mapping[str, str] = field(default_factory=dict)
    """Machine type to the zone, or region, that has none."""
    small_quotas: tuple[str, ...] = ()
    """Quotas that are too small for one machine of a pool, in words."""


def resources(wanted: Wanted, number: str) -> tuple[Resource, ...]:
    """All of it, each behind what it needs."""
    objects = [each for namespace in wanted.namespaces for each in namespace_objects(namespace)]
    return (
        Services(wanted.project),
        Account(wanted, "nodes"),
        Account(wanted, "builds"),
        project_policy(wanted),
        Registry(wanted),
        registry_policy(wanted),
        Bucket(wanted, "builds"),
        builds_policy(wanted),
        Bucket(wanted, "jobs"),
        Cluster(wanted),
        *pools(wanted),
        jobs_policy(wanted, number),  # behind the cluster, which makes the identities it names
        *objects,
        *add_ons(wanted),  # last: they are waited for
    )


def pools(wanted: Wanted) -> tuple[Resource, ...]:
    """The node pools."""
    return tuple(NodePool(wanted, pool) for pool in wanted.pools)


def namespace(wanted: Wanted, number: str) -> tuple[Resource, ...]:
    """What the namespaces have."""
    objects = [each for one in wanted.namespaces for each in namespace_objects(one)]
    return (Bucket(wanted, "jobs"), jobs_policy(wanted, number), *objects)


def plan(wanted: Sequence[Resource], found: Found) -> tuple[Step, ...]:
    """The steps that bring about what is wanted."""
    left = left_alone(wanted, found.resources)
    steps = []
    for resource in wanted:
        add_on = add_on_of(resource)
        why = left.get(add_on) if add_on is not None else None
        if why is None:
            steps.append(_step(resource, found.resources.get(str(resource))))
        elif isinstance(resource, AddOnReady):  # one step for all of it
            steps.append(Step(Action.LEAVE, resource, (why,)))
    return tuple(steps)


def plan_removal(unwanted: Sequence[Resource], found: Found) -> tuple[Step, ...]:
    """The steps that remove what is there and was made here."""
    there = ((resource, found.resources.get(str(resource))) for resource in unwanted)
    return tuple(_removal(resource, one) for resource, one in there if one is not None)


def down_resources(wanted: Wanted) -> tuple[Resource, ...]:
    """What `down` removes: namespaces before the cluster, so that their disks and addresses go with them."""
    return (
        *(KubernetesObject("Namespace", "", one.name, {}) for one in wanted.namespaces),
        Cluster(wanted),
        Registry(wanted),
        Bucket(wanted, "jobs"),
        Bucket(wanted, "builds"),
        project_policy(wanted, absent=True),
        Account(wanted, "nodes"),
        Account(wanted, "builds"),
    )


def namespace_removal(wanted: Wanted, number: str) -> tuple[Resource, ...]:
    """What goes with a namespace; its objects in the bucket stay until they are old."""
    objects = [each for one in wanted.namespaces for each in namespace_objects(one)]
    return (jobs_policy(wanted, number, absent=True), *reversed(objects))


_NOT_MINE = "not made by kinetic"


def problems(steps: Sequence[Step], found: Found, wanted: Wanted) -> None:
    """Raise ConfigurationError, with every reason there is, for a plan that cannot be carried out."""
    told = [*_elsewhere(found, wanted), *_unusable(steps, found)]
    needed = {name for step in steps if step.acts for name in step.resource.permissions}
    if missing := ", ".join(name for name in found.missing_permissions if name in needed):
        told.append(
            f"you lack {missing} in {wanted.project}: gcloud projects add-iam-policy-binding "
            f"{wanted.project} --member=user:YOU --role=roles/owner, or roles that have them"
        )
    told += no_room(found, wanted)
    if told:
        raise ConfigurationError("nothing has been changed: " + "; ".join(told))


def no_room(found: Found, wanted: Wanted) -> list[str]:
    """Why there can be no machine of some pool, with what to do."""
    machines = [
        f"{place} has no machines {machine}: choose another --zone; gcloud compute machine-types list "
        f"--filter=name={machine} lists the zones that have them"
        for machine, place in found.missing_machines.items()
    ]
    page = f"https://console.cloud.google.com/iam-admin/quotas?project={wanted.project}"
    return [*machines, *(f"{quota}: ask for more at {page}" for quota in found.small_quotas)]


def _step(resource: Resource, found: Mapping[str, Any] | None) -> Step:
    if found is None:
        return Step(Action.WAIT if resource.only_waits else Action.CREATE, resource)
    if resource.broken(found):
        return Step(Action.REPLACE, resource, (str(found.get("statusMessage") or "it is in error"),))
    if resource.busy(found):
        return Step(Action.WAIT, resource, (str(found.get("status", "")),))
    changes = resource.differences(found)
    return Step(Action.CHANGE if changes else Action.KEEP, resource, changes)


def _removal(resource: Resource, found: Mapping[str, Any]) -> Step:
    if not resource.mine(found):
        return Step(Action.LEAVE, resource, (_NOT_MINE,))
    if not isinstance(resource, Policy):
        return Step(Action.DELETE, resource)
    wrong = resource.differences(found)
    return Step(Action.CHANGE if wrong else Action.KEEP, resource, wrong)


def absent(wanted: Wanted, elsewhere: Sequence[str]) -> str:
    """What is said where there is no such cluster; `elsewhere` are places that have one of its name."""
    if not elsewhere:
        place = f"{wanted.cluster} in {wanted.location} of {wanted.project}"
        return f"there is no cluster {place}: `kinetic up` makes it"
    places = f"{', '.join(elsewhere)}, not in {wanted.location}"
    told = f"cluster {wanted.cluster} of {wanted.project} is in {places}"
    return f"{told}: give --zone {elsewhere[0]}, or another --cluster for a second one"


def _elsewhere(found: Found, wanted: Wanted) -> list[str]:
    if not found.locations or wanted.location in found.locations:
        return []
    return [absent(wanted, found.locations)]


def _unusable(steps: Sequence[Step], found: Found) -> list[str]:
    told = []
    for step in steps:
        there = found.resources.get(str(step.resource))
        if there is None or step.action in (Action.DELETE, Action.LEAVE):
            continue
        if not step.resource.usable(there):
            told.append(
                f"{step.resource} exists and was not made by kinetic: choose another --cluster (or --name "
                "of a pool), or remove it"
            )
        elif (fixed := step.resource.fixed(there)) and step.action is not Action.REPLACE:
            told.append(
                f"{step.resource} exists with another {', '.join(fixed)}, which cannot be changed: leave the "
                "option out, or choose another name"
            )
    return told
