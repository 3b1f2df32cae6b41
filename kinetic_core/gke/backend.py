"""The GKE backend: jobs as Kubernetes Jobs of a cluster, objects in a Cloud Storage bucket."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.choices import current
from kinetic_core.cluster.connecting import Target
from kinetic_core.cluster.informer import SELECTOR, SINGLE, Informer, with_refusal
from kinetic_core.cluster.manifest import WORK_DIR, Surroundings
from kinetic_core.cluster.names import FAILED_CREATE, JOB_ID, JOB_NAME
from kinetic_core.cluster.pod_sets import runs_in_set
from kinetic_core.cluster.pods import attempt_of, failed_by_lease, host_of
from kinetic_core.cluster.port_forward import PodPorts
from kinetic_core.cluster.verdict import observe
from kinetic_core.configuration import Settings
from kinetic_core.errors import ClusterError, ClusterUnreachable, InvalidRequest
from kinetic_core.gke.creation import create_job
from kinetic_core.gke.ending import end_jobs, jobs_of
from kinetic_core.gke.indexed_jobs import IndexedJobs
from kinetic_core.gke.leader_worker_sets import LeaderWorkerSets, check_set
from kinetic_core.gke.lines import Lines
from kinetic_core.gke.logs import JobLogs
from kinetic_core.gke.lookup import find_job
from kinetic_core.gke.queues import check_queue
from kinetic_core.gke.supply import SupplyReader
from kinetic_core.model.job import ClusterName, JobSpec
from kinetic_core.storage.gcs import GcsObjectStore

Object = dict[str, Any]
Found = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]

_CANCEL_SECONDS = 90.0
_PACE_SECONDS = 1.0
_POLL_SECONDS = 0.2
_REMOVED_AT_ONCE = 100
"""Whose ids fit into a request's line."""
_LOG = logging.getLogger(__name__)


class GkeBackend:
    """Jobs on one cluster, with `location` (`bucket` or `bucket/prefix`) for everything they store.

    As `gke` or as `pathways`, which differ in how new jobs are run: either finds and ends those of both.
    """

    def __init__(
        self,
        target: Target,
        location: str,
        settings: Settings,
        named: Target | None = None,
        name: str = "gke",
    ) -> None:
        """`named`: the cluster the settings name, which the GKE API may know."""
        self.name = name
        self.turns = None
        self._api = ClusterApi(target)
        self.lines = Lines(self._api)
        self._batches = IndexedJobs(self._api, _CANCEL_SECONDS)
        self.ports = PodPorts(target)
        self._target = target
        self._settings = settings
        self._supply = _supply(target, named or Target())
        self.store = GcsObjectStore.at(location, settings)
        self._logs = _logs(target, location, settings)
        self._sets = _sets(target, location, settings)

    @property
    def parts(self) -> IndexedJobs | None:
        """None where every input of a batch has a set of its own."""
        return self._batches if self.name == "gke" else None

    @property
    def cluster(self) -> ClusterName | None:
        """By the GKE API's names; None for one that a kubeconfig, or this pod, names."""
        target = self._target
        return (
            None if target.kubeconfig or not target.project else (target.project, target.zone, target.cluster)
        )

    @property
    def key(self) -> str:
        whose = [each.version for each in (self._target.account, self._settings.google_account) if each]
        where = f"{self._target}:{self._supply}:{self._settings.storage_emulator_host}:{self.store.uri}"
        return ":".join(["gke", where, *whose])

    def check(self, spec: JobSpec) -> tuple[str, ...]:
        """Refuses what is not there. What no node can run is told once the cluster has seen it."""
        if spec.pod.queue is not None:
            _check_queue(self._target, spec.namespace, spec.pod.queue)
        if spec.backend == "pathways":
            check_set(self._target, spec)
        return ()

    def check_output_dir(self, place: str) -> None:
        """Buckets only: a directory of a pod goes with it."""
        if not place.startswith("gs://"):
            raise InvalidRequest(
                f"output_dir={place!r} would be a directory of the pod, lost with it; give "
                "gs://bucket/prefix, or leave it out for a place of the job's own"
            )

    def surroundings(self, namespace: str) -> Surroundings:
        """Service account `kinetic` if the namespace has one, else `default`; the emulator's address."""
        environment = {"HOME": WORK_DIR}
        if self._settings.storage_emulator_host:
            environment["STORAGE_EMULATOR_HOST"] = self._settings.storage_emulator_host
        return Surroundings(_service_account(self._target, namespace), environment)

    def create(self, manifest: Mapping[str, Any]) -> bool:
        """Also the Service for the hosts of a slice, if the namespace lacks it.

        The Job for a later accelerator takes the place of those for the ones before it.
        """
        return create_job(self._api, manifest)

    def get(self, namespace: str, job_id: str) -> tuple[Object, Sequence[Object]] | None:
        """From the watch, if there is one and it knows the job; else from the API server."""
        known = _informer(self._target, namespace).get(job_id)
        if known is not None and runs_in_set(known[0]):
            return self._sets.view(*known)
        if known is not None and not (observe(*known).is_terminal and _lacks_evidence(known[1])):
            return known
        if (view := self._batches.get(namespace, job_id)) is not None:
            return view
        if (found := find_job(self._api, namespace, job_id)) is None:
            return None
        job, pods = found
        if not (observe(job, []).is_terminal or job["spec"].get("suspend") or pods):  # it wants pods
            about = f"involvedObject.name={job['metadata']['name']},reason={FAILED_CREATE}"
            told = self._events(namespace, about)
            job = with_refusal(job, pods, str(told[-1].get("message") or "") if told else "")
        return self._sets.view(job, pods) if runs_in_set(job) else (job, pods)

    def never_runs(self, found: Found) -> str | None:
        """Asks for the cluster's nodes and node pools, at most twice a minute."""
        newest = max(found[1], key=attempt_of, default=None)
        return None if newest is None else self._supply.read().refusal(newest)

    def events(self, namespace: str, pods: Sequence[str]) -> list[Object]:
        """One request for each pod."""
        selectors = [f"involvedObject.kind=Pod,involvedObject.name={pod}" for pod in pods]
        return [event for selector in selectors for event in self._events(namespace, selector)]

    def all(self, namespace: str, *, fresh: bool = True) -> dict[str, tuple[Object, list[Object]]]:
        """Two requests, or none."""
        if not fresh and (watched := _informer(self._target, namespace).jobs()) is not None:
            return watched
        jobs: dict[str, list[Object]] = {}
        for job in self._api.list("Job", namespace, {"labelSelector": SINGLE})["items"]:
            jobs.setdefault(job["metadata"]["labels"].get(JOB_ID, ""), []).append(job)
        live = {"labelSelector": SINGLE, "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        pods: dict[str, list[Object]] = {}
        for pod in self._api.list("Pod", namespace, live)["items"] if jobs else ():
            pods.setdefault(pod["metadata"]["labels"].get(JOB_ID, ""), []).append(pod)
        found = {job_id: current(some, pods.get(job_id, [])) for job_id, some in jobs.items() if job_id}
        return {job_id: each for job_id, each in found.items() if each is not None}

    def delete(self, namespace: str, job_id: str) -> None:
        """Returns when its pods have ended; the Job stays to say how. One that follows meanwhile ends too.

        Raises ClusterUnreachable if they are not proven dead after a minute and a half.
        """
        if self._batches.stop(namespace, job_id):
            return
        give_up = time.monotonic() + _CANCEL_SECONDS
        while True:
            found = jobs_of(self._api, namespace, job_id)
            alive = [job for job in found if not observe(job, []).is_terminal or self._sets.has_pods(job)]
            if not alive:
                return
            self._end(alive)
            if time.monotonic() > give_up:
                raise ClusterUnreachable(
                    f"{job_id} is cancelled, but its pods are not proven dead after {_CANCEL_SECONDS:g} s: a "
                    "node may be unreachable. Nothing replaces them"
                )
            time.sleep(_POLL_SECONDS)

    def abandon(self, namespace: str, job_id: str) -> None:
        """Let the Job fail by its deadline, now: its pods get SIGTERM, those of its set by being deleted."""
        self._end(jobs_of(self._api, namespace, job_id))

    def _end(self, jobs: Sequence[Object]) -> None:
        end_jobs(self._api, [job for job in jobs if not observe(job, []).is_terminal])
        for job in filter(runs_in_set, jobs):
            self._sets.delete(job["metadata"]["namespace"], job["metadata"]["name"])

    def release(self, namespace: str, job_id: str, succeeded: bool) -> None:
        """Delete the set of a job that has ended; its Job then says how."""
        self._sets.finish(namespace, JOB_NAME.format(job_id), succeeded)

    def let_go(self, namespace: str, job_id: str, attempt: int) -> None:
        """As Kubernetes does for a node that is taken out of service: the pod has failed by a disruption,
        and is deleted without its node's word.

        https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
        """
        found = self.get(namespace, job_id)
        for pod in found[1] if found else []:
            if attempt_of(pod) == attempt:
                name = pod["metadata"]["name"]
                self._api.patch("Pod", namespace, name, failed_by_lease(pod), "status")
                self._api.delete("Pod", namespace, name, pod["metadata"]["uid"], grace=0)

    def remove(self, namespace: str, *job_ids: str) -> None:
        """A hundred at a time, if the role allows that."""
        for start in range(0, len(job_ids), _REMOVED_AT_ONCE):
            some = job_ids[start : start + _REMOVED_AT_ONCE]
            try:
                self._api.delete_all("Job", namespace, f"{SELECTOR},{JOB_ID} in ({','.join(some)})")
            except ClusterError as exc:
                if exc.status != 403:
                    raise
                for job in (job for job_id in some for job in jobs_of(self._api, namespace, job_id)):
                    self._api.delete("Job", namespace, job["metadata"]["name"])

    def pace(self, namespace: str, wake: Callable[[], None]) -> float:
        """The watch announces what it sees."""
        _informer(self._target, namespace).tell(wake)
        return _PACE_SECONDS

    def changes(self, namespace: str, since: object | None) -> tuple[object, set[str] | None]:
        return _informer(self._target, namespace).changes(since if isinstance(since, int) else None)

    def close(self, namespace: str) -> None:
        """Let the watch of a namespace end, whose API server is about to go; whoever asks starts another."""
        _informer(self._target, namespace).close()

    def log(self, namespace: str, job_id: str, attempt: int, offset: int, host: int = 0) -> bytes | None:
        """Followed on the node while the container runs; afterwards what its runner kept in the store."""
        found = self.get(namespace, job_id)
        pods = found[1] if found else []
        pod = next((pod for pod in pods if (attempt_of(pod), host_of(pod)) == (attempt, host)), None)
        return None if pod is None else self._logs.read(namespace, job_id, pod, offset)

    def _events(self, namespace: str, selector: str) -> list[Object]:
        try:
            found: list[Object] = self._api.list("Event", namespace, {"fieldSelector": selector})["items"]
        except ClusterError as exc:
            if exc.status != 403:
                raise
            return []  # a role without events is told less
        return found


def _lacks_evidence(pods: list[Object]) -> bool:
    """Whether the watch of pods is behind that of jobs: of a Job that has ended, no pod goes on."""
    return any((pod.get("status") or {}).get("phase") in ("Pending", "Running") for pod in pods)


@functools.cache
def _informer(target: Target, namespace: str) -> Informer:
    """One for a cluster, a namespace and this process."""
    return Informer(ClusterApi(target), namespace)


@functools.cache
def _check_queue(target: Target, namespace: str, queue: str) -> None:
    """Once for a process: what was there is not asked for again."""
    check_queue(ClusterApi(target), namespace, queue)


@functools.cache
def _supply(target: Target, named: Target) -> SupplyReader:
    return SupplyReader(ClusterApi(target), named)


@functools.cache
def _logs(target: Target, location: str, settings: Settings) -> JobLogs:
    """One for all handles of a place: it keeps what it follows, and what it has read."""
    return JobLogs(ClusterApi(target), GcsObjectStore.at(location, settings))


@functools.cache
def _sets(target: Target, location: str, settings: Settings) -> LeaderWorkerSets:
    """One for all handles of a place: it remembers the pods that it has seen."""
    return LeaderWorkerSets(ClusterApi(target), GcsObjectStore.at(location, settings))


@functools.cache
def _service_account(target: Target, namespace: str) -> str:
    try:
        found = ClusterApi(target).get("ServiceAccount", namespace, "kinetic")
    except ClusterError as exc:
        if exc.status != 403:
            raise
        found = None
    if found is None:
        _LOG.warning(
            "kinetic: namespace %s has no service account 'kinetic' that can be seen: jobs run as 'default'",
            namespace,
        )
    return "default" if found is None else "kinetic"
