"""The local backend: jobs as detached processes of this machine, described by Kubernetes objects."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kinetic_core.cluster.manifest import Surroundings
from kinetic_core.cluster.names import SPEC_DIGEST
from kinetic_core.errors import BackendUnavailable, InvalidRequest, JobConflict, StoreError
from kinetic_core.local import process
from kinetic_core.local.layout import Layout
from kinetic_core.local.limits import limit_memory
from kinetic_core.local.lines import forget
from kinetic_core.local.ports import LocalPorts
from kinetic_core.local.reasons import with_reason
from kinetic_core.local.record import (
    end,
    end_waiting,
    is_over,
    is_waiting,
    read_record,
    take_lock,
    timestamp,
    write_record,
)
from kinetic_core.local.seen import Seen, record_times
from kinetic_core.local.slots import core_count
from kinetic_core.local.starting import start_agent, unpack_runner
from kinetic_core.local.turns import LocalTurns
from kinetic_core.model.job import ClusterName, JobSpec
from kinetic_core.model.line import Line
from kinetic_core.storage.directory import DirectoryObjectStore, translated

_LOG = logging.getLogger(__name__)
_SWEEP_SECONDS = 3.0
_PACE_SECONDS = 0.04


class LocalBackend:
    """Jobs below one directory. Any number of processes may use it at once; there is no daemon.

    Jobs that are made for a `line` wait in it, instead of starting.
    """

    name = "local"
    parts = None
    ports = LocalPorts()

    def __init__(self, root: Path, line: Line | None = None) -> None:
        self._layout = Layout(os.path.abspath(root))
        self._waits = {"line": asdict(line), "waits": True} if line else {}
        self.store = DirectoryObjectStore(Path(self._layout.store))

    @classmethod
    def of_store(cls, store: Path) -> LocalBackend:
        """The backend whose object store lies there."""
        return cls(store.parent)

    @property
    def cluster(self) -> ClusterName:
        """This machine has no name that another would know."""
        return "", "", "local"

    @property
    def lines(self) -> None:
        """A supervisor on this machine gives inputs their turns."""

    @property
    def turns(self) -> LocalTurns:
        return LocalTurns(self._layout, partial(LocalBackend, Path(self._layout.root)))

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
                "secrets= refers to Secrets of a cluster, which backend 'local' has not; for a test, set the "
                "variables here and name them in capture_env_vars"
            )
        if spec.debug_wait is not None and find_spec("debugpy") is None:
            raise BackendUnavailable(
                "debug=True with backend 'local' needs debugpy here: pip install debugpy"
            )
        if spec.container_image is not None:
            notices.append(f"container_image={spec.container_image!r} is not used by backend 'local'")
        return tuple(notices)

    def check_output_dir(self, place: str) -> None:
        """Paths of this machine only."""
        if "://" in place:
            raise InvalidRequest(
                f"output_dir={place!r} is no directory of this machine, where backend 'local' runs; give a "
                "path, or leave it out"
            )

    def surroundings(self, namespace: str) -> Surroundings:
        """The emulator's address, as pods get it; jobs are this user's processes, with this user's home."""
        del namespace
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        return Surroundings(environment={"STORAGE_EMULATOR_HOST": emulator} if emulator else {})

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
        job = {**manifest, "metadata": {**metadata, "creationTimestamp": timestamp()}, "status": {}}
        try:
            record = {"job": job, "pods": [], "created": time.time(), **self._waits}
            write_record(path, record, new=True)
            if not self._waits:
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

        A job of which nothing lives any more is ended as lost here; one that waits for a supervisor that
        died gets another.
        """
        try:
            record = self._read(namespace, job_id)
        except OSError as exc:
            raise translated(exc, f"cannot read {job_id} in {self._layout.root}") from exc
        return (with_reason(record), record["pods"]) if record else None

    def never_runs(self, found: object) -> None:
        """Any accelerator is accepted here."""

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
        for record in sorted(Path(self._layout.cluster(namespace)).glob("*.json")):
            try:
                objects = self.get(namespace, record.stem)
            except StoreError as exc:
                _LOG.warning("leaving %s out: %s", record.stem, exc)
                continue
            if objects is not None:
                found[record.stem] = objects
        return found

    def abandon(self, namespace: str, job_id: str) -> None:
        self.delete(namespace, job_id)

    def delete(self, namespace: str, job_id: str) -> None:
        """Cancel: returns when the job's processes are dead."""
        path, lock = self._layout.record(namespace, job_id), self._layout.lock(namespace, job_id)
        while (record := self._read(namespace, job_id)) is not None and not is_over(record):
            if is_waiting(record) and end_waiting(path, lock, "Cancelled", "cancelled before its turn"):
                return
            agent, group = record.get("agent"), record.get("group")
            if agent and process.is_same(agent):
                os.kill(agent["pid"], signal.SIGTERM)
            elif group and process.is_same(group):
                process.kill_group(group["pid"])
            time.sleep(0.02)

    def release(self, namespace: str, job_id: str, succeeded: bool) -> None:
        """Nothing is held here that outlives a job's processes."""

    def let_go(self, namespace: str, job_id: str, attempt: int) -> None:
        """This machine is never silent about itself."""

    def remove(self, namespace: str, *job_ids: str) -> None:
        """Forget finished jobs: their records, locks, working directories and container logs."""
        for job_id in job_ids:
            forget(self._layout, namespace, job_id)
            Path(self._layout.lock(namespace, job_id)).unlink(missing_ok=True)

    def pace(self, namespace: str, wake: Callable[[], None]) -> float:
        """Nobody announces what other processes write: a look costs two system calls."""
        del namespace, wake
        return _PACE_SECONDS

    def changes(self, namespace: str, since: object | None) -> tuple[object, set[str] | None]:
        """What changed, by the directory's and the records' times; every few seconds: everything may have."""
        folder = self._layout.cluster(namespace)
        previous = since if isinstance(since, Seen) else None
        try:
            stamp = os.stat(folder).st_mtime_ns
            if previous is not None and time.monotonic() - previous.swept < _SWEEP_SECONDS:
                if stamp == previous.stamp:
                    return previous, set()
                seen = Seen(stamp, record_times(folder), previous.swept)
                changed = {name for name, at in seen.times.items() if previous.times.get(name) != at}
                changed |= previous.times.keys() - seen.times.keys()
                return seen, {name.removesuffix(".json") for name in changed}
            return Seen(stamp, record_times(folder), time.monotonic()), None
        except FileNotFoundError:
            return None, None

    def log(self, namespace: str, job_id: str, attempt: int, offset: int, host: int = 0) -> bytes | None:
        del namespace, host  # job ids are unique in a store; here every job is one process
        try:
            with open(self._layout.log(job_id, attempt), "rb") as stream:
                stream.seek(offset)
                return stream.read()
        except FileNotFoundError:
            return None

    def _read(self, namespace: str, job_id: str) -> dict[str, Any] | None:
        path = self._layout.record(namespace, job_id)
        record = read_record(path)
        if record is None or is_over(record):
            return record
        if line := record.get("line"):
            self.turns.look_after(namespace, Line(**line), is_waiting=is_waiting(record))
        if is_waiting(record):
            return record
        lock = take_lock(self._layout.lock(namespace, job_id))
        if lock is None:
            return record
        try:
            record = read_record(path)  # it may have ended between reading and locking
            if record is None or is_over(record) or is_waiting(record):  # or have been made again
                return record
            if (group := record.get("group")) is not None and process.is_same(group):
                process.kill_group(group["pid"])
            end(record, "Failed", "NodeLost", "nothing of the job is alive: killed, or the machine restarted")
            write_record(path, record)
            return record
        finally:
            os.close(lock)

    def _prepare(self, namespace: str) -> None:
        layout = self._layout
        os.makedirs(layout.root, mode=0o700, exist_ok=True)
        os.makedirs(layout.cluster(namespace), exist_ok=True)
        unpack_runner(layout)

    def _lock_or_existing(self, namespace: str, job_id: str, digest: str) -> int | None:
        """The lock of a job that does not exist yet; None if the same job does."""
        path, deadline = self._layout.record(namespace, job_id), time.monotonic() + 10
        while True:
            lock = take_lock(self._layout.lock(namespace, job_id))
            record = read_record(path)
            if record is not None:
                if lock is not None:
                    os.close(lock)
                if record["job"]["metadata"]["annotations"].get(SPEC_DIGEST) != digest:
                    raise JobConflict(f"{job_id} exists already and is a different call; use another job id")
                return None
            if lock is not None:
                return lock
            if time.monotonic() > deadline:
                raise StoreError(f"{job_id} is being created by another process that does not go on")
            time.sleep(0.01)
