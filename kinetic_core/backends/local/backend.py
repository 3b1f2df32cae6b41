"""The local backend: jobs as detached processes of this machine, described by Kubernetes objects."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kinetic_core.backends.kubernetes.attempts import ClaimedAttempts
from kinetic_core.backends.kubernetes.manifest import Surroundings, verbosity
from kinetic_core.backends.kubernetes.names import (
    NEEDS_CONTROL,
    ORIGIN_ID,
    SPEC_DIGEST,
    STARTING,
    WAITING_FOR_SLOT,
    WORKER,
)
from kinetic_core.backends.kubernetes.set_objects import waits_for_worker
from kinetic_core.backends.local import process
from kinetic_core.backends.local.layout import DROPPED_MARK, Layout
from kinetic_core.backends.local.memory_limit import limit_memory
from kinetic_core.backends.local.ports import LocalPorts
from kinetic_core.backends.local.queue import LocalQueue, start_agent, unpack_runner
from kinetic_core.backends.local.record import (
    DROPPED_CONDITION,
    NEEDS_SLOTS,
    dropped_at,
    end,
    end_waiting,
    forget,
    forget_old_times,
    is_held,
    is_over,
    is_waiting,
    keep_times,
    kept_times,
    read_job,
    read_summary,
    take_lock,
    timestamp,
    write_record,
)
from kinetic_core.backends.local.shells import LocalShells
from kinetic_core.backends.local.slots import core_count
from kinetic_core.connections import Connections
from kinetic_core.errors import BackendUnavailable, InvalidRequest, JobConflict, StoreError
from kinetic_core.job import ClusterName, JobReference, JobSpec, Line, PodOptions
from kinetic_core.settings import Settings
from kinetic_core.store.directory import DirectoryObjectStore, translated


class Snapshot:
    """The records of a directory as last looked at."""

    def __init__(self, stamp: int, times: dict[str, tuple[int, int]], swept: float) -> None:
        self.stamp = stamp
        self.times = times
        self.swept = swept


def record_times(folder: str) -> dict[str, tuple[int, int]]:
    """Modification time (ns) and inode of every record in a directory: a rewritten one has another inode.

    And of every file that ends all jobs of a batch that wait.
    """
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".json", DROPPED_MARK)):
                try:
                    facts = entry.stat()
                except FileNotFoundError:
                    continue  # removed just now
                found[entry.name] = facts.st_mtime_ns, facts.st_ino
    return found


def with_reason(record: Mapping[str, Any]) -> dict[str, Any]:
    """The Job, saying what it waits for if it waits: its turn in a batch, CPU slots, or its process."""
    job: dict[str, Any] = record["job"]
    if is_waiting(record) and "line" in record:
        line = Line(**record["line"])
        if line.limit is None or line.size <= line.limit:
            return _waiting(job, STARTING, "its batch is starting, all inputs of which may run at once")
        return _waiting(job, WAITING_FOR_SLOT, f"its batch runs {line.limit} at a time; it has no turn yet")
    if record["pods"] or is_over(record):
        return job
    if record.get(NEEDS_SLOTS):
        return _waiting(job, WAITING_FOR_SLOT, f"no CPU slot is free; this machine has {core_count()}")
    return _waiting(job, STARTING, "its process is starting")


def _waiting(job: Mapping[str, Any], kind: str, message: str) -> dict[str, Any]:
    condition = {"type": kind, "status": "True", "message": message}
    return {**job, "status": {**job["status"], "conditions": [condition]}}


def _asking_for_control(job: dict[str, Any]) -> dict[str, Any]:
    metadata = job["metadata"]
    return {
        **job,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], NEEDS_CONTROL: "true"}},
    }


_LOST = "Failed", "NodeLost", "nothing of the job is alive: killed, or the machine restarted"
"""Type, reason and message of the condition."""
_LOG = logging.getLogger(__name__)
_SWEEP_SECONDS = 3.0
_PACE_SECONDS = 0.04


_OF_A_JOB = ("cpu", "labels", "secrets", "lease", "hang_after")
"""Fields of PodOptions that are not only for pods: each has its effect here, or is refused."""


class LocalBackend:
    """Jobs below one directory. Any number of processes may use it at once; there is no daemon.

    Jobs that are made for a `line` wait in it, instead of starting.
    """

    name = "local"
    parts = None
    ports = LocalPorts()
    shells = LocalShells()

    def __init__(self, root: Path, connections: Connections | None = None, line: Line | None = None) -> None:
        self.connections = connections or Connections(Settings(local_store=root))
        self._layout = Layout(os.path.abspath(root))
        self._waits = {"line": asdict(line), "waits": True} if line else {}
        self.store = DirectoryObjectStore(Path(self._layout.store))

    @classmethod
    def of_store(cls, store: Path, connections: Connections | None = None) -> LocalBackend:
        """The backend whose object store lies there."""
        return cls(store.parent, connections)

    @property
    def cluster(self) -> ClusterName:
        """This machine has no name that another would know."""
        return "", "", "local"

    @property
    def namespace(self) -> None:
        """Jobs of this machine are one user's, whatever namespace they name."""
        return

    @property
    def lines(self) -> None:
        """A supervisor on this machine gives inputs their turns."""

    @property
    def supervised_queue(self) -> LocalQueue:
        return LocalQueue(self._layout, partial(LocalBackend, Path(self._layout.root), self.connections))

    @property
    def key(self) -> str:
        return f"local:{self._layout.root}"

    def check(self, spec: JobSpec) -> tuple[str, ...]:
        """Raises BackendUnavailable if jobs cannot run here, or not with that memory limit."""
        if os.name != "posix":
            raise BackendUnavailable("backend='local' needs Linux or macOS; use WSL on Windows")
        notices = []
        cores = spec.accelerator.cpu_count
        if cores is not None and cores > core_count():
            notices.append(f"{spec.accelerator}: this machine has {core_count()} cores; using {core_count()}")
        if spec.memory is not None:
            try:
                limit_memory(f"probe-{os.getpid()}-{time.monotonic_ns()}", spec.memory).remove()
            except OSError as exc:
                raise BackendUnavailable(
                    f"memory={spec.memory} cannot be enforced on this machine (no writable memory cgroup: "
                    f"{exc.strerror}); leave memory out, or run as a user who may create one"
                ) from exc
        if spec.pod.secrets:
            raise InvalidRequest(
                "secrets= is not supported by backend 'local': set the variables on this machine, and "
                "name them in capture_env_vars="
            )
        if spec.debug_wait is not None and find_spec("debugpy") is None:
            raise BackendUnavailable(
                "debug=True with backend 'local' needs debugpy here: pip install debugpy"
            )
        if spec.container_image is not None:
            notices.append(f"container_image={spec.container_image!r} is not used by backend 'local'")
        default = PodOptions()
        of_pods = [one.name for one in fields(PodOptions) if one.name not in _OF_A_JOB]
        if unused := [name for name in of_pods if getattr(spec.pod, name) != getattr(default, name)]:
            notices.append(f"{'=, '.join(unused)}= has no effect with backend 'local', which has no pods")
        return tuple(notices)

    def check_output_dir(self, place: str) -> None:
        """Paths of this machine only."""
        if "://" in place:
            raise InvalidRequest(
                f"output_dir={place!r} is no directory of this machine, where backend 'local' runs; give a "
                "path, or leave it out"
            )

    def surroundings(self, namespace: str, service_account: str | None = None) -> Surroundings:
        """Return emulator's address and log level, as pods get them.

        Jobs are this user's processes, with this user's home.
        """
        del namespace, service_account
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        told = {"STORAGE_EMULATOR_HOST": emulator} if emulator else {}
        return Surroundings(environment={**told, **verbosity()})

    def create(self, manifest: Mapping[str, Any]) -> bool:
        """Start the job's agent, or let it wait. Raises JobConflict if the id is taken by a different job."""
        metadata = manifest["metadata"]
        namespace, job_id = metadata["namespace"], metadata["labels"]["kinetic.dev/job-id"]
        try:
            self._prepare(namespace)
            lock = self._lock_or_existing(namespace, job_id, metadata["annotations"][SPEC_DIGEST])
        except OSError as exc:
            raise translated(exc, f"cannot create {job_id} in {self._layout.root}") from exc
        if lock is None:
            return False
        path = self._layout.record(namespace, job_id)
        spec = {**manifest["spec"], "suspend": False}  # nothing here would admit it from a queue
        metadata = {**metadata, "creationTimestamp": timestamp()}
        job = {**manifest, "metadata": metadata, "spec": spec, "status": {}}
        try:
            waits = self._waits or ({"waits": True} if waits_for_worker(manifest) else {})
            record = {"job": job, "pods": [], "created": time.time(), **waits}
            if origin_id := metadata["labels"].get(ORIGIN_ID):
                folder = Path(self._layout.origins(namespace))
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (folder / f"{origin_id}-{job_id}").touch()
            write_record(path, record, new=True)
            if not waits:
                start_agent(self._layout, namespace, job_id, lock)
        except BackendUnavailable:
            Path(path).unlink(missing_ok=True)
            raise
        except OSError as exc:
            Path(path).unlink(missing_ok=True)
            raise translated(exc, f"cannot start {job_id}") from exc
        finally:
            os.close(lock)
        return True

    def get(self, namespace: str, job_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """The Job and its Pods.

        A job of which nothing lives any more is shown as lost. It asks for `control`, as does one of a batch
        that has lost its supervisor.
        """
        try:
            record, needs_control = self._observed(namespace, job_id)
        except OSError as exc:
            raise translated(exc, f"cannot read {job_id} in {self._layout.root}") from exc
        if record is None:
            return None
        job, pods = with_reason(record), record["pods"]
        if pods and WORKER in job["metadata"]["labels"]:  # a worker may have claimed attempts before
            pods = list(ClaimedAttempts(self.store).numbered(job, pods))
        return (_asking_for_control(job) if needs_control else job), pods

    def control(self, namespace: str, job_id: str) -> None:
        """Record that a job is lost of which nothing lives; give its batch a supervisor if it lacks one.

        Raises StoreError, BackendUnavailable.
        """
        try:
            record = read_job(self._layout, namespace, job_id)
            if record is None or is_over(record):
                return
            if line := record.get("line"):
                self.supervised_queue.supervise(namespace, Line(**line), is_waiting=is_waiting(record))
            elif is_waiting(record) and not waits_for_worker(record["job"]):
                self.start(namespace, job_id)  # whoever was about to has died
            self._end_if_lost(namespace, job_id)
        except OSError as exc:
            raise translated(exc, f"cannot control {job_id} in {self._layout.root}") from exc

    def meaning(self, accelerator: object) -> None:
        """This machine has no pools."""

    def never_runs(self, found: object) -> None:
        """Any accelerator is accepted here."""

    def remedy(self, accelerator: object) -> str:
        """Whatever a job waits for here, more hardware is no remedy."""
        del accelerator
        return ""

    def events(self, *_: object) -> tuple[()]:
        return ()

    def all(
        self,
        namespace: str,
        *,
        fresh: bool = True,  # noqa: ARG002  nothing is watched here
    ) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Always fresh. A job whose record is damaged is left out with a warning."""
        found = {}
        for job_id in self._ids(namespace):
            try:
                objects = self.get(namespace, job_id)
            except StoreError as exc:
                _LOG.warning("leaving %s out: %s", job_id, exc)
                continue
            if objects is not None:
                found[job_id] = objects
        return found

    def _ids(self, namespace: str) -> list[str]:
        try:
            names = os.listdir(self._layout.cluster(namespace))
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def states(
        self, namespace: str, job_ids: Collection[str], *, and_alive: bool = False
    ) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Read the end of each record, and more of those alone that live."""
        wanted = set(job_ids)
        dropped: dict[str, str | None] = {}
        found = {}
        for job_id in self._ids(namespace) if and_alive else wanted:
            try:
                objects = self._state(namespace, job_id, dropped, even_ended=job_id in wanted)
            except (StoreError, OSError) as exc:
                _LOG.warning("leaving %s out: %s", job_id, exc)
                continue
            if objects is not None:
                found[job_id] = objects
        return found

    def _state(
        self, namespace: str, job_id: str, dropped: dict[str, str | None], *, even_ended: bool
    ) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """What `states` says of one job. `dropped`: since when batches are, as far as somebody has looked."""
        path = self._layout.record(namespace, job_id)
        summary = read_summary(path)
        if summary is not None and "line" in summary:
            group_id = summary["line"]["group_id"]
            if group_id not in dropped:
                dropped[group_id] = dropped_at(self._layout, namespace, group_id)
                summary = read_summary(path)  # it may have begun meanwhile
        at = dropped[summary["line"]["group_id"]] if summary and "line" in summary else None
        if summary is None or not (even_ended or (at is None and "ended" not in summary)):
            return None
        record: dict[str, Any] = {"job": {"metadata": {}, "status": {}}, "pods": [], **summary}
        if "ended" in summary:
            record["job"]["status"]["conditions"] = [summary["ended"]]
        elif "line" not in summary:
            return self.get(namespace, job_id)
        elif at is not None:
            end(record, *DROPPED_CONDITION, at)
        else:
            record["waits"] = True
        return with_reason(record), []

    def signing_secret(self, namespace: str, *, make: bool = False) -> bytes | None:
        """A file of this user's; jobs on this machine are the same user's."""
        try:
            if make:
                self._prepare(namespace)
            return _read_secret(self._layout.signing_secret, make=make)
        except OSError as exc:
            raise translated(exc, f"cannot read {self._layout.signing_secret}") from exc

    def of_origin(self, namespace: str, origin_id: str) -> list[dict[str, Any]]:
        """Read the records of these jobs alone, whatever else there is."""
        try:
            names = sorted(os.listdir(self._layout.origins(namespace)))
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise translated(exc, f"cannot read the jobs of {namespace} in {self._layout.root}") from exc
        ids = (name.removeprefix(f"{origin_id}-") for name in names if name.startswith(f"{origin_id}-"))
        found = (self.get(namespace, job_id) for job_id in ids)
        return [each[0] for each in found if each is not None]

    def abandon(self, namespace: str, job_id: str) -> None:
        self.delete(namespace, job_id)

    def delete(self, namespace: str, job_id: str) -> None:
        """Cancel: returns when the job's processes are dead."""
        before = "Cancelled", "cancelled before its turn"
        while True:
            self._end_if_lost(namespace, job_id)
            record = read_job(self._layout, namespace, job_id)
            if record is None or is_over(record):
                return
            if is_waiting(record) and end_waiting(self._layout, namespace, job_id, *before):
                return
            agent, group = record.get("agent"), record.get("group")
            if agent and process.is_same(agent):
                with suppress(ProcessLookupError):  # it has ended since: the next round sees how
                    os.kill(agent["pid"], signal.SIGTERM)
            elif group and process.is_same(group):
                process.kill_tree(group["pid"])
            time.sleep(0.02)

    def release(self, namespace: str, job_id: str, succeeded: bool) -> None:
        """Write down that a call has ended on its worker: nothing else outlives a job's processes here."""
        record = read_job(self._layout, namespace, job_id)
        if record is not None and is_waiting(record) and waits_for_worker(record["job"]):
            how = ("CompletionsReached", "Complete") if succeeded else ("FailedIndexes", "Failed")
            end_waiting(self._layout, namespace, job_id, how[0], "its worker has run it", how[1])

    def start(self, namespace: str, job_id: str) -> None:
        """Start the agent of a call that was meant for a worker. Raises StoreError, BackendUnavailable."""
        path = self._layout.record(namespace, job_id)
        lock = take_lock(self._layout.lock(namespace, job_id))
        if lock is None:
            return  # somebody else does it, or has done it
        try:
            record = read_job(self._layout, namespace, job_id)
            if record is None or not is_waiting(record) or "line" in record:
                return
            record["job"]["spec"]["parallelism"] = 1
            write_record(path, record)
            start_agent(self._layout, namespace, job_id, lock)
        except OSError as exc:
            raise translated(exc, f"cannot start {job_id}") from exc
        finally:
            os.close(lock)

    def lives(self, namespace: str, job_id: str) -> bool:
        """Whether a process of the job holds its lock."""
        return is_held(self._layout.lock(namespace, job_id))

    def let_go(self, namespace: str, job_id: str, attempt: int) -> None:
        """This machine is never silent about itself."""

    def remove(self, namespace: str, *job_ids: str) -> None:
        """Forget finished jobs: their records, locks, working directories and container logs.

        A job that lives stays: it has been made again since somebody saw it end.
        """
        for job_id in job_ids:
            found = self.get(namespace, job_id)
            lock = self._lock_of_ended(namespace, job_id)
            if lock is None:
                continue
            try:
                self._forget(namespace, job_id, found)
                Path(self._layout.lock(namespace, job_id)).unlink(missing_ok=True)
            finally:
                os.close(lock)
        forget_old_times(self._layout)

    def _forget(
        self, namespace: str, job_id: str, found: tuple[Mapping[str, Any], Sequence[Any]] | None
    ) -> None:
        if found is not None and (origin_id := found[0]["metadata"]["labels"].get(ORIGIN_ID)):
            Path(self._layout.origins(namespace), f"{origin_id}-{job_id}").unlink(missing_ok=True)
        if found is not None:
            try:
                keep_times(self._layout, namespace, job_id, found)
            except OSError as exc:  # a full disk is what removing may be for
                _LOG.info("explain() will not know how long %s waited: %s", job_id, exc)
        forget(self._layout, namespace, job_id)

    def removed(self, namespace: str, job_id: str) -> tuple[Mapping[str, Any], Sequence[Any]] | None:
        """What was kept of a job that was removed within the hour, if not longer."""
        return kept_times(self._layout, namespace, job_id)

    def pace(self, namespace: str, wake: Callable[[], None]) -> float:
        """Nobody announces what other processes write: a look costs two system calls."""
        del namespace, wake
        return _PACE_SECONDS

    def changes(
        self, namespace: str, since: object | None, only: JobReference | None = None
    ) -> tuple[object, set[str] | None]:
        """What changed, by the directory's and the records' times; every few seconds: everything may have."""
        del only
        folder = self._layout.cluster(namespace)
        previous = since if isinstance(since, Snapshot) else None
        try:
            stamp = os.stat(folder).st_mtime_ns
            if previous is not None and time.monotonic() - previous.swept < _SWEEP_SECONDS:
                if stamp == previous.stamp:
                    return previous, set()
                seen = Snapshot(stamp, record_times(folder), previous.swept)
                changed = {name for name, at in seen.times.items() if previous.times.get(name) != at}
                changed |= previous.times.keys() - seen.times.keys()
                if any(name.endswith(DROPPED_MARK) for name in changed):
                    return seen, None
                return seen, {name.removesuffix(".json") for name in changed}
            return Snapshot(stamp, record_times(folder), time.monotonic()), None
        except FileNotFoundError:
            return None, None

    def log(
        self, namespace: str, job_id: str, attempt: int, offset: int, host: int = 0, size: int = -1
    ) -> bytes | None:
        del namespace, host  # job ids are unique in a store; here every job is one process
        try:
            with open(self._layout.log(job_id, attempt), "rb") as stream:
                stream.seek(offset)
                return stream.read(size)
        except FileNotFoundError:
            return None

    def _observed(self, namespace: str, job_id: str) -> tuple[dict[str, Any] | None, bool]:
        """The record, that of a lost job ended, and whether `control` would do anything. Raises OSError."""
        while True:
            record = read_job(self._layout, namespace, job_id)
            if record is None or is_over(record):
                return record, False
            waits, line = is_waiting(record), record.get("line")
            unsupervised = line is not None and self.supervised_queue.lacks_supervisor(
                namespace, Line(**line), is_waiting=waits
            )
            if waits or is_held(self._layout.lock(namespace, job_id)):
                is_left = waits and line is None and not waits_for_worker(record["job"])
                return record, unsupervised or is_left
            if (
                read_job(self._layout, namespace, job_id) == record
            ):  # else it has ended, or was made again, between reading and asking
                end(record, *_LOST)
                del record["job"]["status"]["conditions"][-1]["lastTransitionTime"]  # which nobody knows
                return record, True

    def _end_if_lost(self, namespace: str, job_id: str) -> None:
        """Record that nothing of a job lives any more, and end what it may have started. Raises OSError."""
        record = read_job(self._layout, namespace, job_id)
        if record is None or is_over(record) or is_waiting(record):
            return
        lock = take_lock(self._layout.lock(namespace, job_id))
        if lock is None:
            return
        try:
            record = read_job(self._layout, namespace, job_id)  # it may have ended before it was locked
            if record is None or is_over(record) or is_waiting(record):  # or have been made again
                return
            if (group := record.get("group")) is not None and process.is_same(group):
                process.kill_tree(group["pid"])
            process.kill_marked(self._layout.work(job_id))
            end(record, *_LOST)
            write_record(self._layout.record(namespace, job_id), record)
        finally:
            os.close(lock)

    def _lock_of_ended(self, namespace: str, job_id: str) -> int | None:
        """The lock of a job of which nothing lives any more; None if it lives, or is being made again."""
        while True:
            try:
                lock = take_lock(self._layout.lock(namespace, job_id))
            except FileNotFoundError:  # no job was ever made in this namespace
                return None
            if lock is not None:
                return lock
            record = read_job(self._layout, namespace, job_id)
            if record is None or not is_over(record):
                return None
            time.sleep(0.01)  # its agent is about to end

    def _prepare(self, namespace: str) -> None:
        layout = self._layout
        os.makedirs(layout.root, mode=0o700, exist_ok=True)
        os.makedirs(layout.cluster(namespace), exist_ok=True)
        unpack_runner(layout, self.connections.settings.cache)

    def _lock_or_existing(self, namespace: str, job_id: str, digest: str) -> int | None:
        """The lock of a job that does not exist yet; None if the same job does."""
        deadline = time.monotonic() + 10
        while True:
            lock = take_lock(self._layout.lock(namespace, job_id))
            record = read_job(self._layout, namespace, job_id)
            if record is not None:
                if lock is not None:
                    os.close(lock)
                if record["job"]["metadata"]["annotations"].get(SPEC_DIGEST) != digest:
                    raise JobConflict(f"{job_id} exists already and is a different call; use another job id")
                return None
            if lock is not None:
                return lock
            if time.monotonic() > deadline:
                raise StoreError(
                    f"timed out after 10 s waiting for another process to create {job_id}: submit again"
                )
            time.sleep(0.01)


_SECRET_BYTES = 32


def _read_secret(path: str, *, make: bool = False) -> bytes | None:
    """Return the secret in a file that only this user can read; made if `make` and there is none."""
    try:
        with open(path, "rb") as stream:
            found = stream.read()
    except FileNotFoundError:
        return _made_secret(path) if make else None
    return found if len(found) == _SECRET_BYTES else None


def _made_secret(path: str) -> bytes | None:
    """Write a secret, whole or not at all; of two processes that do so at once one does."""
    own = f"{path}.{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            os.link(own, path)
        except FileExistsError:
            pass  # another process was first
    finally:
        os.unlink(own)
    return _read_secret(path)
