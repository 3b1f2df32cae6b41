"""The backends: what jobs need of one, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from kinetic_core._runner import object_names
from kinetic_core._runner.wire import Failure
from kinetic_core.backends.kubernetes.manifest import Surroundings
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError
from kinetic_core.job import ClusterName, JobReference, JobSpec, Line
from kinetic_core.settings import BACKENDS, Settings
from kinetic_core.store.protocol import ObjectStore

if TYPE_CHECKING:
    from kinetic_core.accelerators.grammar import Accelerator
    from kinetic_core.backends.kubernetes.connection import Target
    from kinetic_core.jobs.forward import Connection

Found = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""A Job and its Pods, in Kubernetes' shape."""


class Parts(Protocol):
    """Jobs that run many inputs of a batch, as `cluster.parts` describes them.

    `Backend.get` and the others take an input's job id, too.
    """

    def running(self, namespace: str, group_id: str) -> set[int]:
        """The inputs that run now."""

    def parts(self, namespace: str, group_id: str) -> Sequence[Mapping[str, Any]]:
        """The Jobs of a batch, the oldest first."""

    def all(self, namespace: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The Jobs of every batch there, by the batch's id."""

    def some_waiting(self, namespace: str, job: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """A few pods of such a Job that have not started."""

    def give_up(self, namespace: str, job_id: str, failure: Failure) -> None:
        """Write down why such a Job, by what stands for its job id, can never run."""


class SupervisedQueue(Protocol):
    """Jobs of a batch that wait for their turn, and a process that gives it to them."""

    def gather(self, namespace: str, line: Line) -> AbstractContextManager[Backend]:
        """The same backend, by which jobs are created that wait in this line; at its end their turns begin.

        If it is left by an exception, all that were created are dropped.
        """

    def take_up(self, namespace: str, line: Line) -> AbstractContextManager[tuple[Backend, bool]]:
        """The same for a batch of which others may have made some, or make it just now, which is waited for.

        And whether no job of it lives. If it is left by an exception, what was created stays.
        """

    def forget(self, namespace: str, job_ids: Iterable[str]) -> None:
        """Forget jobs of a batch that have ended, or were never made, so that they can be created anew."""

    def drop(self, namespace: str, group_id: str) -> None:
        """End the jobs that still wait, as dropped. Once it has returned no other job of the batch begins."""

    def begun(self, namespace: str, group_id: str) -> tuple[list[str], list[str]]:
        """The jobs that have begun and not ended, and those that wait or were dropped."""

    def reopen(self, namespace: str, group_id: str) -> None:
        """Let jobs that are made from now on wait again, after `drop`; those that it has ended stay so."""


class BatchQueues(Protocol):
    """Which stored line of a batch counts, where nobody who can merely write to the store can say."""

    def keep(self, namespace: str, group_id: str, line: str, spec_digest: str) -> str:
        """The digest that counts from now on; JobConflict if the id is another batch's."""

    def find(self, namespace: str, group_id: str) -> str | None:
        """The digest that counts, None if nothing keeps one any more."""

    def remove(self, namespace: str, group_id: str) -> None:
        """Forget it. Idempotent."""


class Ports(Protocol):
    """Connections to what jobs listen on."""

    def check(self, namespace: str) -> None:
        """Refuse who may not have any in this namespace."""

    def dial(self, namespace: str, pod: str, port: int) -> Connection:
        """One to a port of the loopback that a pod sees, by the pod's name."""


class Process(Protocol):
    """A program beside a job's function, with its streams. Nothing here waits for the program."""

    exit_code: int | None
    source: int
    """The descriptor that is readable when `receive` has something to do."""
    sink: int
    """The descriptor that is writable when `flush` has something to do."""

    @property
    def unsent(self) -> int:
        """How many bytes wait to be sent."""

    def send(self, data: bytes) -> None:
        """Send to its stdin, as far as that is possible now."""

    def flush(self) -> None:
        """Send what waits, as far as that is possible now."""

    def receive(self) -> list[tuple[int, bytes]] | None:
        """What it wrote to which of its descriptors; None once it has ended, with `exit_code`."""

    def tick(self, *, reads: bool) -> None:
        """What a connection needs every few seconds. `reads`: what arrives is being received."""

    def close(self) -> None:
        """Hang up: the program ends, if it has not."""


class Shells(Protocol):
    """Programs beside the functions of jobs: that of `_runner.shell`, which takes a request."""

    def check(self, namespace: str) -> None:
        """Refuse who may not have any in this namespace."""

    def start(self, namespace: str, pod: str, request: str) -> Process:
        """One in a pod, by the pod's name."""


class Backend(Protocol):
    """A place where jobs run: it keeps Job and Pod objects and starts what they describe."""

    name: str

    @property
    def connections(self) -> Connections:
        """The client's settings and open connections that it uses."""

    @property
    def store(self) -> ObjectStore: ...

    @property
    def parts(self) -> Parts | None:
        """What it knows of Jobs that run many inputs of a batch; None where each input has its own."""

    @property
    def supervised_queue(self) -> SupervisedQueue | None:
        """How jobs wait for their turn here; None where a client must create them one by one."""

    @property
    def lines(self) -> BatchQueues | None:
        """Which of those wait for a client; None where none needs one."""

    @property
    def ports(self) -> Ports: ...

    @property
    def shells(self) -> Shells: ...

    @property
    def cluster(self) -> ClusterName | None:
        """The cluster by the GKE API's names; None if it is known by other means."""

    @property
    def namespace(self) -> str | None:
        """The namespace that the settings name; None where all are one user's."""

    @property
    def key(self) -> str:
        """Names the place, so that one process watches it once."""

    def check(self, spec: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run here; notices about what will be different here."""

    def check_output_dir(self, place: str) -> None:
        """Refuse an absolute path or URI that jobs here cannot leave their outputs in."""

    def surroundings(self, namespace: str, service_account: str | None = None) -> Surroundings:
        """What every pod there gets. A `service_account` that the caller has named is not looked for."""

    def create(self, manifest: Mapping[str, Any]) -> bool:
        """Create the Job: True if made, False if it was there with the same spec digest."""

    def get(self, namespace: str, job_id: str) -> Found | None:
        """The Job and its Pods now, None if there is no such Job. Changes nothing."""

    def control(self, namespace: str, job_id: str) -> None:
        """Do for a job what a controller of this place would do: Kubernetes has controllers, this machine has
        whoever waits. Needed where a Job shown by `get` has the annotation NEEDS_CONTROL. Idempotent.
        """

    def meaning(self, accelerator: Accelerator) -> Accelerator | None:
        """Which of the machines that carry an accelerator's name is here, the first if several; None if none
        is known to be.
        """

    def never_runs(self, found: Found) -> str | None:
        """Why nothing here can ever run the job, which no node takes now; None while something may."""

    def remedy(self, accelerator: Accelerator) -> str:
        """What gives a job that waits for this hardware a node, with the command or option to use; "" if that
        is not known.
        """

    def events(self, namespace: str, pods: Sequence[str], job: str = "") -> Sequence[Mapping[str, Any]]:
        """Kubernetes' events of these pods, by name; none where they are not kept or may not be seen.

        With `job`, the name of a Job, also those of the Job and of all pods that it has had.
        """

    def all(self, namespace: str, *, fresh: bool = True) -> Mapping[str, Found]:
        """Every Job of ours there is, by job id, with the Pods that have not ended.

        Unless it must be `fresh`, as this process's own watch knows them, if there is one.
        """

    def states(
        self, namespace: str, job_ids: Collection[str], *, and_alive: bool = False
    ) -> Mapping[str, Found]:
        """For a list: these Jobs, as far as they exist, and with `and_alive` all that have not ended.

        Where that is cheaper, a Job that has ended or waits for its turn has its status alone.
        """

    def signing_secret(self, namespace: str, *, make: bool = False) -> bytes | None:
        """From which the keys of outcomes are made; None if this user cannot read it, or there is none.

        Whoever may submit there can read it, and no pod. `make` it if there is none.
        """

    def of_origin(self, namespace: str, origin_id: str) -> Sequence[Mapping[str, Any]]:
        """The Jobs whose origin has this `id`, without their Pods."""

    def delete(self, namespace: str, job_id: str) -> None:
        """Cancel: stop everything the job runs, return when it is dead. Idempotent."""

    def abandon(self, namespace: str, job_id: str) -> None:
        """As `delete`, for a job that can never run; need not wait."""

    def release(self, namespace: str, job_id: str, succeeded: bool) -> None:
        """Give back what a job holds whose end is known, where its end alone does not. Idempotent."""

    def start(self, namespace: str, job_id: str) -> None:
        """Give a call that was meant for a worker a pod of its own. Idempotent."""

    def lives(self, namespace: str, job_id: str) -> bool:
        """Whether a pod of the job may run, also where its Job is gone or says that it has ended."""

    def let_go(self, namespace: str, job_id: str, attempt: int) -> None:
        """Forget the pod of an attempt that is known to be over although its node does not say so."""

    def remove(self, namespace: str, *job_ids: str) -> None:
        """Forget finished Jobs: their objects, working directories and container logs."""

    def removed(self, namespace: str, job_id: str) -> Found | None:
        """What is still known of a job that was removed a short while ago: its objects' times and ends; None
        where nothing is kept but events.
        """

    def pace(self, namespace: str, wake: Callable[[], None]) -> float:
        """How many seconds may lie between two looks for changes. Where they are announced, `wake` is
        called at each of them, from any thread, and the looks are for everything else.
        """

    def changes(
        self, namespace: str, since: object | None, only: JobReference | None = None
    ) -> tuple[object, set[str] | None]:
        """A token for now and the ids of jobs that changed since another one; None for "any may have".

        `only`: the job that the caller observes, if it observes one alone. No change of others need be told.
        """

    def log(
        self, namespace: str, job_id: str, attempt: int, offset: int, host: int = 0, size: int = -1
    ) -> bytes | None:
        """What a host's attempt printed from a byte offset on, `size` bytes at most unless that is negative;
        None if nothing is kept here.
        """


def open_backend(name: str, connections: Connections) -> Backend:
    """The backend of that name, as the client's settings describe it. Starts nothing, connects to nothing.

    Raises ConfigurationError for an unknown name, and for a cluster without a bucket.
    """
    if name == "local":
        from kinetic_core.backends.local.backend import LocalBackend

        return LocalBackend(connections.settings.local_store, connections)
    if name not in BACKENDS:
        raise ConfigurationError(f"backend {name!r} is unknown: it is one of {', '.join(BACKENDS)}")
    return _gke(name, connections.settings.bucket, connections)


def _gke(name: str, location: str, connections: Connections) -> Backend:
    from kinetic_core.backends.kubernetes.backend import GkeBackend

    settings = connections.settings
    if not location and not settings.project:
        raise ConfigurationError(
            f"backend {name!r} needs a bucket: set KINETIC_BUCKET to 'bucket' or 'bucket/prefix', or "
            "KINETIC_PROJECT to the project that has one called {project}-kn-{cluster}-jobs. backend='local' "
            "needs neither"
        )
    location = location or f"{settings.project}-kn-{settings.cluster}-jobs/{settings.namespace}"
    return GkeBackend(cluster_target(settings), location, connections, named_cluster(settings), name)


def cluster_target(settings: Settings) -> Target:
    """The cluster to connect to: a Kubernetes account's, else a kubeconfig's, else the one the settings name,
    else that of this pod.
    """
    from kinetic_core.backends.kubernetes.connection import Target

    if settings.kubernetes_account is not None:
        return Target(account=settings.kubernetes_account)
    if settings.kubeconfig or not settings.project:
        return Target(settings.kubeconfig, settings.kube_context)
    return named_cluster(settings)


def named_cluster(settings: Settings) -> Target:
    """The cluster that the settings name for the GKE API."""
    from kinetic_core.backends.kubernetes.connection import Target

    target = Target(
        project=settings.project,
        zone=settings.zone,
        cluster=settings.cluster,
        account=settings.google_account,
    )
    if address := settings.api_endpoint_overrides.get("container"):
        target = replace(target, gke_api=address)
    return target


def backend_name(asked: str | None, hosts: int, connections: Connections) -> str:
    """Which backend a call uses: asked for, else `KINETIC_BACKEND`, else the cluster.

    A slice of several hosts for which nobody asked for `gke` itself is run by a LeaderWorkerSet where the
    cluster has them and this account may create one. Asks the cluster once. Raises ClusterError.
    """
    settings = connections.settings
    name = asked or settings.backend or "gke"
    if name == "gke" and not asked and hosts > 1:
        from kinetic_core.backends.kubernetes.leader_worker_sets import may_use_sets

        return (
            "pathways" if may_use_sets(cluster_target(settings), connections, settings.namespace) else "gke"
        )
    return name


def known_backend(asked: str | None, connections: Connections, job_id: str = "") -> Backend:
    """Where to look for jobs of other processes: as asked, as set, or where the job is, or this machine.

    Without a choice, a job that was run on this machine is found here, and so is everything where no
    cluster is set.
    """
    settings = connections.settings
    name = asked or settings.backend
    if name is None:
        here = open_backend("local", connections)
        if not (settings.bucket or settings.project):
            return here
        if job_id and here.store.find(object_names.handle(job_id)) is not None:
            return here
    return open_backend(name or "gke", connections)


def backend_of(reference: JobReference, connections: Connections) -> Backend:
    """The backend a job lives on. Raises ConfigurationError if the settings point somewhere else."""
    if reference.backend == "local":
        from pathlib import Path
        from urllib.parse import unquote, urlparse

        from kinetic_core.backends.local.backend import LocalBackend

        parsed = urlparse(reference.store_uri)
        if parsed.scheme != "file" or parsed.netloc:
            raise ConfigurationError(f"job {reference.job_id}: {reference.store_uri!r} is not a local store")
        return LocalBackend.of_store(Path(unquote(parsed.path)), connections)
    if reference.backend in BACKENDS:
        place = connections.with_arguments(namespace=reference.namespace)
        if reference.cluster is not None:
            project, zone, cluster = reference.cluster
            place = place.with_arguments(project=project, zone=zone, cluster=cluster)
        return _gke(reference.backend, reference.store_uri, place)
    raise ConfigurationError(
        f"{reference.job_id}: this version of Kinetic has no backend {reference.backend!r}: "
        "install the version that submitted it"
    )
