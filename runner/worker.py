"""Worker: a job without a function, whose runner runs calls of its user, one after the other.

A client gives it a call by creating the object of the worker's next number, a note that is signed with the
worker's key (`object_names.call`). A number has one object, so that of two clients one has the worker. A
worker that has waited in vain for long enough creates it itself, and ends: nobody gives it a call any more.

Each call has a runner of its own, a fork of this process, which claims the attempt, watches user code and
commits the outcome as that of a pod does. User code runs in a fork of that, or, with `reuse=`, in or below a
process that is kept for all calls (kept_process.py). This process is to the call what the Job controller is
to a pod: it starts another attempt when the one before has ended and may be repeated. Nothing else of a call
outlives it here: its processes are killed, and its directory is removed.

Of a worker with several hosts each runs every call, in the same order, with a runner of its own; those agree
on its attempts as the pods of a slice do (rendezvous.py). Host 0 closes the worker. A host that cannot go on
with a call ends, and with it the worker.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import object_names, wire
from .attempt import PROCESS, Job, take_job
from .claims import all_have_ended, tell_end
from .notes import ForgedNote, decode_note, encode_note, read_start
from .nudge import Nudge, open_nudge
from .outcome import Outcome, commit, committed_code, failed
from .patience import PatientStore
from .phases import note
from .processes import adopt_orphans, die_with, end_below, fork_quietly
from .rendezvous import HOSTS_A_SECOND, Rendezvous
from .signing_key import VARIABLE, forget_key, wipe_bytes
from .spare_files import KeptFiles
from .store import MissingObject, Store, StoreUnavailable, exists
from .watch import Signals
from .workspace import IMPORTED_FOR_CALLS

if TYPE_CHECKING:
    from .kept_process import KeptProcess

CLOSED = {"closed": True}
"""What a worker that is about to end notes under its next number."""
_PAUSES = {"local": (0.02, 0.3)}
_OTHER_PAUSES = (0.1, 0.5)
"""Seconds between looks for a call, by backend: soon after the last one, for calls come in rows; later."""
_SOON_SECONDS = 1.0
_TICK = 1.0
_OF_CALLS = ("batch", "client_package", "data", "payload", "shared_cache", "trees", "unpack", "workspace")
"""Modules of the runner that every call imports."""
_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
"""Seconds between two attempts of a call."""
_LOST_SECONDS = 60.0
"""Seconds beyond its idle time that a worker waits for a store in which it cannot close itself."""
_BEYOND_GRACE = 12.0
"""Seconds after user code's grace in which a call's runner must have published its outcome."""
_KILLED = 128 + signal.SIGKILL
_OVER = (wire.EXIT_SUCCEEDED, wire.EXIT_NEVER_RETRY, wire.EXIT_FENCED, wire.EXIT_UNSURE)
_IGNORED = (wire.EXIT_UNPUBLISHED, wire.EXIT_INTERRUPTED, wire.EXIT_REGROUP, _KILLED)
_GATHER_SECONDS = 3600.0
"""Seconds, or its idle time if that is longer, for all hosts of a worker to be there."""
_TOLD = (wire.EXIT_USER_ERROR, wire.EXIT_INTERRUPTED)
"""Exit codes of a runner that has stored how its attempt ended, and may be followed by another."""
_SETTLED = (wire.EXIT_SUCCEEDED, wire.EXIT_USER_ERROR, wire.EXIT_NEVER_RETRY, wire.EXIT_INTERRUPTED)
"""Exit codes of a runner that has seen its user code end. After any other the keeper is killed, too: it may
be what hangs."""


@dataclass(frozen=True)
class Call:
    """Call that a client has given the worker: the variables of its container, without the key."""

    job_id: str
    key_id: str
    environment: Mapping[str, str]

    @classmethod
    def from_note(cls, told: Mapping[str, Any]) -> Call:
        """Read a note whose signature was checked."""
        values = {str(name): str(value) for name, value in told["environment"].items()}
        return cls(values["KINETIC_JOB_ID"], values["KINETIC_KEY_ID"], values)


def serve(worker: Job, store: Store, opener: Callable[[str], Store], signals: Signals) -> Outcome | None:
    """Run calls until none has come for the worker's idle time, or it is told to end.

    Returns the worker's outcome, None for a host that is not the one to tell it.
    """
    assert worker.idle is not None  # noqa: S101  who has none is no worker
    gc.enable()
    adopt_orphans()
    _import_for_calls()
    if worker.hosts > 1 and not _gather(worker, store, signals):
        return _ended_early(worker, store, signals, "not all of its hosts came")
    note(worker, "serving")
    nudge = open_nudge(worker, store) if worker.host == 0 else None
    kept = _kept_process(worker, opener, signals, nudge)
    spare = KeptFiles(os.path.join(worker.work_dir, "calls"))
    calls, lost = _Calls(worker, store, signals, nudge), ""
    try:
        while not lost and (call := calls.next()) is not None:
            number = calls.taken - 1
            sys.stderr.write(f"kinetic: call {number} is {call.job_id}\n")
            if not _run(_CallRun(worker, store, opener, signals, call, number, nudge, kept, spare)):
                lost = f"call {number} could not go on here"  # its observers give it a pod: the worker ends
    except StoreUnavailable as exc:
        sys.stderr.write(f"kinetic: the worker ends without closing itself: {exc}\n")
        lost = "its store gave no answer"
    if kept is not None:
        kept.close()
    spare.clear()
    note(worker, "idle", time.time() - calls.idle)  # at the end, all in one, after the time of the calls
    if signals.told or (lost and worker.hosts > 1):  # of several hosts the others must end, too
        return _ended_early(worker, store, signals, lost)
    if worker.host:
        return None
    return Outcome("succeeded", "none", {}, result_repr=f"{calls.taken} calls")


class _Calls:
    """Calls of a worker, in their order: `taken` is how many it has had, `idle` how long it has waited."""

    def __init__(self, worker: Job, store: Store, signals: Signals, nudge: Nudge | None) -> None:
        self._worker, self._store, self._signals, self._nudge = worker, store, signals, nudge
        self.taken, self.idle = 0, 0.0

    def next(self) -> Call | None:
        """Wait for the next call; None once the worker is closed, or told to end.

        Raises StoreUnavailable if the store gives no answer for long after the worker's idle time.
        """
        since = time.monotonic()
        try:
            return self._next(since)
        finally:
            self.idle += time.monotonic() - since

    def _next(self, since: float) -> Call | None:
        worker, store = self._worker, self._store
        assert worker.idle is not None  # noqa: S101  who has none is no worker
        soon, later = _PAUSES.get(worker.backend, _OTHER_PAUSES)
        later = max(later, worker.hosts / HOSTS_A_SECOND)
        while not self._signals.told:
            waited, call = time.monotonic() - since, None
            try:
                call = _next_call(worker, store, self.taken)
                may_close = worker.host == 0 and waited >= worker.idle
                if call is None and may_close and _close(worker, store, self.taken):
                    return None
            except ForgedNote as exc:
                sys.stderr.write(f"kinetic: {exc}; it is passed over\n")
                self.taken += 1
                continue
            except _Closed:
                return None
            except StoreUnavailable:
                if waited >= worker.idle + _LOST_SECONDS:
                    raise
            if call is not None and not self._signals.told:
                self.taken += 1
                return call
            _wait(self._signals, soon if waited < _SOON_SECONDS else later, self._nudge)
        return None


def _gather(worker: Job, store: Store, signals: Signals) -> bool:
    """Wait until all hosts of a worker are there; return False if it must end before they are."""
    assert worker.idle is not None  # noqa: S101  who has none is no worker
    until = time.monotonic() + max(_GATHER_SECONDS, worker.idle)
    rendezvous = Rendezvous(worker, store, sleep=lambda seconds: _wait(signals, seconds))
    return rendezvous.gather(lambda: bool(signals.told) or time.monotonic() > until) is None


def _ended_early(worker: Job, store: Store, signals: Signals, why: str) -> Outcome:
    """Return the outcome of a worker that has not closed itself."""
    if not signals.told:
        return failed(wire.FailureClass.PREEMPTED, f"the worker has ended: {why}", "execute", retry=False)
    if exists(store, object_names.cancel(worker.job_id)):
        return failed(wire.FailureClass.CANCELLED, "it was stopped", "execute", retry=False)
    return failed(wire.FailureClass.PREEMPTED, "the worker was told to end", "execute", retry=False)


def _kept_process(
    worker: Job, opener: Callable[[str], Store], signals: Signals, nudge: Nudge | None
) -> KeptProcess | None:
    """Return what runs the user code of a worker's calls, None if each call has a process of its own."""
    if not worker.reuse:
        return None
    from .kept_process import KeptProcess

    def start() -> None:
        signals.release()
        if nudge is not None:
            nudge.close()

    return KeptProcess(worker, opener, start)


def _import_for_calls() -> None:
    """Import what every call needs of this runner and the standard library: calls are forks of this process.

    A project that has a module of such a name gets its own all the same (`workspace.forget_shadowed`).
    """
    for name in _OF_CALLS:
        importlib.import_module(f".{name}", __package__)
    for name in IMPORTED_FOR_CALLS:
        importlib.import_module(name)


def _run(call: _CallRun) -> bool:
    """Run a call; return False if it must go on elsewhere, because it cannot here."""
    try:
        return call.run()
    except StoreUnavailable as exc:
        sys.stderr.write(f"kinetic: the worker gives up its call, and ends: {exc}\n")
        return False


class _Closed(Exception):
    """This worker has closed itself, and the answer to that was lost."""


def _next_call(worker: Job, store: Store, number: int) -> Call | None:
    """Read the call of that number, None if there is none. Raises _Closed, ForgedNote, StoreUnavailable."""
    name = object_names.call(worker.job_id, number)
    try:
        with store.hurried():
            told = decode_note(worker.outcome_key, name, read_start(store, name))
    except MissingObject:
        return None
    if told == CLOSED:
        raise _Closed
    return Call.from_note(told)


def _close(worker: Job, store: Store, number: int) -> bool:
    """Take the next number, so that nobody gives this worker a call; False if somebody just has."""
    name = object_names.call(worker.job_id, number)
    return store.create_if_absent(name, encode_note(worker.outcome_key, name, CLOSED))


def _wait(signals: Signals, seconds: float, nudge: Nudge | None = None) -> None:
    """Wait until a signal or a nudge has come, or the time is over."""
    sources: list[Any] = [signals.descriptor, *(nudge.sources() if nudge is not None else ())]
    ready, _, _ = select.select(sources, [], [], seconds)
    if signals.descriptor in ready:
        os.read(signals.descriptor, 1 << 10)
    elif ready and nudge is not None:
        nudge.take()


class _CallRun:
    """Run of one call, with all its attempts here."""

    def __init__(
        self,
        worker: Job,
        store: Store,
        opener: Callable[[str], Store],
        signals: Signals,
        call: Call,
        number: int,
        nudge: Nudge | None,
        kept: KeptProcess | None,
        spare: KeptFiles,
    ) -> None:
        self._worker, self._store, self._opener, self._nudge = worker, store, opener, nudge
        self._signals, self._call, self._kept, self._spare = signals, call, kept, spare
        name = "kept" if worker.reuse == PROCESS else f"{number}-{os.urandom(8).hex()}"
        self._folder = os.path.join(worker.work_dir, "calls", name)
        """Under a name that no earlier call could know; or, of a process that runs all calls, always the
        same: its modules come from there."""
        self._told_at: float | None = None
        """When (monotonic) the call's runner was told to end."""
        self._is_ended = False
        """Whether its client wants the call to end."""

    def run(self) -> bool:
        """Run attempts until the call is over, or must not go on here; return whether it is over."""
        failures = interruptions = 0
        retries, restarts = (
            int(self._call.environment.get(f"KINETIC_{name}") or 0)
            for name in ("RETRIES", "INFRASTRUCTURE_RETRIES")
        )
        is_slice = self._worker.hosts > 1
        most = restarts + 1 + is_slice * retries  # of a slice, one host's failure interrupts the others
        while True:
            code = self._attempt(failures, interruptions)
            if is_slice and code != wire.EXIT_SUCCEEDED:
                self._tell_end()
            if code in _OVER or self._told_at is not None:
                break
            if code not in _TOLD and not is_slice:
                self._tell_end()
            if code in _IGNORED:
                interruptions += 1
            else:
                failures += 1
            if failures > retries or interruptions > most:  # else its runner ends it by itself
                break
            _wait(self._signals, min(_LONGEST_BACKOFF, _BACKOFF * 2 ** (failures + interruptions - 1)))
        if self._is_ended and code not in _OVER and (not is_slice or self._all_have_ended()):
            self._commit_cancelled()
        shutil.rmtree(self._folder, ignore_errors=True)
        if is_slice and code != wire.EXIT_SUCCEEDED:
            return self._is_over_for_all()
        return code in _OVER or failures > retries or self._is_ended

    def _attempt(self, failures: int, interruptions: int) -> int:
        """Run one attempt in a runner of its own; return its exit code once nothing of it lives."""
        if self._kept is not None:
            self._kept.ensure()
            shutil.rmtree(self._folder, ignore_errors=True)
        key = self._key()
        parent = os.getpid()
        child, mask = fork_quietly()
        if child == 0:
            self._become_runner(key, failures, interruptions, parent, mask)
        forget_key(key)
        code = self._watch(child)
        if self._nudge is not None:
            self._nudge.tell()
        if self._kept is not None and code not in _SETTLED:
            self._kept.kill()
        spared = () if self._kept is None else self._kept.pids
        is_local = self._worker.backend == "local"
        if left := end_below(os.getpid(), collect=True, spared=spared, is_local=is_local):
            sys.stderr.write(f"kinetic: these processes of {self._call.job_id} do not die: {left}\n")
        elif self._kept is None and sys.platform == "linux":  # elsewhere processes may live on
            folder = os.path.join(self._folder, str(failures + interruptions))
            self._spare.replace(os.path.join(folder, "workspace"))
        return code

    def _tell_end(self) -> None:
        """Say in the place of a runner that was killed, or could not, that its attempt is over."""
        key = self._key()
        try:
            tell_end(self._described(key), self._store)
        finally:
            forget_key(key)

    def _all_have_ended(self) -> bool:
        """Wait until nothing of the call runs on any host; return False if that takes too long."""
        key = self._key()
        try:
            job = self._described(key)
            until = time.monotonic() + job.grace + _BEYOND_GRACE
            while not all_have_ended(job, self._store):
                if self._signals.told or time.monotonic() > until:
                    return False
                _wait(self._signals, _TICK / 5)
        finally:
            forget_key(key)
        return True

    def _is_over_for_all(self) -> bool:
        """Tell the call's other hosts that it is over; return False if it has no outcome."""
        key = self._key()
        try:
            job = self._described(key)
            if committed_code(job, self._store) is None:
                return False
            Rendezvous(job, self._store).close()
        except ForgedNote as exc:
            sys.stderr.write(f"kinetic: {exc}; the worker ends, for its hosts cannot agree\n")
            return False
        finally:
            forget_key(key)
        return True

    def _described(self, key: bytearray) -> Job:
        values = {**self._variables(), "KINETIC_WORK_DIR": self._folder, VARIABLE: ""}
        return replace(take_job(values), outcome_key=key)

    def _variables(self) -> dict[str, str]:
        """Return the variables of the call's container, with those that it has from this pod."""
        own = {name: os.environ[name] for name in _OF_THE_POD if name in os.environ}
        return {**self._call.environment, **own}

    def _key(self) -> bytearray:
        derived = wire.call_key(self._worker.outcome_key, self._call.key_id)
        key = bytearray(derived)
        wipe_bytes(derived)
        return key

    def _become_runner(
        self, key: bytearray, failures: int, interruptions: int, parent: int, mask: set[signal.Signals | int]
    ) -> None:
        from .main import run_job  # which has imported this module

        code = wire.EXIT_UNPUBLISHED
        try:
            die_with(parent)
            os.setsid()
            self._signals.release()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if self._nudge is not None:
                self._nudge.close()
            forget_key(self._worker.outcome_key)
            job = self._job(failures, interruptions)
            job = replace(job, outcome_key=key, spare=self._spare.path)
            os.makedirs(job.work_dir, exist_ok=True)  # else the call gets a pod, which has a disk of its own
            store = PatientStore(self._opener(job.store_uri))
            code = run_job(job, store, self._opener, time.time(), self._kept)
            sys.stdout.flush()
        finally:
            os._exit(code)

    def _job(self, failures: int, interruptions: int) -> Job:
        """Return the call's job, and give this process the environment of its container."""
        is_always_there = self._worker.reuse == PROCESS
        folder = (
            self._folder if is_always_there else os.path.join(self._folder, str(failures + interruptions))
        )
        for name in [each for each in os.environ if each.startswith("KINETIC_")]:
            if name not in self._call.environment and name not in _OF_THE_POD:
                del os.environ[name]
        os.environ.update(self._variables())
        if os.environ.get("HOME") == os.environ.get("KINETIC_WORK_DIR"):
            os.environ["HOME"] = folder  # in a pod, where both are the same volume
        os.environ["KINETIC_WORK_DIR"] = folder
        os.environ["KINETIC_FAILED_COUNT"] = str(failures)
        os.environ["KINETIC_IGNORED_COUNT"] = str(interruptions)
        os.environ["KINETIC_ON_WORKER"] = self._worker.job_id
        return take_job({**os.environ, VARIABLE: ""})

    def _watch(self, child: int) -> int:
        """Wait for the call's runner, and pass on what it is told; return its exit code."""
        grace = float(self._call.environment.get("KINETIC_GRACE_SECONDS") or 30)
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if self._told_at is None and (self._signals.told or self._must_end()):
                self._told_at = time.monotonic()
                os.kill(child, signal.SIGTERM)
            if self._told_at is not None and time.monotonic() > self._told_at + grace + _BEYOND_GRACE:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            _wait(self._signals, _TICK)

    def _must_end(self) -> bool:
        """Return whether the client has noted, signed with the call's key, that the call is to end."""
        name = object_names.end_call(self._call.job_id)
        key = self._key()
        try:
            with self._store.hurried():
                decode_note(key, name, read_start(self._store, name))
        except MissingObject:
            return False
        except ForgedNote as exc:
            sys.stderr.write(f"kinetic: {exc}; the call goes on\n")
            return False
        except StoreUnavailable:
            return False  # asked again in a second
        finally:
            forget_key(key)
        self._is_ended = True
        return True

    def _commit_cancelled(self) -> None:
        """Commit that the call was cancelled, in the place of a runner that had to be killed."""
        key = self._key()
        try:
            job = self._described(key)
            ended = failed(wire.FailureClass.CANCELLED, "it was cancelled", "execute", retry=False)
            told = {"job_id": job.job_id, "attempt": 0, "pod_uid": job.pod_uid, "key_id": job.key_id}
            commit(job, self._store, ended.to_frame(told, key), ended.state)
        except OSError as exc:
            sys.stderr.write(f"kinetic: that {self._call.job_id} was cancelled is not stored: {exc}\n")
        finally:
            forget_key(key)


_OF_THE_POD = (
    "KINETIC_POD_UID",
    "KINETIC_CACHE_DIR",
    "KINETIC_VOLUMES_DIR",
    "KINETIC_RUNNER_DIR",
    "KINETIC_RUNNER_SHA256",
    "KINETIC_RUNNER_BYTES",
    "KINETIC_BACKEND",
    "KINETIC_STORE",
    "KINETIC_HOST_COUNT",
    "KINETIC_HOST_INDEX",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)
"""Variables that a worker's calls have from its pod, among them the addresses of its hosts."""
