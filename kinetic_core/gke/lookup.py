"""A job's objects by its id, for as few requests as tell how it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, overload

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.choices import current
from kinetic_core.cluster.informer import SINGLE
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.cluster.pod_sets import runs_in_set
from kinetic_core.cluster.verdict import observe
from kinetic_core.gke.ending import jobs_of
from kinetic_core.model.states import JobStatus

Object = dict[str, Any]


class Later(Sequence[Object]):
    """Objects that are asked for when somebody looks at them. Raises then what asking raises."""

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
    """The Job that counts and its pods, None if there is none.

    How a Job has failed is in the store, normally: its pods are asked for by those who want to see them.
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

    failed = observe(job, ()).status is JobStatus.FAILED and not runs_in_set(job)
    return job, Later(pods) if failed else pods()
