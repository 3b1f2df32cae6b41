"""What a cluster has in its project: enabled APIs, service accounts, a registry, buckets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinetic_core.images.registry import Repository
from kinetic_core.provision.resources import MINE, Found, Json, Request, Resource, lacking
from kinetic_core.provision.specification import Wanted

APIS = tuple(
    f"{name}.googleapis.com"
    for name in (
        "cloudresourcemanager",
        "compute",
        "container",
        "artifactregistry",
        "cloudbuild",
        "storage",
        "iam",
        "secretmanager",
    )
)
COMPUTE = "compute.googleapis.com"
"""Which says what machines there are, once it is enabled."""
RETENTION_DAYS = 30
_AGEING = ("jobs/", "index/", "batches/")
"""What goes by age. Packs, trees, data and their markers, and runners are content that is shared by name:
an old one may be what today's job reads, so that no rule may touch it. Outputs are the user's own."""
_AGEING_BUILDS = ("log-", "source/")


@dataclass(frozen=True)
class Services(Resource):
    """The APIs of the project, enabled by one request; they stay enabled."""

    kind = "APIs"
    project: str

    @property
    def name(self) -> str:
        return self.project

    @property
    def permissions(self) -> tuple[str, ...]:
        return ("serviceusage.services.enable",)

    @property
    def reading(self) -> Request:
        path = f"projects/{self.project}/services?filter=state:ENABLED&pageSize=200"
        return Request("serviceusage", "GET", path)

    def differences(self, found: Found) -> tuple[str, ...]:
        on = {service["name"].rpartition("/")[2] for service in found.get("services", ())}
        return tuple(api for api in APIS if api not in on)

    def creation(self) -> tuple[Request, ...]:
        return self.changes({})

    def changes(self, found: Found) -> tuple[Request, ...]:
        missing = list(self.differences(found))
        path = f"projects/{self.project}/services:batchEnable"
        return (Request("serviceusage", "POST", path, {"serviceIds": missing}),) if missing else ()


@dataclass(frozen=True)
class Account(Resource):
    """A service account: of the nodes, or of the builds."""

    kind = "service account"
    wanted: Wanted
    use: str

    @property
    def name(self) -> str:
        return self.wanted.account(self.use)

    @property
    def permissions(self) -> tuple[str, ...]:
        return ("iam.serviceAccounts.create",)

    @property
    def reading(self) -> Request:
        return Request("iam", "GET", self._path)

    def mine(self, found: Found) -> bool:
        return str(found.get("description", "")).startswith("kinetic: ")

    def creation(self) -> tuple[Request, ...]:
        about = {"displayName": self.name, "description": f"kinetic: {self.use} of {self.wanted.cluster}"}
        body = {"accountId": self.name, "serviceAccount": about}
        return (Request("iam", "POST", f"projects/{self.wanted.project}/serviceAccounts", body),)

    def removal(self, found: Found) -> tuple[Request, ...]:
        del found
        return (Request("iam", "DELETE", self._path),)

    @property
    def _path(self) -> str:
        return f"projects/{self.wanted.project}/serviceAccounts/{self.wanted.email(self.use)}"


def repository_of(wanted: Wanted) -> Repository:
    """Where the cluster's images are."""
    return Repository.of_cluster(wanted.project, wanted.location, wanted.cluster)


@dataclass(frozen=True)
class Registry(Resource):
    """The repository of images."""

    kind = "registry"
    wanted: Wanted

    @property
    def name(self) -> str:
        return repository_of(self.wanted).address

    @property
    def permissions(self) -> tuple[str, ...]:
        return ("artifactregistry.repositories.create",)

    @property
    def reading(self) -> Request:
        return Request("artifactregistry", "GET", repository_of(self.wanted).path)

    def mine(self, found: Found) -> bool:
        return bool((found.get("labels") or {}).get("kinetic"))

    def creation(self) -> tuple[Request, ...]:
        parent, _, name = repository_of(self.wanted).path.rpartition("/")
        body = {"format": "DOCKER", "labels": {**MINE, "kinetic-cluster": self.wanted.cluster}}
        return (Request("artifactregistry", "POST", f"{parent}?repositoryId={name}", body),)

    def removal(self, found: Found) -> tuple[Request, ...]:
        del found
        return (Request("artifactregistry", "DELETE", repository_of(self.wanted).path),)


@dataclass(frozen=True)
class Bucket(Resource):
    """The bucket of jobs, in which each namespace has a prefix, or that of builds."""

    kind = "bucket"
    wanted: Wanted
    use: str

    @property
    def name(self) -> str:
        return self.wanted.jobs_bucket if self.use == "jobs" else self.wanted.builds_bucket

    @property
    def permissions(self) -> tuple[str, ...]:
        return ("storage.buckets.create", "storage.buckets.update")

    @property
    def reading(self) -> Request:
        return Request("storage", "GET", f"b/{self.name}")

    def mine(self, found: Found) -> bool:
        return bool((found.get("labels") or {}).get("kinetic"))

    def fixed(self, found: Found) -> tuple[str, ...]:
        return lacking({"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}, found)

    def differences(self, found: Found) -> tuple[str, ...]:
        there = set(_prefixes_of(filter(_is_ageing, _rules(found))))
        return tuple(f"ageing of {prefix}" for prefix in self._prefixes() if prefix not in there)

    def creation(self) -> tuple[Request, ...]:
        place = self.wanted.region if self.use == "jobs" else repository_of(self.wanted).location
        body = {
            "name": self.name,
            "location": place.upper(),
            "labels": {**MINE, "kinetic-cluster": self.wanted.cluster},
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "enforced",
            },
            "lifecycle": _lifecycle(self._prefixes()),
        }
        return (Request("storage", "POST", f"b?project={self.wanted.project}", body),)

    def changes(self, found: Found) -> tuple[Request, ...]:
        """Other rules, with their ages, and other namespaces' prefixes stay."""
        if not self.differences(found):
            return ()
        rules = _rules(found)
        kept = [rule for rule in rules if not _is_ours(rule)]
        elsewhere = set(_prefixes_of(filter(_is_ageing, kept)))
        prefixes = {*_prefixes_of(filter(_is_ours, rules)), *(set(self._prefixes()) - elsewhere)}
        body = {"lifecycle": {"rule": [*kept, *_lifecycle(sorted(prefixes))["rule"]]}}
        return (Request("storage", "PATCH", f"b/{self.name}", body),)

    def removal(self, found: Found) -> tuple[Request, ...]:
        del found
        return (Request("objects", "DELETE", self.name), Request("storage", "DELETE", f"b/{self.name}"))

    def _prefixes(self) -> list[str]:
        if self.use == "builds":
            return sorted(_AGEING_BUILDS)
        return sorted(f"{namespace.name}/{kind}" for namespace in self.wanted.namespaces for kind in _AGEING)


def _lifecycle(prefixes: list[str]) -> Json:
    """Rules of at most 50 prefixes each, as many as Cloud Storage takes in one."""
    return {
        "rule": [
            {
                "action": {"type": "Delete"},
                "condition": {"age": RETENTION_DAYS, "matchesPrefix": prefixes[start : start + 50]},
            }
            for start in range(0, len(prefixes), 50)
        ]
    }


def _rules(found: Found) -> list[Json]:
    return list((found.get("lifecycle") or {}).get("rule") or ())


def _is_ageing(rule: Json) -> bool:
    """Whether a rule deletes by age what has some prefixes, whoever wrote it."""
    condition = rule.get("condition") or {}
    return set(condition) == {"age", "matchesPrefix"} and rule["action"].get("type") == "Delete"


def _is_ours(rule: Json) -> bool:
    """Whether a rule may be written anew with more prefixes: one of another age keeps its age."""
    return _is_ageing(rule) and int(rule["condition"]["age"]) == RETENTION_DAYS


def _prefixes_of(rules: Iterable[Json]) -> list[str]:
    return [prefix for rule in rules for prefix in rule["condition"]["matchesPrefix"]]
