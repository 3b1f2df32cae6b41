"""Creation of Jobs: once for one job id, even if answers of the API server are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, overload

from kinetic_core.backends.kubernetes.client import ClusterApi, Object
from kinetic_core.backends.kubernetes.fallbacks import choice_number, current
from kinetic_core.backends.kubernetes.names import (
    CANCELLED,
    CHOICE,
    HOSTS_SERVICE,
    JOB_ID,
    SLICE,
    SPEC_DIGEST,
)
from kinetic_core.backends.kubernetes.set_objects import leader_worker_set, runs_in_set
from kinetic_core.backends.kubernetes.slices import HOSTS_SERVICE_MANIFEST
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.backends.kubernetes.watch_cache import SELECTOR, SINGLE
from kinetic_core.errors import ClusterError, ConfigurationError, JobConflict
from kinetic_core.retry import patiently


def jobs_of(api: ClusterApi, namespace: str, job_id: str) -> list[Object]:
    """List the Jobs of a job: several only for the moment in which it moves to its next accelerator."""
    found: list[Object] = api.list("Job", namespace, {"labelSelector": f"{SELECTOR},{JOB_ID}={job_id}"})[
        "items"
    ]
    return found


def end_jobs(api: ClusterApi, jobs: Sequence[Object]) -> None:
    """Fail Jobs that were not ended yet by their deadline, now: their pods get SIGTERM (ADR 0012)."""
    for job in jobs:
        about = job["metadata"]
        if CANCELLED in (about.get("annotations") or {}):
            continue
        body: Object = {
            "metadata": {"annotations": {CANCELLED: "true"}},
            # A Job that a queue has suspended has no deadline; its pods find the mark and run nothing.
            "spec": {"activeDeadlineSeconds": 1, "suspend": False},
        }
        api.patch("Job", about["namespace"], about["name"], body)


_PATIENCE = 60.0


def create_job(api: ClusterApi, manifest: Mapping[str, Any]) -> bool:
    """Create the Job, and the LeaderWorkerSet that runs it, if one does; return False if the Job exists.

    A Job for a later accelerator replaces those for the accelerators before it. A create whose answer was
    lost is resolved by reading back. Raises JobConflict if a different call has taken the name,
    ConfigurationError or ClusterError.
    """
    about = manifest["metadata"]
    if runs_in_set(manifest):
        return _create_with_set(api, manifest)
    if SLICE in about["labels"]:
        _name_hosts(api, about["namespace"])
    is_new = create_object(api, manifest)[1]
    if CHOICE in about["labels"]:
        jobs = jobs_of(api, about["namespace"], about["labels"][JOB_ID])
        last = max(map(choice_number, jobs), default=0)
        for job in jobs:  # this one, too, if others have moved on meanwhile
            if choice_number(job) < last:
                api.delete("Job", about["namespace"], job["metadata"]["name"], job["metadata"]["uid"])
    return is_new


def _create_with_set(api: ClusterApi, manifest: Mapping[str, Any]) -> bool:
    job, made = create_object(api, manifest)
    if observe(job, []).is_terminal:
        return made
    try:
        # A set that has gone because its host 0 knew the end comes again, and its pods run nothing.
        create_object(api, leader_worker_set(_as_made(manifest, job), job["metadata"]["uid"]))
    except BaseException:
        if made and not _may_have_set(api, job):
            api.delete("Job", job["metadata"]["namespace"], job["metadata"]["name"], job["metadata"]["uid"])
        raise
    return made


def _may_have_set(api: ClusterApi, job: Mapping[str, Any]) -> bool:
    """Return whether a Job may have its set: whoever has adopted the Job meanwhile has made it."""
    try:
        found = api.get("LeaderWorkerSet", job["metadata"]["namespace"], job["metadata"]["name"])
    except ClusterError as exc:
        return exc.status != 403  # who may not see sets has made none
    owners = [] if found is None else found["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def _as_made(manifest: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest with image and environment of the existing Job, whose key counts."""
    template = manifest["spec"]["template"]
    container, made = (each["spec"]["template"]["spec"]["containers"][0] for each in (manifest, job))
    container = {**container, "image": made["image"], "env": made["env"]}
    pod = {**template["spec"], "containers": [container]}
    return {**manifest, "spec": {**manifest["spec"], "template": {**template, "spec": pod}}}


def create_object(api: ClusterApi, manifest: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the object that now exists, and whether this call created it. Raises as `create_job` does."""
    namespace, kind = manifest["metadata"]["namespace"], manifest["kind"]

    def create() -> tuple[Mapping[str, Any], bool]:
        found, is_new = api.create_or_read(kind, namespace, manifest)
        if not is_new and not _is_same(found, manifest):
            raise ClusterError(f"{kind} {manifest['metadata']['name']} is still being deleted", 409)
        return found, is_new

    try:
        return patiently(create, _PATIENCE, again=lambda exc: isinstance(exc, ClusterError) and _passes(exc))
    except ClusterError as exc:
        if _passes(exc):
            raise
        raise _explained(exc, namespace, kind) from exc


def _passes(exc: ClusterError) -> bool:
    """Return whether a creation may succeed later; 409 is of an object that has gone, or is about to go."""
    return exc.is_passing or exc.status == 409


def _name_hosts(api: ClusterApi, namespace: str) -> None:
    """Create the Service by which hosts find each other, unless the namespace has it."""
    if api.get("Service", namespace, HOSTS_SERVICE) is not None:
        return
    try:
        api.create_or_read("Service", namespace, HOSTS_SERVICE_MANIFEST)
    except ClusterError as exc:
        if exc.status == 403:
            raise ConfigurationError(
                f"namespace {namespace!r} has no Service {HOSTS_SERVICE!r}, by which the hosts of a "
                f"slice find each other, and this account may not make it: {exc}. "
                "See docs/guides/multi-host.md"
            ) from exc
        raise


def _is_same(existing: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Return whether an object stays and is of the same call. Raises JobConflict if it is of another one."""
    wanted = manifest["metadata"]
    if existing["metadata"].get("deletionTimestamp"):
        return False
    if existing["metadata"].get("annotations", {}).get(SPEC_DIGEST) != wanted["annotations"][SPEC_DIGEST]:
        job_id = existing["metadata"].get("labels", {}).get(JOB_ID, wanted["name"])
        raise JobConflict(f"{job_id} exists already and is a different call; use another job id")
    return True


def _explained(exc: ClusterError, namespace: str, kind: str) -> ClusterError | ConfigurationError:
    """Translate the refusal of an object into an error that says what to do."""
    text = str(exc)
    if exc.status == 403 and "exceeded quota" in text:
        return ConfigurationError(f"namespace {namespace!r} has no quota left for this job: {text}")
    if exc.status == 403:
        return ConfigurationError(
            f"this account may not create {kind.lower()}s in namespace {namespace!r}: {text}. The role it "
            "needs is in docs/guides/clusters.md"
        )
    if exc.status == 404:
        return ConfigurationError(f"the cluster has no namespace {namespace!r}, or no {kind}s: {text}")
    return exc


class Later(Sequence[Object]):
    """Sequence of objects that are requested at first use, which then raises as the request does."""

    def __init__(self, ask: Callable[[], Sequence[Object]]) -> None:
        self._ask = ask

    @cached_property
    def _asked(self) -> Sequence[Object]:
        return self._ask()

    @overload
    def __getitem__(self, index: int) -> Object: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Object]: ...
    def __getitem__(self, index: int | slice) -> Object | Sequence[Object]:
        return self._asked[index]

    def __len__(self) -> int:
        return len(self._asked)


def find_job(api: ClusterApi, namespace: str, job_id: str) -> tuple[Object, Sequence[Object]] | None:
    """Return the Job that counts and its pods, None if there is none.

    The pods of a failed Job are requested at first use, because the store normally says how it failed.
    """
    jobs = jobs_of(api, namespace, job_id)
    known = current(jobs, [])
    if known is None:
        return None
    job, _ = known

    def pods() -> Sequence[Object]:
        query = {"labelSelector": f"{SINGLE},{JOB_ID}={job_id}"}
        found = current(jobs, api.list("Pod", namespace, query)["items"])
        return found[1] if found else []

    failed = observe(job, ()).status.ended_without_value and not runs_in_set(job)
    return job, Later(pods) if failed else pods()


_GROUP = "kueue.x-k8s.io"
_VERSIONS = ("v1beta2", "v1beta1")
"""Versions of Kueue's API; they do not differ in the fields that are read here."""


class Reader(Protocol):
    """Requests of `ClusterApi` that `check_queue` needs."""

    def versions(self, group: str) -> frozenset[str]:
        """Return the server's versions of an API group."""

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return one object, None if there is none."""


def check_queue(api: Reader, namespace: str, queue: str) -> None:
    """Raise ConfigurationError if the cluster has no Kueue, or the namespace no such LocalQueue.

    The queue is assumed to exist if the role may not read queues.
    """
    try:
        served = api.versions(_GROUP)
        if not served:
            raise ConfigurationError(
                f"queue={queue!r} is a queue of Kueue, which this cluster does not have: install it "
                "(`kinetic up --kueue`, or https://kueue.sigs.k8s.io/docs/installation/), or leave queue= out"
            )
        version = next((one for one in _VERSIONS if one in served), None)
        if version is not None and api.get(f"LocalQueue/{version}", namespace, queue) is None:
            raise ConfigurationError(
                f"queue={queue!r}: namespace {namespace!r} has no LocalQueue of that name. `kubectl get "
                f"localqueues -n {namespace}` names those it has"
            )
    except ClusterError as exc:
        if exc.status != 403:
            raise
