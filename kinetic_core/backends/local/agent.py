"""The agent: kubelet and Job controller of one job, in a process of its own.

Started detached by the submitter, it waits for slots, runs the container's command, restarts it as the
Job's spec says, and records what happens in the Job's and Pods' own status. It ends with its job.

SIGTERM means cancel. Imports are few and small: every job waits for them.
"""

from __future__ import annotations

import math
import os
import signal
import time

from kinetic_core._runner.processes import adopt_orphans, end_below
from kinetic_core.backends.kubernetes.names import FAILED_COUNT, IDLE_SECONDS, IGNORED_COUNT, WORKER
from kinetic_core.backends.local import process
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.memory_limit import MemoryLimit, limit_memory
from kinetic_core.backends.local.record import (
    NEEDS_SLOTS,
    RecordGone,
    end,
    read_record,
    timestamp,
    write_record,
)
from kinetic_core.backends.local.slots import core_count, take_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BACKOFF = 0.2
_MAX_BACKOFF = 5.0


class Stop(Exception):
    """The job must end now; `reason` becomes the Job's."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Signals:
    """Turns SIGTERM and the deadline into `Stop`, but only where the agent waits (inside `with`)."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self._waiting = False
        signal.signal(signal.SIGTERM, lambda *_: self._set(Stop("Cancelled", "cancelled by a user")))
        signal.signal(
            signal.SIGALRM, lambda *_: self._set(Stop("DeadlineExceeded", "it ran past its timeout"))
        )

    def __enter__(self) -> None:
        self._waiting = True
        if self.stop is not None:
            self._waiting = False
            raise self.stop

    def __exit__(self, *_: object) -> None:
        self._waiting = False

    def _set(self, stop: Stop) -> None:
        self.stop = self.stop or stop
        if self._waiting:
            self._waiting = False
            raise self.stop


class Agent:
    """One job, from its record's first state to its last.

    `lock` is the job's, and held. `turn` is held until the record no longer says that the job waits.
    """

    def __init__(
        self, layout: Layout, namespace: str, job_id: str, lock: int, turn: int | None = None
    ) -> None:
        self._layout = layout
        self._job_id = job_id
        self._path = layout.record(namespace, job_id)
        record = read_record(self._path)
        if record is None:
            raise RecordGone(self._path)
        self._record: dict[str, Any] = record
        self._spec: dict[str, Any] = record["job"]["spec"]
        self._signals = Signals()
        self._held = [lock]
        self._turn = turn
        self._child: int | None = None
        self._limit: MemoryLimit | None = None

    def run(self) -> None:
        """Everything, until the Job has ended or its record was removed."""
        status = self._record["job"].setdefault("status", {})
        if self._record.pop("waits", None):
            self._record["created"] = time.time()  # its time limit is for itself, not for its turn to come
        self._record["agent"] = process.identity(os.getpid())
        self._set_deadline()
        try:
            write_record(self._path, self._record)
            if self._turn is not None:
                os.close(self._turn)
            try:
                with self._signals:
                    self._held += take_slots(self._layout.slots, self._slots_wanted(), self._note_wait)
                self._record.pop(NEEDS_SLOTS, None)
                status["startTime"] = timestamp()
                self._attempts()
            except RecordGone:
                raise
            except Stop as stop:
                self._kill()
                self._end("Failed", stop.reason, str(stop))
            except OSError as exc:
                self._kill()
                self._end("Failed", "StartError", f"the local backend could not run the job: {exc}")
        except RecordGone:
            self._kill()
        finally:
            process.remove_tree(self._layout.work(self._job_id))

    def _note_wait(self) -> None:
        """Record that the job waits for slots, because whoever asks may not try to take one."""
        self._record[NEEDS_SLOTS] = True
        write_record(self._path, self._record)

    def _attempts(self) -> None:
        failed = ignored = 0
        while True:
            code = self._attempt(failed, ignored)
            if code == 0:
                self._end("Complete", "CompletionsReached", "the container exited with code 0")
                return
            action = self._action(code)
            if action == "Ignore":
                ignored += 1
            else:
                failed += 1
            if action == "FailIndex" or failed > self._spec["backoffLimitPerIndex"]:
                self._end("Failed", "FailedIndexes", f"the container exited with code {code}")
                return
            write_record(self._path, self._record)
            with self._signals:
                time.sleep(min(_MAX_BACKOFF, _BACKOFF * 2 ** (failed + ignored - 1)))

    def _attempt(self, failed: int, ignored: int) -> int:
        """Run the container once; its exit code, 128 + n for signal n."""
        attempt = failed + ignored
        template = self._spec["template"]
        container = template["spec"]["containers"][0]
        metadata = {
            "name": f"{self._record['job']['metadata']['name']}-0-{attempt}",
            "uid": process.random_uid(),
            "creationTimestamp": timestamp(),
            "labels": template["metadata"]["labels"],
            "annotations": {FAILED_COUNT: str(failed), IGNORED_COUNT: str(ignored)},
        }
        state: dict[str, Any] = {"running": {"startedAt": timestamp()}}
        pod = {
            "metadata": metadata,
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": container["name"], "state": state}],
            },
        }
        self._record["pods"].append(pod)
        self._limit = self._new_limit(container, attempt)
        self._child = process.spawn(
            process.command_of(container),
            process.environment_of(container, metadata, self._mounts(attempt)),
            log=self._log(attempt),
            folder=process.made(os.path.join(self._layout.work(self._job_id), str(attempt))),
            enter=self._limit.enter if self._limit else None,
            keep=self._held,
        )
        adopt_orphans()  # while the runner starts: what outlives it comes to this process
        self._record["group"] = process.identity(self._child)
        write_record(self._path, self._record)
        with self._signals:
            code = process.wait(self._child)
        self._record_end(pod, code)
        return code

    def _record_end(self, pod: dict[str, Any], code: int) -> None:
        assert self._child is not None  # noqa: S101  it has just ended
        process.kill_group(self._child)
        end_below(os.getpid(), collect=True, is_local=True)
        self._child = None
        reason = "Completed" if code == 0 else "Error"
        if self._limit is not None and code > 128 and self._limit.kills():
            reason = "OOMKilled"
        self._end_limit()
        if os.path.isdir(self._layout.volumes):
            from kinetic_core._runner.workspace import unlink_volumes

            unlink_volumes(self._layout.volumes)
        status = pod["status"]
        status["phase"] = "Succeeded" if code == 0 else "Failed"
        container = status["containerStatuses"][0]
        started = container["state"]["running"]["startedAt"]
        ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": timestamp()}
        container["state"] = {"terminated": ended}

    def _end_limit(self) -> None:
        """Leave no group of processes behind."""
        if self._limit is not None:
            self._limit.end()
            self._limit.remove()
            self._limit = None

    def _action(self, code: int) -> str:
        for rule in self._spec["podFailurePolicy"]["rules"]:
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return str(rule["action"])
        return "Count"

    def _new_limit(self, container: dict[str, Any], attempt: int) -> MemoryLimit | None:
        memory = container["resources"]["limits"].get("memory")
        return limit_memory(f"{self._job_id}-{attempt}", int(memory)) if memory else None

    def _mounts(self, attempt: int) -> dict[str, str]:
        """Where the pod's volumes are on this machine."""
        environment = self._spec["template"]["spec"]["containers"][0]["env"]
        runner = next(v["value"] for v in environment if v["name"] == "KINETIC_RUNNER_SHA256")
        cached = any(variable["name"] == "KINETIC_CACHE_DIR" for variable in environment)
        return {
            **({"KINETIC_CACHE_DIR": self._layout.volumes} if cached else {}),
            "KINETIC_WORK_DIR": os.path.join(self._layout.work(self._job_id), str(attempt)),
            "KINETIC_RUNNER_DIR": self._layout.runner(runner),
            "KINETIC_VOLUMES_DIR": self._layout.volumes,
        }

    def _log(self, attempt: int) -> str:
        """Return the file for what the attempt prints; a call's attempts are not numbered by this process."""
        is_call = WORKER in self._record["job"]["metadata"]["labels"]
        return self._layout.log(f"{self._job_id}-own" if is_call else self._job_id, attempt)

    def _slots_wanted(self) -> int:
        """Return how many cores' slots the job holds: a worker none, because it is idle most of the time."""
        if any(
            each["name"] == IDLE_SECONDS for each in self._spec["template"]["spec"]["containers"][0]["env"]
        ):
            return 0
        requests = self._spec["template"]["spec"]["containers"][0]["resources"]["requests"]
        return max(1, min(math.ceil(float(requests.get("cpu", 1))), core_count()))

    def _set_deadline(self) -> None:
        seconds = self._spec.get("activeDeadlineSeconds")
        if seconds is not None:
            passed = time.time() - self._record["created"]
            signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds - passed))

    def _kill(self) -> None:
        """End what runs: politely, then not. Returns when nothing of the group is alive."""
        if self._child is None:  # it was not started yet
            self._end_limit()
            return
        grace = self._spec["template"]["spec"]["terminationGracePeriodSeconds"]
        code = process.stop(self._child, float(grace))
        pod = self._record["pods"][-1]
        self._record_end(pod, code)

    def _end(self, kind: str, reason: str, message: str) -> None:
        end(self._record, kind, reason, message)
        write_record(self._path, self._record)


def main(root: str, namespace: str, job_id: str, lock: str) -> None:
    """Run the agent of a job whose lock the submitter took and handed over as a descriptor."""
    os.set_inheritable(int(lock), False)
    Agent(Layout(root), namespace, job_id, int(lock)).run()
