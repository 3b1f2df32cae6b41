"""GKE backend: jobs as Kubernetes Jobs of a cluster, objects in a Cloud Storage bucket."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.backends.kubernetes.attempts import ClaimedAttempts
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.fallbacks import current
from kinetic_core.backends.kubernetes.indexed_jobs import IndexedJobs
from kinetic_core.backends.kubernetes.job_objects import (
    Later,
    check_queue,
    create_job,
    end_jobs,
    find_job,
    jobs_of,
)
from kinetic_core.backends.kubernetes.leader_worker_sets import LeaderWorkerSets, check_set
from kinetic_core.backends.kubernetes.logs import JobLogs
from kinetic_core.backends.kubernetes.manifest import WORK_DIR, Surroundings, verbosity
from kinetic_core.backends.kubernetes.names import FAILED_CREATE, JOB_ID, JOB_NAME, ORIGIN_ID
from kinetic_core.backends.kubernetes.objects import Job, Pod
from kinetic_core.backends.kubernetes.pod_exec import PodShells
from kinetic_core.backends.kubernetes.pods import failed_by_lease, made_pods
from kinetic_core.backends.kubernetes.port_forward import PodPorts
from kinetic_core.backends.kubernetes.queue import BatchQueues
from kinetic_core.backends.kubernetes.set_objects import (
    end_without_pods,
    is_live,
    runs_in_set,
    waits_for_worker,
)
from kinetic_core.backends.kubernetes.signing import read_secret
from kinetic_core.backends.kubernetes.supply import SupplyReader
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.backends.kubernetes.watch_cache import SELECTOR, SINGLE, NamespaceWatch, with_refusal
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, InvalidRequest
from kinetic_core.job import ClusterName, JobReference, JobSpec
from kinetic_core.store.gcs import GcsObjectStore

Object = dict[str, Any]
Found = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]

_CANCEL_SECONDS = 90.0
_PACE_SECONDS = 1.0
_POLL_SECONDS = 0.2
_REMOVED_AT_ONCE = 100
"""Jobs removed by one request, whose line has room for their ids."""
_LOG = logging.getLogger(__name__)


class GkeBackend:
    """Backend of one cluster, with `location` (`bucket` or `bucket/prefix`) for everything it stores.

    Its names `gke` and `pathways` differ in how new jobs run; either finds and ends the jobs of both.
    """

    def __init__(
        self,
        target: Target,
        location: str,
        connections: Connections,
        named: Target | None = None,
        name: str = "gke",
    ) -> None:
        """Connect lazily. `named`: the cluster in the settings, which the GKE API may know."""
        self.name = name
        self.supervised_queue = None
        self.connections = connections
        self._api = api = ClusterApi(target, connections)
        self.lines = BatchQueues(self._api)
        self._batches = IndexedJobs(self._api, _CANCEL_SECONDS)
        self.ports = PodPorts(target, connections)
        self.shells = PodShells(target, connections)
        self._target = target
        self._settings = connections.settings
        self.store = store = GcsObjectStore.at(location, connections)
        gke, place = named or Target(), (target, location, connections.settings)
        self._supply = connections.get(
            (SupplyReader, target, gke), lambda: SupplyReader(api, gke, connections)
        )
        self._place = place
        self._sets = connections.get((LeaderWorkerSets, place), lambda: LeaderWorkerSets(api, store))

    @property
    def _logs(self) -> JobLogs:
        return self.connections.get((JobLogs, self._place), lambda: JobLogs(self._api, self.store))

    @property
    def _attempts(self) -> ClaimedAttempts:
        return self.connections.get((ClaimedAttempts, self._place), lambda: ClaimedAttempts(self.store))

    @property
    def parts(self) -> IndexedJobs | None:
        """Return the Indexed Jobs; None where every input of a batch has a set of its own."""
        return self._batches if self.name == "gke" else None

    @property
    def cluster(self) -> ClusterName | None:
        """Return the cluster's name in the GKE API; None for one that a kubeconfig, or this pod, names."""
        target = self._target
        return (
            None if target.kubeconfig or not target.project else (target.project, target.zone, target.cluster)
        )

    @property
    def namespace(self) -> str:
        return self._settings.namespace

    @property
    def key(self) -> str:
        whose = [each.version for each in (self._target.account, self._settings.google_account) if each]
        where = f"{self._target}:{self._supply}:{self._settings.storage_emulator_host}:{self.store.uri}"
        return ":".join(["gke", where, *whose])

    def check(self, spec: JobSpec) -> tuple[str, ...]:
        """Refuse what is certainly missing; a pod that fits no node is found once the cluster has seen it."""
        if spec.pod.queue is not None:
            self._check_queue(spec.namespace, spec.pod.queue)
        if spec.backend == "pathways":
            check_set(self._target, self.connections, spec)
        return ()

    def check_output_dir(self, place: str) -> None:
        """Refuse an output directory outside a bucket: a directory of a pod vanishes with the pod."""
        if not place.startswith("gs://"):
            raise InvalidRequest(
                f"output_dir={place!r} would be a directory of the pod, lost with it; give "
                "gs://bucket/prefix, or leave it out for a place of the job's own"
            )

    def surroundings(self, namespace: str, service_account: str | None = None) -> Surroundings:
        """Return the service account, the emulator's address and the log level.

        An account that is not named is `kinetic` if that exists, else `default`.
        """
        environment = {"HOME": WORK_DIR, **verbosity()}
        if self._settings.storage_emulator_host:
            environment["STORAGE_EMULATOR_HOST"] = self._settings.storage_emulator_host
        return Surroundings(service_account or self._service_account(namespace), environment)

    def create(self, manifest: Mapping[str, Any]) -> bool:
        """Create a Job, and the Service for the hosts of a slice if the namespace lacks it.

        The Job for a later accelerator replaces those for earlier ones.
        """
        return create_job(self._api, manifest)

    def get(self, namespace: str, job_id: str) -> tuple[Object, Sequence[Object]] | None:
        """Get a job from the watch, if there is one that knows the job; else from the API server."""
        known = self._watch(namespace).get(job_id)
        if known is not None and runs_in_set(known[0]):
            return self._sets.view(*known)
        if known is not None and not (observe(*known).is_terminal and _lacks_evidence(known[1])):
            return known[0], self._attempts.numbered(*known)
        if (view := self._batches.get(namespace, job_id)) is not None:
            return view[0], self._attempts.numbered(*view)
        if (found := find_job(self._api, namespace, job_id)) is None:
            return None
        job, pods = found
        if not (observe(job, []).is_terminal or job["spec"].get("suspend") or pods):  # it wants pods
            about = f"involvedObject.name={job['metadata']['name']},reason={FAILED_CREATE}"
            told = self._events(namespace, about)
            job = with_refusal(job, pods, told[-1] if told else None)
        if runs_in_set(job):
            return self._sets.view(job, pods)
        return job, Later(lambda: self._attempts.numbered(job, pods))

    def control(self, namespace: str, job_id: str) -> None:
        """Do nothing, because a cluster has controllers of its own."""

    def meaning(self, accelerator: Accelerator) -> Accelerator | None:
        """Say which machine that carries the name the cluster has; reads nodes and node pools."""
        return self._supply.meaning(accelerator)

    def never_runs(self, found: Found) -> str | None:
        """Say why no node can ever run a job; reads nodes and node pools at most twice a minute."""
        newest = max(found[1], key=lambda pod: Pod(pod).attempt, default=None)
        return None if newest is None else self._supply.read().refusal(newest)

    def remedy(self, accelerator: Accelerator) -> str:
        """Say what gives a job that waits for this hardware a node; reads nodes and node pools."""
        return self._supply.remedy(accelerator)

    def events(self, namespace: str, pods: Sequence[str], job: str = "") -> list[Object]:
        """Read the events of pods and of a Job, with one request for each."""
        told = self._events(namespace, f"involvedObject.kind=Job,involvedObject.name={job}") if job else []
        names = dict.fromkeys([*pods, *made_pods(told)])
        selectors = [f"involvedObject.kind=Pod,involvedObject.name={pod}" for pod in names]
        return told + [event for selector in selectors for event in self._events(namespace, selector)]

    def all(self, namespace: str, *, fresh: bool = True) -> dict[str, tuple[Object, list[Object]]]:
        """Read all jobs of a namespace with two requests, or from the watch."""
        if not fresh and (watched := self._watch(namespace).jobs()) is not None:
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

    def states(
        self, namespace: str, job_ids: Collection[str], *, and_alive: bool = False
    ) -> dict[str, tuple[Object, list[Object]]]:
        """Read all jobs: two requests, however many are asked for."""
        del job_ids, and_alive
        return self.all(namespace)

    def signing_secret(self, namespace: str, *, make: bool = False) -> bytes | None:
        """Read the namespace's secret, once per client and ten minutes."""
        return read_secret(self._target, self.connections, namespace, make=make)

    def of_origin(self, namespace: str, origin_id: str) -> list[Object]:
        """Find the Jobs of an origin with one request."""
        query = {"labelSelector": f"{SINGLE},{ORIGIN_ID}={origin_id}"}
        found: list[Object] = self._api.list("Job", namespace, query)["items"]
        return found

    def delete(self, namespace: str, job_id: str) -> None:
        """Delete a job's pods and return when they have ended; the Job stays, without a successor.

        Raises ClusterUnreachable if the pods are not proven dead after a minute and a half.
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
        """Fail the Job by its deadline now: its pods get SIGTERM, those of a set by being deleted."""
        self._end(jobs_of(self._api, namespace, job_id))

    def _end(self, jobs: Sequence[Object]) -> None:
        end_jobs(self._api, [job for job in jobs if not observe(job, []).is_terminal])
        for job in filter(runs_in_set, jobs):
            self._sets.delete(job["metadata"]["namespace"], job["metadata"]["name"])

    def release(self, namespace: str, job_id: str, succeeded: bool) -> None:
        """Delete the set of a finished job; the Job, or that of a call, then says how it ended."""
        name = JOB_NAME.format(job_id)
        found = self.get(namespace, job_id)
        if found is None or not waits_for_worker(found[0]):
            self._sets.finish(namespace, name, succeeded)
        elif not observe(found[0], []).is_terminal:
            self._api.patch("Job", namespace, name, {"spec": end_without_pods(succeeded)})

    def start(self, namespace: str, job_id: str) -> None:
        """Let the Job controller make the pods of a call's Job, one for each host."""
        for job in jobs_of(self._api, namespace, job_id):
            if waits_for_worker(job) and not observe(job, []).is_terminal:
                change = {"spec": {"parallelism": Job(job).hosts}}
                self._api.patch("Job", namespace, job["metadata"]["name"], change)

    def lives(self, namespace: str, job_id: str) -> bool:
        """Ask the API server for the job's pods, by their label."""
        selector = f"{SELECTOR},{JOB_ID}={job_id}"
        return any(map(is_live, self._api.list("Pod", namespace, {"labelSelector": selector})["items"]))

    def let_go(self, namespace: str, job_id: str, attempt: int) -> None:
        """Mark the pod of a silent node as failed by a disruption, and delete it without its node's word, as
        Kubernetes does for a node out of service.

        https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
        """
        found = self.get(namespace, job_id)
        for pod in found[1] if found else []:
            if Pod(pod).attempt == attempt:
                name = pod["metadata"]["name"]
                self._api.patch("Pod", namespace, name, failed_by_lease(pod), "status")
                self._api.delete("Pod", namespace, name, pod["metadata"]["uid"], grace=0)

    def removed(self, *_: str) -> None:
        """Return None: of a Job that was removed, its events are left for an hour."""

    def remove(self, namespace: str, *job_ids: str) -> None:
        """Remove jobs, a hundred at a time if the role allows that."""
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
        """Return the pause between looks; the watch announces its changes with `wake`."""
        self._watch(namespace).tell(wake)
        return _PACE_SECONDS

    def changes(
        self, namespace: str, since: object | None, only: JobReference | None = None
    ) -> tuple[object, set[str] | None]:
        return self._watch(namespace).changes(since, only)

    def end_watch(self, namespace: str) -> None:
        """End the watch of a namespace whose API server is about to go; the next question starts another."""
        self._watch(namespace).close()

    def log(
        self, namespace: str, job_id: str, attempt: int, offset: int, host: int = 0, size: int = -1
    ) -> bytes | None:
        """Read a log: followed on the node while the container runs, from the store afterwards."""
        found = self.get(namespace, job_id)
        pods = found[1] if found else []
        pod = next((pod for pod in pods if (Pod(pod).attempt, Pod(pod).host) == (attempt, host)), None)
        return None if pod is None else self._logs.read(namespace, job_id, pod, offset, size)

    def _watch(self, namespace: str) -> NamespaceWatch:
        """Return the client's only watch of a namespace."""
        return self.connections.get(
            (NamespaceWatch, self._target, namespace), lambda: NamespaceWatch(self._api, namespace)
        )

    def _check_queue(self, namespace: str, queue: str) -> None:
        """Check a queue once per client: an existing queue is not read again."""

        def checked() -> bool:
            check_queue(self._api, namespace, queue)
            return True

        self.connections.get((check_queue, self._target, namespace, queue), checked)

    def _service_account(self, namespace: str) -> str:
        """Return the service account for pods, looked for once per client."""
        return self.connections.get(
            (_service_account, self._target, namespace), lambda: _service_account(self._api, namespace)
        )

    def _events(self, namespace: str, selector: str) -> list[Object]:
        try:
            found: list[Object] = self._api.list("Event", namespace, {"fieldSelector": selector})["items"]
        except ClusterError as exc:
            if exc.status != 403:
                raise
            return []  # a role without events is told less
        return found


def _lacks_evidence(pods: list[Object]) -> bool:
    """Return whether the watch of pods is behind that of Jobs: no pod of a finished Job still runs."""
    return any((pod.get("status") or {}).get("phase") in ("Pending", "Running") for pod in pods)


def _service_account(api: ClusterApi, namespace: str) -> str:
    account = api.service_account(namespace)
    if account == "default":
        _LOG.warning(
            "kinetic: namespace %s has no service account 'kinetic' that can be seen: jobs run as 'default'",
            namespace,
        )
    return account
