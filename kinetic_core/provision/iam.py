"""Who may do what: grants of least privilege, kept in the IAM policies of project, registry and buckets.

Pods have no service account of Google's: a grant names their Kubernetes one directly, as "Workload Identity
Federation for GKE" describes, and reaches only the prefix of their namespace. Conditions on objects and on
the prefix of a listing: Cloud Storage's "IAM Conditions" page.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core.provision.project import repository_of
from kinetic_core.provision.resources import Found, Json, Request, Resource
from kinetic_core.provision.specification import Wanted

ACCOUNT = "kinetic"
"""The Kubernetes service account that jobs run as."""
READ, CREATE, USE = (f"roles/storage.object{kind}" for kind in ("Viewer", "Creator", "User"))
"""Read and list objects; create those that are not there; all of it, and replace and delete."""


@dataclass(frozen=True)
class Condition:
    """To which objects of a bucket a grant is limited, in IAM's words."""

    title: str
    expression: str


@dataclass(frozen=True)
class Grant:
    """A role for a member, perhaps on a condition."""

    role: str
    member: str
    limit: Condition | None = None

    def condition(self) -> Json | None:
        """As IAM writes it."""
        return None if self.limit is None else asdict(self.limit)

    def is_in(self, policy: Found) -> bool:
        return any(
            self.member in binding.get("members", ())
            for binding in policy.get("bindings", ())
            if _same(binding, self)
        )

    def is_left_in(self, policy: Found) -> bool:
        """Whether it is there, or anybody's on its condition."""
        same = [binding for binding in policy.get("bindings", ()) if _same(binding, self)]
        return any(self.limit or self.member in binding.get("members", ()) for binding in same)


@dataclass(frozen=True)
class Policy(Resource):
    """Grants in one policy. Those of others in it are kept, and its etag makes a change to another version of
    it fail, to be made again. With `absent`, the grants are to be taken away, and with one on a condition
    everybody's on that condition. `former` are grants of earlier versions, which are taken away in any case.
    """

    kind = "grants on"
    reads_first = True
    owner: str
    getting: Request
    setting: Request
    grants: tuple[Grant, ...]
    permission: str
    absent: bool = False
    former: tuple[Grant, ...] = ()

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
        former = [grant for grant in self.former if grant.is_in(found)]
        return (
            *(f"{word}{grant.role} for {_short(grant.member)}" for grant in wrong),
            *(f"no {grant.role} for {_short(grant.member)} on all of it" for grant in former),
        )

    def creation(self) -> tuple[Request, ...]:
        return self.changes({})

    def changes(self, found: Found) -> tuple[Request, ...]:
        if not self.differences(found):
            return ()
        policy = _changed(found, self.grants, self.absent, self.former)
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
    """Each namespace's pods and people, below its own prefix. `number` is the project's.

    People may do everything there; pods what the runner and user code need. Earlier versions let pods do
    everything, too.
    """
    bucket = wanted.jobs_bucket
    grants: list[Grant] = []
    former: list[Grant] = []
    for namespace in wanted.namespaces:
        pods = principal(wanted.project, number, namespace.name)
        everything = below(bucket, f"{namespace.name}/")
        former.append(Grant(USE, pods, everything))
        grants += pod_grants(pods, bucket, namespace.name)
        grants += (Grant(USE, member, everything) for member in namespace.members)
    if absent:
        return _bucket_policy(bucket, (*grants, *former), absent)
    return _bucket_policy(bucket, tuple(grants), former=tuple(former))


def pod_grants(pods: str, bucket: str, namespace: str) -> tuple[Grant, ...]:
    """What the pods of a namespace need of a bucket: to read all that is below the namespace's prefix, to add
    what tells of their jobs, and to replace nothing but outputs and the notes that an attempt renews.

    They can neither replace nor delete, nor make beforehand, what others execute or are shown: runners,
    project files, data, payloads, handles, entries of lists, manifests of batches.
    """
    prefix = f"{namespace}/"
    jobs, batches, outputs = (_named(bucket, f"{prefix}{kind}/") for kind in ("jobs", "batches", "outputs"))
    clients = " && ".join(f"!{_ending(each)}" for each in _OF_CLIENTS)
    renewed = " || ".join(_ending(f"/{each}") for each in object_names.RENEWED)
    of_batches = " || ".join(map(_ending, (_STOPPED, object_names.CLAIM_END, object_names.SEGMENT_END)))
    create = f"{jobs} && {clients} || {batches} && ({of_batches})"
    replace = f"{outputs} || {jobs} && ({renewed})"
    return (
        Grant(READ, pods, below(bucket, prefix)),
        Grant(CREATE, pods, Condition(f"kinetic {prefix} of jobs", create)),
        Grant(USE, pods, Condition(f"kinetic {prefix} outputs and notes", replace)),
    )


def below(bucket: str, prefix: str) -> Condition:
    """Objects whose names begin so, and listings of them."""
    listing = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
    return Condition(f"kinetic {prefix}", f"{_named(bucket, prefix)} || {listing}.startsWith('{prefix}')")


_OF_CLIENTS = (
    *(f"/{name('').rpartition('/')[2]}" for name in (object_names.handle, object_names.cancel)),
    object_names.PAYLOAD_END,
)
_STOPPED = f"/{object_names.stop('').rpartition('/')[2]}"


def _named(bucket: str, prefix: str) -> str:
    return f"resource.name.startsWith('projects/_/buckets/{bucket}/objects/{prefix}')"


def _ending(name: str) -> str:
    return f"resource.name.endsWith('{name}')"


def principal(project: str, number: str, namespace: str) -> str:
    """IAM's name of the service account that a namespace's jobs run as."""
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
    return f"principal://iam.googleapis.com/{pool}/subject/ns/{namespace}/sa/{ACCOUNT}"


def _bucket_policy(
    bucket: str, grants: tuple[Grant, ...], absent: bool = False, former: tuple[Grant, ...] = ()
) -> Policy:
    return Policy(
        f"bucket {bucket}",
        Request("storage", "GET", f"b/{bucket}/iam?optionsRequestedPolicyVersion=3"),
        Request("storage", "PUT", f"b/{bucket}/iam"),
        grants,
        "storage.buckets.setIamPolicy",
        absent,
        former,
    )


def _changed(policy: Found, grants: tuple[Grant, ...], absent: bool, former: tuple[Grant, ...] = ()) -> Json:
    bindings: list[dict[str, Any]] = [
        {**binding, "members": list(binding.get("members", ()))} for binding in policy.get("bindings", ())
    ]
    for grant in grants:
        same = next((binding for binding in bindings if _same(binding, grant)), None)
        if absent:
            if same is not None:
                kept = [] if grant.limit else [one for one in same["members"] if one != grant.member]
                same["members"] = kept
        elif same is None:
            condition = grant.condition()
            extra = {"condition": condition} if condition else {}
            bindings.append({"role": grant.role, "members": [grant.member], **extra})
        elif grant.member not in same["members"]:
            same["members"].append(grant.member)
    for grant in former:
        for binding in bindings:
            if _same(binding, grant):
                binding["members"] = [one for one in binding["members"] if one != grant.member]
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
