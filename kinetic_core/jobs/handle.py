"""`JobHandle`: one job, as its user observes, cancels and collects it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import InvalidRequest, KineticError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs import cancel as ending
from kinetic_core.jobs import collect as collecting
from kinetic_core.jobs import logs
from kinetic_core.jobs import observe as observing
from kinetic_core.jobs.facts import attempt_failure
from kinetic_core.jobs.fallback import remedy
from kinetic_core.terminal import Progress

if TYPE_CHECKING:
    from kinetic_core.jobs.cost import Usage
    from kinetic_core.jobs.debug import DebugSession
    from kinetic_core.jobs.outputs import Outputs
    from kinetic_core.jobs.timeline import Explanation

SCHEDULING_SECONDS = 1800.0
"""Seconds a debugger waits for a job to start: a node may have to be created first."""
LISTENING_SECONDS = 600.0
"""Seconds it then waits for the job to listen: project, packages and data may have to be fetched first."""
_PHASE_SECONDS, _FUNCTION_SECONDS = 2.5, 15.0
"""Seconds between two looks at what a running attempt does: before it calls the function, and then."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobHandle(JobReference):
    """Durable description of a submitted job, usable from any process that reaches the job's store.

    All fields are JSON-safe; the function and its connection are not kept.
    """

    @classmethod
    def from_job_context(cls, ctx: Any, backend_name: str, namespace: str, k8s_name: str) -> Self:
        """Make a handle from an object with the attributes of a job: `job_id`, `project`, `func`, ..."""
        return cls(
            job_id=ctx.job_id,
            backend=backend_name,
            project=ctx.project,
            cluster_name=ctx.cluster_name,
            zone=ctx.zone,
            namespace=namespace,
            bucket_name=ctx.bucket_name,
            k8s_name=k8s_name,
            image_uri=ctx.image_uri or "",
            accelerator=ctx.accelerator,
            func_name=ctx.func.__name__,
            display_name=ctx.display_name,
            created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            debug=getattr(ctx, "debug", False),
        )

    @classmethod
    def of(cls, reference: JobReference, connections: Connections | None = None) -> Self:
        """Make the handle of a reference, for a client's use; without one, for the default client's."""
        handle = cls.from_dict(reference.to_dict())
        if connections is not None:
            object.__setattr__(handle, "_connections", connections)  # not a field: it stays in this process
        return handle

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_connections"}

    @property
    def place(self) -> Backend:
        """The backend where the job is, as the handle's client reaches it."""
        return backend_of(self, self._client)

    @property
    def _client(self) -> Connections:
        found: Connections | None = self.__dict__.get("_connections")
        return found or default_connections()

    def __repr__(self) -> str:
        return f"<{self.job_id}: {self.func_name} on {self.hardware}, backend {self.backend!r}>"

    def _repr_html_(self) -> str:
        """Describe the job as it is now, for notebooks."""
        from kinetic_core.notebook import job_html

        try:
            return job_html(self, self.observe())
        except KineticError as exc:
            return job_html(self, None, str(exc))

    def observe(self) -> JobObservation:
        """Observe the job now: status, reason, attempt, times, failure."""
        return observing.observe(self.place, self)

    def status(self) -> JobStatus:
        """Return the job's status now."""
        return self.observe().status

    def explain(self) -> Explanation:
        """Return where the job's time went, phase by phase, and what would shorten each phase. `print` it."""
        from kinetic_core.jobs.timeline import explain

        return explain(self.place, self)

    def usage(self) -> Usage:
        """Return the seconds for which the job has held hardware so far, by use, and what they cost.

        A notebook shows a table. The cost is None without a price for the accelerator in the price table that
        the settings name. Raises ConfigurationError for a table that cannot be read.
        """
        from kinetic_core.jobs.cost import priced, usage_of

        place = self.place
        return priced(usage_of(place, self), place.connections.settings)

    def logs(self, follow: bool = False, host: int | None = None) -> str | None:
        """Return what the job printed; with `follow`, print the log to stdout until the job ends.

        Each line of a slice of several hosts begins with its host. `host` selects one host's log, unprefixed.
        """
        if host is not None and (follow or host not in range(logs.host_count(self))):
            raise InvalidRequest(
                f"host={host!r}: {self.job_id} has hosts 0 to {logs.host_count(self) - 1}, and the log of "
                "one alone is not followed"
            )
        if not follow:
            return logs.read_log(self.place, self, self.observe().attempt, host)
        for text in followed_log(self.place, self):
            print(text, end="", flush=True)
        return None

    def tail(self, n: int = 100) -> str:
        """Return the last `n` lines the job printed."""
        attempt = self.observe().attempt
        text = logs.read_log(self.place, self, attempt, first=attempt)
        return "\n".join(text.splitlines()[-n:]) if n > 0 else ""

    @collecting.TrimmedTraceback()
    def result(
        self,
        timeout: float | None = None,
        cleanup: bool | None = None,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,
        stream_logs: bool | None = None,
        on_status_change: Callable[[JobStatus], None] | None = None,
        trust_store: bool = False,
    ) -> Any:
        """Wait for the job and return the function's value, or raise the function's exception.

        With `cleanup` (default: unless the job is a debug job) a success removes the pod and the payload;
        a failure keeps everything. `stream_logs` prints the job's lines to stdout while it runs.
        `cleanup_timeout` and `cleanup_poll_interval` are accepted for compatibility: clean-up is done
        when this returns. `trust_store` unpickles an outcome even if its signature cannot be verified.
        At a terminal, stderr shows meanwhile what the job does or waits for, as a call does, unless
        `on_status_change` tells of it, or a thread other than the main one waits.

        Raises WaitTimeout (a TimeoutError) after `timeout` seconds, while the job goes on; the user's own
        exception with the remote traceback as a note; or a JobError.
        """
        del cleanup_timeout, cleanup_poll_interval
        if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool)):
            raise TypeError(f"timeout={timeout!r} must be a number of seconds")
        if on_status_change is None:
            with Progress() as progress:
                if progress.is_live:
                    return self.attached_result(
                        progress, timeout, cleanup, stream_logs=bool(stream_logs), trust_store=trust_store
                    )
        self._wait(timeout, _announcer(on_status_change), _print if stream_logs else None)
        return self._collected(cleanup, trust_store)

    def attached_result(
        self,
        progress: Progress,
        timeout: float | None = None,
        cleanup: bool | None = None,
        *,
        stream_logs: bool = False,
        trust_store: bool = False,
    ) -> Any:
        """Wait as `shown_result` does for a job submitted earlier; say nothing of one that has ended."""
        from kinetic_core.jobs.timeline import submitted_at

        progress.attach(submitted_at(self), time.time())
        return self.shown_result(progress, timeout, cleanup, stream_logs=stream_logs, trust_store=trust_store)

    def shown_result(
        self,
        progress: Progress,
        timeout: float | None = None,
        cleanup: bool | None = None,
        *,
        stream_logs: bool = True,
        trust_store: bool = False,
    ) -> Any:
        """Wait for the job as `result` does, and show its progress and what it prints meanwhile."""
        shown, teller = 0, _PhaseTeller(self, progress)

        def show(seen: JobObservation) -> None:
            nonlocal shown
            teller.stop()
            if seen.is_terminal and not progress.has_begun:
                return  # it had ended before: nobody waits
            for attempt in range(shown, seen.attempt):
                progress.attempt_ended(attempt, attempt_failure(self.place, self, attempt))
            shown = max(shown, seen.attempt)
            progress.observe(seen)
            progress.hint(remedy(self.place, self, seen))
            if seen.status is JobStatus.RUNNING:
                teller.start(seen.attempt)

        try:
            self._wait(timeout, show, progress.write if stream_logs else None)
        finally:
            teller.stop()
        return self._collected(cleanup, trust_store)

    def _wait(
        self,
        timeout: float | None,
        on_change: Callable[[JobObservation], None],
        write: Callable[[str], None] | None,
    ) -> None:
        """Wait for the end; `write` gets what the job prints, all of it before the last observation."""
        follower = _Follower(self, write) if write is not None else None

        def changed(seen: JobObservation) -> None:
            if follower is not None:
                follower.job.see(seen)
                if seen.is_terminal:
                    follower.set()
            on_change(seen)

        try:
            observing.wait(self.place, self, timeout, changed)
        finally:
            if follower is not None:
                follower.set()

    def _collected(self, cleanup: bool | None, trust_store: bool) -> Any:
        value = self.collect(trust_store=trust_store)
        if cleanup or (cleanup is None and not self.debug):
            ending.drop_payloads(self._client, [self])
        return value

    def collect(self, *, trust_store: bool = False, key: collecting.KeyOf = collecting.key_of) -> Any:
        """Return the value of a job that has ended, or raise its exception, without waiting.

        Removes nothing. `key` returns the key that signs the job's outcome.
        """
        outcome = collecting.collect(
            self.place,
            self,
            allow_pickle=trust_store or None,
            known_digest=self.__dict__.get("_verified"),
            key=key,
        )
        if outcome.verified:
            # Not a field: cleaning up removes the key, and the value may be asked for again.
            object.__setattr__(self, "_verified", outcome.digest)
        return outcome.value_or_raise()

    def outputs(self) -> Outputs:
        """List the files in the job's `KINETIC_OUTPUT_DIR`, to read and to download.

        Works while the job runs and after it was cleaned up. Raises StoreError.
        """
        from kinetic_core.jobs.outputs import find_outputs

        return find_outputs(self._client, self)

    def cancel(self, cleanup_timeout: float = 180, cleanup_poll_interval: float = 2) -> None:
        """Stop the job; return when none of its pods runs. Stored objects are kept."""
        del cleanup_timeout, cleanup_poll_interval
        ending.cancel(self.place, self)

    def cleanup(
        self,
        k8s: bool = True,
        gcs: bool = True,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,
    ) -> None:
        """Remove the finished job's Kubernetes object (`k8s`) and stored objects (`gcs`). Outputs stay."""
        del cleanup_timeout, cleanup_poll_interval
        ending.cleanup(self.place, self, k8s=k8s, gcs=gcs)

    def debug_attach(
        self,
        local_port: int = 5678,
        working_dir: str | None = None,
        *,
        scheduling_timeout: float = SCHEDULING_SECONDS,
        listening_timeout: float = LISTENING_SECONDS,
    ) -> DebugSession:
        """Let a debugger attach to a job started with `debug=True`; of a slice, to host 0.

        Waits until the job has started and its debugger listens, then prints how to connect to `local_port`
        of this machine (0: any free port). `working_dir` is the project's directory on this machine; default:
        VS Code's workspace folder. The time-outs are in seconds: half an hour for the start, and ten minutes
        more for the debugger.

        Raises InvalidRequest for a job without debugger, a job that has ended and a port that is taken;
        WaitTimeout, naming which of the two times was too short; ConfigurationError where the cluster does
        not let this user forward ports.
        """
        from kinetic_core.jobs.debug import attach
        from kinetic_core.jobs.forward import listening

        listener = listening(local_port)
        return attach(self.place, self, listener, working_dir, scheduling_timeout, listening_timeout)


def followed_log(
    backend: Backend, reference: JobReference, stopped: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Yield what a job prints, as `follow_log`, until it has ended or is followed no longer: `stopped`.

    Raises as `jobs.observe.wait` if nothing more can be heard of the job.
    """
    job = logs.FollowedJob()
    subscription = observing.watch(backend, reference, job.see, job.lose)
    try:
        ended = lambda: job.has_ended() or stopped()  # noqa: E731
        yield from logs.follow_log(backend, reference, ended, attempt=lambda: job.attempt)
    finally:
        subscription.close()


class _Follower:
    """Thread that writes a job's lines until `set` says that the job has ended; `job` gets observations."""

    def __init__(self, handle: JobHandle, write: Callable[[str], None]) -> None:
        self._handle, self._write, self.job = handle, write, logs.FollowedJob()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kinetic-log-{handle.job_id}", daemon=True)
        self._thread.start()

    def set(self) -> None:
        """Write the rest of the log and stop, because the job has ended. May be called again."""
        self._ended.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            place, attempt = self._handle.place, lambda: self.job.attempt
            for text in logs.follow_log(place, self._handle, self._ended.is_set, attempt=attempt):
                self._write(text)
        except BrokenPipeError:
            return  # nobody reads our output any more; the job's log is kept
        except KineticError as exc:
            job_id = self._handle.job_id
            told = "the log of %s is not shown from here on: %s. `kinetic jobs logs %s` shows all of it"
            _LOG.warning(told, job_id, exc, job_id)


class _PhaseTeller:
    """Thread that shows what a running attempt does, such as fetching its data, until `stop`."""

    def __init__(self, handle: JobHandle, progress: Progress) -> None:
        self._handle, self._progress = handle, progress
        self._stopped = threading.Event()

    def start(self, attempt: int) -> None:
        """Show what that attempt does."""
        self._stopped = threading.Event()
        name = f"kinetic-phase-{self._handle.job_id}"
        threading.Thread(target=self._run, args=(attempt, self._stopped), name=name, daemon=True).start()

    def stop(self) -> None:
        """Show nothing more; a request that is under way is not waited for."""
        self._stopped.set()

    def _run(self, attempt: int, stopped: threading.Event) -> None:
        from kinetic_core.jobs.phases import PHASES
        from kinetic_core.jobs.timeline import current_phase

        pause = _PHASE_SECONDS
        while not stopped.wait(pause):
            try:
                phase = current_phase(self._handle.place, self._handle, attempt)
            except KineticError as exc:
                _LOG.info("what %s does is not known: %s", self._handle.job_id, exc)
                continue
            if phase and not stopped.is_set():
                self._progress.doing(attempt, PHASES[phase].doing)
            if phase == "function":  # which may take hours, and each look is a request
                pause = _FUNCTION_SECONDS


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _announcer(callback: Callable[[JobStatus], None] | None) -> Callable[[JobObservation], None]:
    """Return a function that calls back with each status once."""
    last: list[JobStatus] = []

    def announce(observation: JobObservation) -> None:
        if callback is None or (last and last[-1] is observation.status):
            return
        last.append(observation.status)
        try:
            callback(observation.status)
        except Exception:  # noqa: BLE001  the promise of `on_status_change`: its mistakes never lose a result
            _LOG.exception("on_status_change failed")

    return announce
