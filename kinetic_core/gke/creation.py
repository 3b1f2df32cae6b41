"""Creating Jobs: once for one job id, whatever becomes of the answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.choices import choice_number
from kinetic_core.cluster.names import CHOICE, HOSTS_SERVICE, JOB_ID, SLICE, SPEC_DIGEST
from kinetic_core.cluster.slices import HOSTS_SERVICE_MANIFEST
from kinetic_core.errors import ClusterError, ConfigurationError, JobConflict
from kinetic_core.gke.ending import jobs_of

_PATIENCE = 60.0
_POLL_SECONDS = 0.2


def create_job(api: ClusterApi, manifest: Mapping[str, Any]) -> bool:
    """Create the Job; False if it is there. A create whose answer was lost is resolved by reading back.

    One for a later accelerator of a job takes the place of those for the accelerators before it.

    Raises JobConflict if its name is taken by a different call, ConfigurationError or ClusterError.
    """
    is_new = _create(api, manifest)
    about = manifest["metadata"]
    if CHOICE in about["labels"]:
        jobs = jobs_of(api, about["namespace"], about["labels"][JOB_ID])
        last = max(map(choice_number, jobs), default=0)
        for job in jobs:  # this one, too, if others have moved on meanwhile
            if choice_number(job) < last:
                api.delete("Job", about["namespace"], job["metadata"]["name"], job["metadata"]["uid"])
    return is_new


def _create(api: ClusterApi, manifest: Mapping[str, Any]) -> bool:
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    digest = manifest["metadata"]["annotations"][SPEC_DIGEST]
    if SLICE in manifest["metadata"]["labels"]:
        _name_hosts(api, namespace)
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            api.create("Job", namespace, manifest)
        except ClusterError as exc:
            if exc.status == 409 and _is_same(api, namespace, name, digest):
                return False
            if not exc.is_passing and exc.status != 409:
                raise _explained(exc, namespace) from exc
            if time.monotonic() > give_up:
                raise
        else:
            return True
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


def _is_same(api: ClusterApi, namespace: str, name: str, digest: str) -> bool:
    """Whether the Job of that name is this one; False if it has gone, or is about to."""
    existing = api.get("Job", namespace, name)
    if existing is None or existing["metadata"].get("deletionTimestamp"):
        return False
    if existing["metadata"].get("annotations", {}).get(SPEC_DIGEST) != digest:
        job_id = existing["metadata"]["labels"].get(JOB_ID, name)
        raise JobConflict(f"{job_id} exists already and is a different call; use another job id")
    return True


def _explained(exc: ClusterError, namespace: str) -> ClusterError | ConfigurationError:
    """A refusal of the Job, with what to do about it."""
    text = str(exc)
    if exc.status == 403 and "exceeded quota" in text:
        return ConfigurationError(f"namespace {namespace!r} has no quota left for this job: {text}")
    if exc.status == 403:
        return ConfigurationError(
            f"this account may not create jobs in namespace {namespace!r}: {text}. The role it needs is in "
            "docs/guides/clusters.md"
        )
    if exc.status == 404:
        return ConfigurationError(f"the cluster has no namespace {namespace!r}: {text}")
    return exc
