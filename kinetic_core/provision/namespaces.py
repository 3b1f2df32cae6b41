"""What a namespace of jobs has in the cluster: the namespace, the jobs' account, the role of who submits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kinetic_core.backends.kubernetes.names import SIGNING_SECRET
from kinetic_core.provision.iam import ACCOUNT
from kinetic_core.provision.resources import Found, Json, Request, Resource, lacking
from kinetic_core.provision.specification import WantedNamespace

USER = "kinetic-user"
_LABELS = {"kinetic": "true"}
RULES: list[Json] = [
    {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "verbs": ["create", "get", "list", "watch", "patch", "delete", "deletecollection"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "create"]},
    {
        "apiGroups": ["leaderworkerset.x-k8s.io"],
        "resources": ["leaderworkersets"],
        "verbs": ["create", "get", "delete"],
    },
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SIGNING_SECRET], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]
"""What submitting and looking after jobs takes. docs/guides/clusters.md shows the same; a test compares."""
LEADER = "kinetic-leader"
LEADER_RULES: list[Json] = [
    {
        "apiGroups": ["leaderworkerset.x-k8s.io"],
        "resources": ["leaderworkersets"],
        "verbs": ["delete"],
    },
]
"""What host 0 of a slice takes to give its nodes back. docs/guides/multi-host.md shows the same."""
_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class KubernetesObject(Resource):
    """One object in the cluster."""

    kind = "Kubernetes"
    kind_name: str
    namespace: str
    object_name: str
    content: Json
    longest: ClassVar[float] = 600.0

    @property
    def name(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind_name} {place}{self.object_name}"

    @property
    def reading(self) -> Request:
        return Request("kubernetes", "GET", self._path)

    def busy(self, found: Found) -> bool:
        return bool(found["metadata"].get("deletionTimestamp"))

    def stuck(self, found: Found) -> str:
        conditions = (found.get("status") or {}).get("conditions") or ()
        told = [str(each.get("message")) for each in conditions if each.get("status") == "True"]
        return (
            f"{self} has been going away for {self.longest / 60:.0f} minutes "
            f"({'; '.join(told) or 'nobody says why'}). Remove what keeps it: a finalizer of something in "
            "it, or an APIService that is not available"
        )

    def mine(self, found: Found) -> bool:
        return (found["metadata"].get("labels") or {}).get("kinetic") == "true"

    def usable(self, found: Found) -> bool:
        """Whoever made it: every cluster has a namespace `default`."""
        del found
        return True

    def differences(self, found: Found) -> tuple[str, ...]:
        return lacking(self._changeable(found), found)

    def creation(self) -> tuple[Request, ...]:
        body = {**self.content, "metadata": {"name": self.object_name, "labels": _LABELS}}
        return (Request("kubernetes", "POST", f"{self.kind_name}/{self.namespace}/", body),)

    def changes(self, found: Found) -> tuple[Request, ...]:
        if not self.differences(found):
            return ()
        return (Request("kubernetes", "PATCH", self._path, self._changeable(found)),)

    def removal(self, found: Found) -> tuple[Request, ...]:
        del found
        return (Request("kubernetes", "DELETE", self._path),)

    @property
    def _path(self) -> str:
        return f"{self.kind_name}/{self.namespace}/{self.object_name}"

    def _changeable(self, found: Found) -> Json:
        """Rules are replaced; subjects are added to those that were given before."""
        fields = {key: value for key, value in self.content.items() if key != "roleRef"}
        if "subjects" in fields:
            there = list(found.get("subjects") or ())
            fields["subjects"] = [*there, *(each for each in fields["subjects"] if each not in there)]
        return fields


def namespace_objects(namespace: WantedNamespace) -> tuple[KubernetesObject, ...]:
    """In the order in which they are made."""
    objects = [
        KubernetesObject("Namespace", "", namespace.name, {}),
        KubernetesObject("ServiceAccount", namespace.name, ACCOUNT, {}),
        KubernetesObject("Role", namespace.name, LEADER, {"rules": LEADER_RULES}),
        KubernetesObject("RoleBinding", namespace.name, LEADER, _bound_to_account(namespace.name)),
        KubernetesObject("Role", namespace.name, USER, {"rules": RULES}),
    ]
    if namespace.members:
        objects.append(KubernetesObject("RoleBinding", namespace.name, USER, binding(namespace.members)))
    return tuple(objects)


def binding(members: tuple[str, ...]) -> Json:
    """A RoleBinding's content, for members as IAM writes them. GKE knows people by their address."""
    subjects = [
        {"apiGroup": _RBAC, "kind": "Group" if kind == "group" else "User", "name": address}
        for kind, _, address in (member.partition(":") for member in members)
    ]
    return {"subjects": subjects, "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": USER}}


def _bound_to_account(namespace: str) -> Json:
    """A RoleBinding's content for the account that pods run as."""
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    return {"subjects": [account], "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": LEADER}}
