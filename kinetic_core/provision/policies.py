"""Who may do what: grants of least privilege, kept in the IAM policies of project, registry and buckets.

Pods have no service account of Google's: a grant names their Kubernetes one directly, as "Workload Identity
Federation for GKE" describes, and reaches only the prefix of their namespace. Conditions on objects and on
the prefix of a listing: Cloud Storage's "IAM Conditions" page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kinetic_core.provision.project import repository_of
from kinetic_core.provision.resources import Found, Json, Request, Resource
from kinetic_core.provision.wanted import Wanted

ACCOUNT = "kinetic"
"""The Kubernetes service account that jobs run as."""


@dataclass(frozen=True)
class Grant:
    """A role for a member; `prefix` limits it to objects of a bucket whose names begin so."""

    role: str
    member: str
    bucket: str = ""
    prefix: str = ""

    def condition(self) -> Json | None:
        """As IAM writes it."""
        if not self.prefix:
            return None
        objects = f"projects/_/buckets/{self.bucket}/objects/{self.prefix}"
        listing = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
        expression = f"resource.name.startsWith('{objects}') || {listing}.startsWith('{self.prefix}')"
        return {"title": f"kinetic {self.prefix}", "expression": expression}

    def is_in(self, policy: Found) -> bool:
        return any(
            self.member in binding.get("members", ())
            for binding in policy.get("bindings", ())
            if _same(binding, self)
        )

    def is_left_in(self, policy: Found) -> bool:
        """Whether it is there, or anybody's with its prefix."""
        same = [binding for binding in policy.get("bindings", ()) if _same(binding, self)]
        return any(self.prefix or self.member in binding.get("members", ()) for binding in same)


@dataclass(frozen=True)
class Policy(Resource):
    """Grants in one policy. Those of others in it are kept, and its etag makes a change to another version of
    it fail, to be made again. With `absent`, the grants are to be taken away, and with one that has a prefix
    everybody's on that prefix.
    """

    kind = "grants on"
    reads_first = True
    owner: str
    getting: Request
    setting: Request
    grants: tuple[Grant, ...]
    permission: str
    absent: bool = False

    @property
    def permissions(self) -> tuple[str, ...]:
        return (self.permission,)

    @property
    def name(self) -> str:
        return self.owner

    @property
    def reading(self) -> Request:
        return self.getting

    def differences(self, found: Found) -> tuple[str, ...]:
        there = Grant.is_left_in if self.absent else Grant.is_in
        wrong = [grant for grant in self.grants if there(grant, found) == self.absent]
        word = "no " if self.absent else ""
        return tuple(f"{word}{grant.role} for {_short(grant.member)}" for grant in wrong)

    def creation(self) -> tuple[Request, ...]:
        return self.changes({})

    def changes(self, found: Found) -> tuple[Request, ...]:
        if not self.differences(found):
            return ()
        policy = _changed(found, self.grants, self.absent)
        body = {"policy": policy} if self.setting.method == "POST" else policy
        return (Request(self.setting.service, self.setting.method, self.setting.path, body),)


def project_policy(wanted: Wanted, *, absent: bool = False) -> Policy:
    """What nodes and builds need of the project: to write logs and metrics."""
    path = f"projects/{wanted.project}"
    grants = (
        Grant("roles/container.defaultNodeServiceAccount", f"serviceAccount:{wanted.email('nodes')}"),
        Grant("roles/logging.logWriter", f"serviceAccount:{wanted.email('builds')}"),
    )
    version = {"options": {"requestedPolicyVersion": 3}}
    return Policy(
        f"project {wanted.project}",
        Request("cloudresourcemanager", "POST", f"{path}:getIamPolicy", version),
        Request("cloudresourcemanager", "POST", f"{path}:setIamPolicy"),
        grants,
        "resourcemanager.projects.setIamPolicy",
        absent,
    )


def registry_policy(wanted: Wanted) -> Policy:
    """Nodes pull, builds push."""
    repository = repository_of(wanted)
    grants = (
        Grant("roles/artifactregistry.reader", f"serviceAccount:{wanted.email('nodes')}"),
        Grant("roles/artifactregistry.writer", f"serviceAccount:{wanted.email('builds')}"),
    )
    return Policy(
        f"registry {repository.name}",
        Request(
            "artifactregistry", "GET", f"{repository.path}:getIamPolicy?options.requestedPolicyVersion=3"
        ),
        Request("artifactregistry", "POST", f"{repository.path}:setIamPolicy"),
        grants,
        "artifactregistry.repositories.setIamPolicy",
    )


def builds_policy(wanted: Wanted) -> Policy:
    """Builds, and nobody's pods."""
    grant = Grant("roles/storage.objectUser", f"serviceAccount:{wanted.email('builds')}")
    return _bucket_policy(wanted.builds_bucket, (grant,))


def jobs_policy(wanted: Wanted, number: str, *, absent: bool = False) -> Policy:
    """Each namespace's pods and people, below its own prefix. `number` is the project's."""
    role, bucket = "roles/storage.objectUser", wanted.jobs_bucket
    grants = tuple(
        Grant(role, member, bucket, f"{namespace.name}/")
        for namespace in wanted.namespaces
        for member in (principal(wanted.project, number, namespace.name), *namespace.members)
    )
    return _bucket_policy(bucket, grants, absent)


def principal(project: str, number: str, namespace: str) -> str:
    """IAM's name of the service account that a namespace's jobs run as."""
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
    return f"principal://iam.googleapis.com/{pool}/subject/ns/{namespace}/sa/{ACCOUNT}"


def _bucket_policy(bucket: str, grants: tuple[Grant, ...], absent: bool = False) -> Policy:
    return Policy(
        f"bucket {bucket}",
        Request("storage", "GET", f"b/{bucket}/iam?optionsRequestedPolicyVersion=3"),
        Request("storage", "PUT", f"b/{bucket}/iam"),
        grants,
        "storage.buckets.setIamPolicy",
        absent,
    )


def _changed(policy: Found, grants: tuple[Grant, ...], absent: bool) -> Json:
    bindings: list[dict[str, Any]] = [
        {**binding, "members": list(binding.get("members", ()))} for binding in policy.get("bindings", ())
    ]
    for grant in grants:
        same = next((binding for binding in bindings if _same(binding, grant)), None)
        if absent:
            if same is not None:
                kept = [] if grant.prefix else [one for one in same["members"] if one != grant.member]
                same["members"] = kept
        elif same is None:
            condition = grant.condition()
            extra = {"condition": condition} if condition else {}
            bindings.append({"role": grant.role, "members": [grant.member], **extra})
        elif grant.member not in same["members"]:
            same["members"].append(grant.member)
    left = [binding for binding in bindings if binding["members"]]
    version = 3 if any("condition" in binding for binding in left) else policy.get("version", 1)
    return {**policy, "bindings": left, "version": version}


def _same(binding: Found, grant: Grant) -> bool:
    there, wanted = binding.get("condition") or {}, grant.condition() or {}
    return binding.get("role") == grant.role and there.get("expression") == wanted.get("expression")


def _short(member: str) -> str:
    if member.startswith("serviceAccount:"):
        return member.removeprefix("serviceAccount:").partition("@")[0]
    return member.rpartition("/subject/")[2]
