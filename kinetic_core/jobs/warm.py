"""Calls on workers: which worker may run a call, how the call is given to it, and how a worker is made.

A worker is a job without a function, whose runner runs the calls of one user, one after the other (ADR 0067).
A call is a job whose Job has no pod of its own as long as its worker can run it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import LONGEST_NOTE, ForgedNote, decode_note, encode_note
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.manifest import Delivery, job_manifest
from kinetic_core.backends.kubernetes.names import (
    CANCELLED,
    IDLE_SECONDS,
    INSTANCE,
    JOB_ID,
    JOB_NAME,
    OUTCOME_KEY,
    REUSE,
    WORKER,
)
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.bound_method import lost
from kinetic_core.cache import keep
from kinetic_core.concurrency import at_once
from kinetic_core.errors import InstanceLost, KineticError, ObjectNotFound
from kinetic_core.job import JobObservation, JobReference, JobSpec, JobStatus
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import cancel, cleanup
from kinetic_core.jobs.nudge import Nudge, nudge_of
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.prepare import Prepared, reference_of
from kinetic_core.jobs.runner_archive import stored_runner
from kinetic_core.jobs.signing import call_key, key_id_of, new_worker_key, outcome_key, variable
from kinetic_core.jobs.submit import Unsent, deliver
from kinetic_core.jobs.watch import watch_for
from kinetic_core.store.documents import read_start
from kinetic_core.store.protocol import ObjectStore

FUNCTION = "warm worker"
"""What stands for the name of a worker's function."""
_IDENTITY_SIZE = 32
_TURN_SECONDS = 0.2
"""Seconds between two looks whether a busy worker of an instance is free."""
_SAY_SECONDS = 5.0
"""Seconds after which a call that waits for an instance says so."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worker:
    """Worker of a namespace, with the key of its Job."""

    job_id: str
    key_id: str
    key: bytes

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Worker | None:
        """Return the worker whose Job this is, None for any other Job."""
        key = outcome_key(job)
        if key is None or not variable(job, IDLE_SECONDS):
            return None
        return cls(job["metadata"]["labels"][JOB_ID], key_id_of(job), key)


@dataclass(frozen=True)
class WorkerSummary:
    """State of a worker for people. `calls` is how many were given to it; `is_idle` whether it waits for one.

    `idle_seconds` is how long it waits for a call before it ends. `reuse` is what its calls share, "process"
    or "fork", "" for the pod alone; `instance` is the id of the instance that has it, "" for none.
    """

    job_id: str
    seen: JobObservation
    accelerator: str
    idle_seconds: float
    calls: int
    is_idle: bool
    reuse: str = ""
    instance: str = ""


def submit_warm(
    prepared: Prepared, environment: Mapping[str, str] | None = None, origin: str = ""
) -> JobReference:
    """Create a call, and give it to a worker that waits for one, or to a new worker. Otherwise as `submit`.

    The call's Job exists before the worker knows of it. Whatever of a submission is missing when it dies
    half-way, observers of the call give it a pod of its own.
    """
    backend, namespace = prepared.backend, prepared.reference.namespace
    around = backend.surroundings(namespace, prepared.spec.pod.service_account)
    own = replace(around, environment={**(environment or {}), **around.environment})
    delivery = Delivery(stored_runner(backend), prepared.payload, "", own, origin)
    of_worker = replace(delivery, surroundings=around)
    header = wire.decode_head(prepared.payload)
    kind = _Kind(backend, prepared.spec, of_worker, header.get("dependencies"), header.get("client_package"))
    identity = kind.identity(prepared.reference)
    file = backend.connections.settings.cache.expanduser() / "workers" / f"{identity}.json"
    turn = _Turn(backend, namespace, identity, prepared.spec)
    found = turn.take(LastCall.read(file))
    worker, number = found or (_new_worker(backend, namespace, identity), 0)
    nudge = _nudge(backend, namespace, worker)
    if found is not None:
        nudge.open()  # meanwhile the call is stored
    reference = replace(prepared.reference, worker=worker.job_id)
    key_id, key = call_key(backend, namespace, worker.key, worker.key_id, reference)
    delivery = replace(delivery, key_id=key_id, outcome_key=key, worker=worker.job_id)
    manifest: dict[str, Any] = {}

    def manifests(counting: JobReference) -> Sequence[dict[str, Any]]:
        manifest.update(job_manifest(prepared.spec, counting, delivery))
        return [manifest]

    reference = deliver(backend, Unsent(reference, prepared.payload, manifests, prepared.is_new), origin)
    if not prepared.is_new and not _is_ours(backend, reference, key_id):
        return find(backend, reference.job_id) or reference  # an equal submission sees to it
    with _undone_by_errors(backend, reference, is_new=prepared.is_new):
        is_given = _give(backend, worker, number, manifest)
        while not is_given and prepared.spec.instance and (found := turn.wait()) is not None:
            worker, number = found  # another client was quicker
            is_given = _give(backend, worker, number, manifest)
        if is_given:
            LastCall(worker.job_id, number, reference.job_id, key_id).keep(file)
        if not is_given:
            backend.start(namespace, reference.job_id)  # another client was quicker with this worker
        elif found is None:
            kind.make(worker, prepared.reference, identity)
        else:
            nudge.send()
    return reference


@contextmanager
def _undone_by_errors(backend: Backend, reference: JobReference, *, is_new: bool) -> Iterator[None]:
    """Remove a new call whose submission fails after its Job was created: its caller has no handle of it.

    A worker that was given the call already ends it. Another submitter may have a call that is not new.
    """
    try:
        yield
    except BaseException:
        if is_new:
            try:
                cancel(backend, reference)
                cleanup(backend, reference)
            except KineticError as exc:
                told = "%s was not submitted, and cannot be removed: %s. `kinetic jobs cancel %s` ends it"
                _LOG.warning(told, reference.job_id, exc, reference.job_id)
        raise


def start_worker(packed: Packed) -> JobReference:
    """Create a worker for calls of a function that have yet to come; return its reference.

    It ends when no call has come for the function's `warm=`. A call whose arguments have data that is mounted
    is of another kind, and makes a worker of its own. Raises as `deliver` does.
    """
    backend, namespace = packed.backend, packed.spec.namespace
    shipped = packed.tree_bytes + packed.substitutes.size
    spec = replace(packed.spec, buckets=tuple(dict.fromkeys(packed.buckets)), shipped=shipped)
    around = backend.surroundings(namespace, spec.pod.service_account)
    delivery = Delivery(stored_runner(backend), b"", "", around)
    kind = _Kind(backend, spec, delivery, packed.dependencies, packed.client_package)
    like = reference_of(packed, spec, "", "", None)
    identity = kind.identity(like)
    return kind.make(_new_worker(backend, namespace, identity), like, identity)


def workers(backend: Backend, namespace: str, *, fresh: bool = True) -> Iterator[WorkerSummary]:
    """Yield the workers of a namespace that have not ended. `fresh` as in `Backend.all`."""
    for found in backend.all(namespace, fresh=fresh).values():
        summary = summary_of(backend, found)
        if summary is not None and not summary.seen.is_terminal:
            yield summary


def summary_of(backend: Backend, found: Found) -> WorkerSummary | None:
    """Return the state of the worker whose Job this is, None for any other Job."""
    job, pods = found
    worker, seen = Worker.of(job), verdict(job, pods)
    if worker is None:
        return None
    objects = _Objects(backend.store, worker.job_id)
    is_idle = seen.status is JobStatus.RUNNING and _next_number(objects, worker) is not None
    return WorkerSummary(
        worker.job_id,
        seen,
        variable(job, "KINETIC_ACCELERATOR"),
        float(variable(job, IDLE_SECONDS)),
        len(objects.calls()),
        is_idle,
        variable(job, REUSE),
        variable(job, INSTANCE),
    )


def overdue(backend: Backend, there: Mapping[str, Found], before: float) -> Iterator[tuple[str, float]]:
    """Yield id and idle time of the workers that should have ended by the time `before` (Unix seconds): they
    have waited for a call for longer than they may. `there` are the jobs of their namespace.
    """
    for job, pods in there.values():
        worker, seen = Worker.of(job), verdict(job, pods)
        if worker is None or seen.status is not JobStatus.RUNNING:
            continue
        idle = float(variable(job, IDLE_SECONDS))
        since = _idle_since(_Objects(backend.store, worker.job_id), worker, seen)
        if since is not None and since + idle < before:
            yield worker.job_id, idle


def _idle_since(objects: _Objects, worker: Worker, seen: JobObservation) -> float | None:
    """Return when a worker began to wait, in Unix seconds; None if it does not, or nobody knows."""
    last = _last_call(objects, worker)
    if last is None:
        return None if objects.calls() else seen.started_at
    return objects.ended_at(last.job_id) if _has_ended(objects, worker, last) else None


@dataclass(frozen=True)
class _Kind:
    """What calls that may share a worker have in common, with the specification of one of them.

    `delivery` is that of a worker's Job. `dependencies` and `client_package` are those of a call's payload.
    """

    backend: Backend
    spec: JobSpec
    delivery: Delivery
    dependencies: Any
    client_package: Sequence[Any] | None

    def identity(self, reference: JobReference) -> str:
        """Return what is equal for calls that may share a worker, as a digest of hexadecimal digits.

        That is all that a pod is made of, and who submits.
        """
        spec, delivery = self.spec, self.delivery
        facts = {
            "owner": _owner(self.backend.connections.settings.cache, delivery.origin),
            "python": [*sys.version_info[:2]],
            "runner": delivery.runner.sha256,
            "backend": reference.backend,
            "store": reference.store_uri,
            "image": reference.image_uri,
            "dependencies": self.dependencies,
            "client_package": self.client_package,
            "accelerator": str(spec.accelerator),
            "memory": spec.memory,
            "reuse": spec.reuse,
            "instance": spec.instance,
            "pod": asdict(replace(spec.pod, hang_after=None)),
            "buckets": [asdict(bucket) for bucket in spec.buckets],
            "environment": dict(spec.environment),
            "surroundings": asdict(delivery.surroundings),
        }
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:_IDENTITY_SIZE]

    def make(self, worker: Worker, like: JobReference, identity: str) -> JobReference:
        """Create the worker's job, whose reference is like that of a call. Raises as `deliver` does."""
        spec = replace(
            self.spec,
            function_name=FUNCTION,
            timeout=None,
            retries=0,
            infrastructure_retries=0,
            budget=None,
            pod=replace(self.spec.pod, hang_after=None),
        )
        reference = replace(
            like,
            job_id=worker.job_id,
            k8s_name=JOB_NAME.format(worker.job_id),
            func_name=FUNCTION,
            display_name=FUNCTION,
            spec_digest=identity,
            output_dir="",
            worker="",
        )
        delivery = replace(
            self.delivery,
            payload=b"",
            outcome_key=worker.key.hex(),
            key_id=worker.key_id,
            origin=json.dumps({"id": identity}),
            worker="",
            idle=spec.warm,
        )

        def manifests(counting: JobReference) -> Sequence[dict[str, Any]]:
            return [job_manifest(spec, counting, delivery)]

        unsent = Unsent(reference, b"", manifests, is_new=True)
        return deliver(self.backend, unsent, delivery.origin)


def _owner(cache: Path, origin: str) -> str:
    """Return what stands for whoever submits: for a task, its Airflow's name, because many machines submit
    its tasks; else what this user of this machine has alone, a random text that is kept in the cache.
    """
    if deployment := (json.loads(origin) if origin else {}).get("deployment"):
        return f"airflow {deployment}"
    file = cache.expanduser() / "owner"
    try:
        if not file.exists():
            keep(file, secrets.token_hex(16).encode())
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return secrets.token_hex(16)  # without a cache every process has workers of its own


@dataclass(frozen=True)
class LastCall:
    """Last call that was given to a worker. The cache has the last one of this machine: it says what to read
    early, and which call that number is; whether the call has ended is always read.
    """

    worker_id: str
    number: int
    job_id: str
    key_id: str

    @classmethod
    def read(cls, file: Path) -> LastCall | None:
        """Read what `keep` has written; None if there is nothing."""
        try:
            told = json.loads(file.read_bytes())
            return cls(str(told["worker_id"]), int(told["number"]), str(told["job_id"]), str(told["key_id"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, file: Path) -> None:
        """Write it to a file of the cache."""
        keep(file, json.dumps(asdict(self)).encode())


class _Objects:
    """What is stored of a worker and its calls; each object is read once. Methods raise StoreError.

    Of the calls before number `known`, none is listed: a worker may have had thousands.
    """

    def __init__(self, store: ObjectStore, worker_id: str, known: int = 0) -> None:
        self._store, self._worker_id, self._known = store, worker_id, known
        self._calls: list[str] | None = None
        self._outcomes: dict[str, bytes | None] = {}

    def calls(self) -> list[str]:
        """Return the names of the objects that gave it calls, in their order."""
        if self._calls is None:
            prefix = object_names.calls_prefix(self._worker_id)
            since = object_names.call(self._worker_id, self._known)
            found = list(self._store.list(prefix, since=since))
            if not found and self._known:  # the cache was wrong, or somebody has removed objects
                found = list(self._store.list(prefix))
            self._calls = [info.name for info in found]
        return self._calls

    def outcome(self, job_id: str) -> bytes | None:
        """Return the beginning of a call's outcome, None if there is none."""
        if job_id not in self._outcomes:
            try:
                self._outcomes[job_id] = read_start(self._store, object_names.result(job_id))
            except ObjectNotFound:
                self._outcomes[job_id] = None
        return self._outcomes[job_id]

    def ended_at(self, job_id: str) -> float | None:
        """Return when a call's outcome was stored, in Unix seconds."""
        found = self._store.find(object_names.result(job_id))
        return None if found is None else found.created

    def read(self, name: str) -> bytes:
        """Read a note."""
        return self._store.read_range(name, 0, LONGEST_NOTE)


@dataclass(frozen=True)
class _Turn:
    """Search for a worker of one kind. That of an instance is waited for, if it is busy."""

    backend: Backend
    namespace: str
    identity: str
    spec: JobSpec

    def take(self, last: LastCall | None) -> tuple[Worker, int] | None:
        """Return a worker and the number of its next call; None for a call that gets a new worker.

        Raises InstanceLost if there is none for an instance that the call must not make.
        """
        found = _free_worker(self.backend, self.namespace, self.identity, last)
        if found is None and self.spec.instance:
            found = self.wait()
            if found is None and not self.spec.makes_instance:
                raise InstanceLost(lost(self.spec.instance, "no worker that runs has it"))
        return found

    def wait(self) -> tuple[Worker, int] | None:
        """Wait until a worker of this kind is free; None once there is none that lives."""
        say_at = time.monotonic() + _SAY_SECONDS
        while any(map(_may_run, self.backend.of_origin(self.namespace, self.identity))):
            found = _free_worker(self.backend, self.namespace, self.identity, None)
            if found is not None:
                return found
            if time.monotonic() > say_at:
                say_at = float("inf")
                _LOG.warning("kinetic: instance %s runs another call: this one waits", self.spec.instance)
            time.sleep(_TURN_SECONDS)
        return None


def _may_run(job: Mapping[str, Any]) -> bool:
    """Return whether a worker's Job has not ended, and was not told to."""
    annotations = job["metadata"].get("annotations") or {}
    return CANCELLED not in annotations and not verdict(job, ()).is_terminal


def _free_worker(
    backend: Backend, namespace: str, identity: str, last: LastCall | None
) -> tuple[Worker, int] | None:
    """Return a worker that waits for a call, and the number of that call; None if there is none.

    What is stored of the last call and its worker is read while the cluster is asked for workers.
    """
    found: list[Mapping[str, Any]] = []

    def ask() -> None:
        found.extend(backend.of_origin(namespace, identity))

    known: dict[str, _Objects] = {}
    if last is None:
        ask()
    else:
        objects = known[last.worker_id] = _Objects(backend.store, last.worker_id, last.number)
        at_once(
            objects.calls,
            lambda: objects.outcome(last.job_id),
            ask,
            lambda: backend.signing_secret(namespace),  # which the client then knows
        )
    for job in found:
        if (worker := Worker.of(job)) is None or not _may_run(job):
            continue
        objects = known.get(worker.job_id) or _Objects(backend.store, worker.job_id)
        number = _next_number(objects, worker, last)
        if number is not None:
            return worker, number
    return None


def _next_number(objects: _Objects, worker: Worker, known: LastCall | None = None) -> int | None:
    """Return the number of the next call; None for a worker that is busy or closed.

    One that was made for a call has that call before its Job exists: without any, it waits for its first.
    """
    if not objects.calls():
        return 0
    last = _last_call(objects, worker, known)
    return last.number + 1 if last is not None and _has_ended(objects, worker, last) else None


def _last_call(objects: _Objects, worker: Worker, known: LastCall | None = None) -> LastCall | None:
    """Return the last call that was given to a worker, which may be the one that is `known`.

    None if there is none, if the worker has closed, or if somebody else has written there.
    """
    if not (calls := objects.calls()):
        return None
    try:
        number = int(calls[-1].rpartition("/")[2].partition(".")[0])
        if known is not None and (known.worker_id, known.number) == (worker.job_id, number):
            return known
        told = decode_note(worker.key, calls[-1], objects.read(calls[-1]))["environment"]
        return LastCall(worker.job_id, number, told["KINETIC_JOB_ID"], told["KINETIC_KEY_ID"])
    except (ObjectNotFound, ForgedNote, KeyError, TypeError, ValueError):
        return None


def _has_ended(objects: _Objects, worker: Worker, call: LastCall) -> bool:
    """Return whether a call of the worker has an outcome of its own: anybody can store another."""
    if (start := objects.outcome(call.job_id)) is None:
        return False
    try:
        header = wire.decode_head(start, wire.call_key(worker.key, call.key_id))
        object_names.require_place(header, call.job_id)
    except wire.FrameError:
        return False
    return True


def _nudge(backend: Backend, namespace: str, worker: Worker) -> Nudge:
    """Return the client's connection to a worker; observers of its calls look when it says so."""

    def looked() -> None:
        watch_for(backend, namespace).observe_calls(worker.job_id)

    return nudge_of(backend, namespace, worker.job_id, worker.key, looked)


def _new_worker(backend: Backend, namespace: str, identity: str) -> Worker:
    """Return a worker that does not exist yet, for the client to make."""
    job_id = f"job-{secrets.token_hex(8)}"
    key_id, key = new_worker_key(backend, namespace, job_id, identity)
    return Worker(job_id, key_id, bytes.fromhex(key))


def _is_ours(backend: Backend, reference: JobReference, key_id: str) -> bool:
    """Return whether the Job that exists is the one that this submission has made."""
    found = backend.get(reference.namespace, reference.job_id)
    return found is not None and key_id_of(found[0]) == key_id and WORKER in found[0]["metadata"]["labels"]


def _give(backend: Backend, worker: Worker, number: int, manifest: Mapping[str, Any]) -> bool:
    """Give the call of a Job to the worker; False if that number is taken."""
    variables = manifest["spec"]["template"]["spec"]["containers"][0]["env"]
    environment = {
        each["name"]: each["value"] for each in variables if "value" in each and each["name"] != OUTCOME_KEY
    }
    name = object_names.call(worker.job_id, number)
    note = encode_note(worker.key, name, {"environment": environment})
    if backend.store.create_if_absent(name, note):
        return True
    return backend.store.read_range(name, 0, LONGEST_NOTE) == note  # whose answer was lost
