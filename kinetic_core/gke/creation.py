"""Creating Jobs: once for one job id, whatever becomes of the answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.choices import choice_number
from kinetic_core.cluster.names import CHOICE, HOSTS_SERVICE, JOB_ID, SLICE, SPEC_DIGEST
from kinetic_core.cluster.pod_sets import leader_worker_set, runs_in_set
from kinetic_core.cluster.slices import HOSTS_SERVICE_MANIFEST
from kinetic_core.cluster.verdict import observe
from kinetic_core.errors import ClusterError, ConfigurationError, JobConflict
from kinetic_core.gke.ending import jobs_of

_PATIENCE = 60.0
_POLL_SECONDS = 0.2


def create_job(api: ClusterApi, manifest: Mapping[str, Any]) -> bool:
    """Create the Job, and the LeaderWorkerSet that runs it, if one does; False if the Job is there.

    One for a later accelerator of a job takes the place of those for the accelerators before it.

    A create whose answer was lost is resolved by reading back. Raises JobConflict if its name is taken by a
    different call, ConfigurationError or ClusterError.
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
        create_object(api, leader_worker_set(manifest, job["metadata"]["uid"]))
    except BaseException:
        if made:
            api.delete("Job", manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        raise
    return made


def create_object(api: ClusterApi, manifest: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The object that now exists, and whether this call made it: what is said of `create_job` holds."""
    namespace, kind = manifest["metadata"]["namespace"], manifest["kind"]
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            return api.create(kind, namespace, manifest), True
        except ClusterError as exc:
            if exc.status == 409 and (existing := _same(api, manifest)) is not None:
                return existing, False
            if not exc.is_passing and exc.status != 409:
                raise _explained(exc, namespace, kind) from exc
            if time.monotonic() > give_up:
                raise
        time.sleep(_POLL_SECONDS)


def _name_hosts(api: ClusterApi, namespace: str) -> None:
    """Make the Service by which hosts find each other, unless the namespace has it."""
    if api.get("Service", namespace, HOSTS_SERVICE) is not None:
        return
    try:
        api.create("Service", namespace, HOSTS_SERVICE_MANIFEST)
    except ClusterError as exc:
        if exc.status == 403:
            raise ConfigurationError(
                f"namespace {namespace!r} has no Service {HOSTS_SERVICE!r}, by which the hosts of a "
                f"slice find each other, and this account may not make it: {exc}. "
                "See docs/guides/multi-host.md"
            ) from exc
        if exc.status != 409:  # another submitter was quicker
            raise


def _same(api: ClusterApi, manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The object of that name, which is of this call; None if it has gone, or is about to."""
    wanted = manifest["metadata"]
    existing = api.get(manifest["kind"], wanted["namespace"], wanted["name"])
    if existing is None or existing["metadata"].get("deletionTimestamp"):
        return None
    if existing["metadata"].get("annotations", {}).get(SPEC_DIGEST) != wanted["annotations"][SPEC_DIGEST]:
        job_id = existing["metadata"].get("labels", {}).get(JOB_ID, wanted["name"])
        raise JobConflict(f"{job_id} exists already and is a different call; use another job id")
    return existing


def _explained(exc: ClusterError, namespace: str, kind: str) -> ClusterError | ConfigurationError:
    """A refusal of the object, with what to do about it."""
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
