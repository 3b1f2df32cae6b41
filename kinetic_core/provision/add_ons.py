"""Add-ons of a cluster (LeaderWorkerSet, Kueue): each object is a step, then the controller is waited for.

What is there tells by its labels whether it was made here, of which version and with which content; the
content itself is not compared, since servers and controllers fill in much of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kinetic_core.provision.namespaces import KubernetesObject
from kinetic_core.provision.resources import Found, Json, Request, Resource
from kinetic_core.provision.specification import Wanted
from kinetic_core.provision.vendored import AddOn

VERSION = "kinetic-add-on"
"""Label: the version. Not `kinetic`, which marks namespaces of jobs."""
DIGEST = "kinetic-add-on-digest"
"""Label: of what was applied."""
_KIND = "add-on"


@dataclass(frozen=True)
class AddOnObject(KubernetesObject):
    """One object of an add-on, applied by the server."""

    kind = _KIND
    add_on: AddOn

    @property
    def name(self) -> str:
        return f"{self.add_on.title} {super().name}"

    def mine(self, found: Found) -> bool:
        return VERSION in _labels(found)

    def usable(self, found: Found) -> bool:
        return self.mine(found)

    def differences(self, found: Found) -> tuple[str, ...]:
        labels = _labels(found)
        if labels.get(DIGEST) == self._digest:
            return ()
        return (f"{labels.get(VERSION)} to {self.add_on.version}",)

    def creation(self) -> tuple[Request, ...]:
        """Not by force: what somebody else makes at the same time, with something else in it, stays."""
        return (Request("kubernetes", "APPLY", self._path, self._body()),)

    def changes(self, found: Found) -> tuple[Request, ...]:
        if not self.differences(found):
            return ()
        return (Request("kubernetes", "REAPPLY", self._path, self._body()),)

    @property
    def _digest(self) -> str:
        text = json.dumps(self.content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _body(self) -> Json:
        facts = self.content["metadata"]
        labels = {**facts.get("labels", {}), VERSION: self.add_on.version, DIGEST: self._digest}
        return {**self.content, "metadata": {**facts, "labels": labels}}


@dataclass(frozen=True)
class AddOnReady(Resource):
    """The add-on as a whole: there when a pod of its controller is ready, as its webhooks refuse till then.

    There is nothing to make here, only something to wait for.
    """

    kind = _KIND
    reads_first = True
    only_waits = True
    longest: ClassVar[float] = 600.0
    add_on: AddOn

    @property
    def name(self) -> str:
        return str(self.add_on)

    @property
    def reading(self) -> Request:
        return Request("kubernetes", "GET", f"Deployment/{self._place}")

    def busy(self, found: Found) -> bool:
        status = found.get("status") or {}
        seen = status.get("observedGeneration", 0) >= found["metadata"].get("generation", 0)
        return not (seen and status.get("availableReplicas"))

    def stuck(self, found: Found) -> str:
        conditions = (found.get("status") or {}).get("conditions") or ()
        told = [str(each.get("message")) for each in conditions if each.get("status") != "True"]
        return (
            f"no pod of Deployment {self._place} is ready after {self.longest / 60:.0f} minutes "
            f"({'; '.join(told) or 'nobody says why'}). Look at its pods; nodes of a private cluster need a "
            f"Cloud NAT to pull {self.add_on.image}"
        )

    def creation(self) -> tuple[Request, ...]:
        return ()

    @property
    def _place(self) -> str:
        found = next(each for each in self.add_on.objects if each["kind"] == "Deployment")
        return f"{found['metadata']['namespace']}/{found['metadata']['name']}"


def add_ons(wanted: Wanted) -> tuple[Resource, ...]:
    """Everything of all of them, one after another: Kueue's webhooks would keep the next one's pods out."""
    return tuple(resource for each in wanted.add_ons for resource in (*objects_of(each), AddOnReady(each)))


def objects_of(add_on: AddOn) -> tuple[AddOnObject, ...]:
    """In the order in which they are made."""
    return tuple(
        AddOnObject(
            each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"], dict(each), add_on
        )
        for each in add_on.objects
    )


def add_on_of(resource: Resource) -> AddOn | None:
    """What it is a part of."""
    return resource.add_on if isinstance(resource, AddOnObject | AddOnReady) else None


def left_alone(
    resources: Iterable[Resource], found: Mapping[str, Mapping[str, Any] | None]
) -> Mapping[AddOn, str]:
    """The add-ons that are left as they are, and why: any object of one that somebody else made, or a newer
    kinetic, stands for all of it.
    """
    left: dict[AddOn, str] = {}
    for resource in resources:
        there = found.get(str(resource))
        if not isinstance(resource, AddOnObject) or there is None or resource.add_on in left:
            continue
        version = _labels(there).get(VERSION, "")
        if not resource.mine(there):
            deployed = found.get(str(AddOnReady(resource.add_on)))
            left[resource.add_on] = f"{_version_of(deployed)}installed by somebody else, left as it is"
        elif _number(version) > _number(resource.add_on.version):
            left[resource.add_on] = f"{version}, which is newer, is left as it is"
    return left


def _version_of(deployed: Found | None) -> str:
    """As far as its image says it."""
    if deployed is None:
        return ""
    containers = ((deployed.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or ()
    tags = [str(each.get("image", "")).rpartition(":")[2] for each in containers]
    return next((f"{tag} " for tag in tags if _number(tag)), "")


def _number(version: str) -> tuple[int, ...]:
    """For comparing; () for what is no version."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+).*", version)
    return tuple(map(int, found.groups())) if found else ()


def _labels(found: Found) -> Mapping[str, str]:
    return found["metadata"].get("labels") or {}
