"""One job's record: its Job and Pod objects in a file, and the lock that says whether anything lives.

The lock is taken before the record exists and handed from the submitter to the agent and on to the
runner, so it is held exactly as long as one of them lives: the kernel lets go of it, however they die.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from itertools import count

from kinetic_core.backends.kubernetes.names import DROPPED, IDLE_SECONDS
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.process import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Found = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]


NEEDS_SLOTS = "needs_slots"
"""Field of a record whose agent has found too few slots free, and waits."""


_HOUR = 3600


class RecordGone(OSError):
    """The record's directory was removed while the job lived."""


def read_record(path: str) -> dict[str, Any] | None:
    """`{"job": ..., "pods": [...]}`, None if there is none. Raises OSError for one that is damaged."""
    try:
        with open(path, encoding="utf-8") as stream:
            record: dict[str, Any] = json.load(stream)
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise OSError(errno.EIO, f"{path} is damaged: {exc}; remove it and the job is lost") from exc
    return record


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # the record holds the key that outcomes are signed with


def write_record(path: str, record: Mapping[str, Any], *, new: bool = False) -> None:
    """Replace the record as a whole. With `new`, raise FileExistsError if there is one already.

    Raises RecordGone if its directory is no longer there.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", opener=_private) as stream:
            stream.write(json.dumps(record, separators=(",", ":")))  # json.dump would do without its C part
        if new:
            os.link(temporary, path)
            os.unlink(temporary)
        else:
            os.rename(temporary, path)
    except FileNotFoundError as exc:
        raise RecordGone(errno.ENOENT, f"{path}: its directory was removed while the job lived") from exc
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def take_lock(path: str) -> int | None:
    """The descriptor of the held lock; None if somebody else holds it."""
    try:
        return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def is_held(path: str) -> bool:
    """Whether somebody holds the lock. Makes no lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_for_lock(path: str) -> int:
    """The descriptor of the lock, held once whoever has it lets go of it or dies."""
    return _locked(path, fcntl.LOCK_EX)


def _locked(path: str, how: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_over(record: Mapping[str, Any]) -> bool:
    """Whether the Job has ended, one way or the other."""
    conditions = record["job"].get("status", {}).get("conditions", ())
    final = ("Complete", "Failed")
    return any(condition["type"] in final and condition["status"] == "True" for condition in conditions)


def is_waiting(record: Mapping[str, Any]) -> bool:
    """Whether the job waits for its turn in a batch, or is a call on a worker."""
    return bool(record.get("waits")) and not is_over(record)


def end_waiting(path: str, lock_path: str, reason: str, message: str, kind: str = "Failed") -> bool:
    """End a job that waits for its turn; False if it does not, or is being started just now."""
    lock = take_lock(lock_path)
    if lock is None:
        return False
    try:
        record = read_record(path)
        if record is None or not is_waiting(record):
            return False
        end(record, kind, reason, message)
        write_record(path, record)
        return True
    finally:
        os.close(lock)


def end(record: dict[str, Any], kind: str, reason: str, message: str) -> None:
    """Give the Job its final condition: `Complete` or `Failed`."""
    condition = {"type": kind, "status": "True", "reason": reason, "message": message}
    condition["lastTransitionTime"] = timestamp()
    status = record["job"].setdefault("status", {})
    status["conditions"] = [*status.get("conditions", ()), condition]
    status["active"] = 0


def timestamp(at: float | None = None) -> str:
    """Now (or the Unix time `at`) as Kubernetes writes times, with microseconds."""
    at = time.time() if at is None else at
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1e6):06d}+00:00"


def job_ids(layout: Layout, namespace: str, group_id: str) -> list[str]:
    """Those of a batch, in the order of its inputs; none if all was removed."""
    prefix, suffix = f"{group_id}-", ".json"
    try:
        names = os.listdir(layout.cluster(namespace))
    except FileNotFoundError:
        return []
    records = (name for name in names if name.startswith(prefix) and name.endswith(suffix))
    numbers = (name[len(prefix) : -len(suffix)] for name in records)
    return [f"{prefix}{number}" for number in sorted(int(each) for each in numbers if each.isdigit())]


def forget(layout: Layout, namespace: str, job_id: str) -> None:
    """Remove the record and the logs of a job that has ended. Its lock stays."""
    with suppress(FileNotFoundError):
        os.unlink(layout.record(namespace, job_id))
    for name in (job_id, f"{job_id}-own"):
        with suppress(FileNotFoundError):
            for attempt in count():
                os.unlink(layout.log(name, attempt))


def keep_times(layout: Layout, namespace: str, job_id: str, found: Found) -> None:
    """Keep the times of a job that is being removed, for an hour at least; none of its values or keys.

    Raises OSError.
    """
    job, pods = found
    folder = os.path.join(layout.removed(int(time.time() // _HOUR)), namespace)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    environment = job["spec"]["template"]["spec"]["containers"][0]["env"]
    is_worker = [each for each in environment if each["name"] == IDLE_SECONDS]
    times = {
        "metadata": {key: job["metadata"][key] for key in ("name", "creationTimestamp")},
        "spec": {"template": {"spec": {"containers": [{"env": is_worker}]}}},
        "status": job.get("status", {}),
    }
    path = os.path.join(folder, f"{job_id}.json")
    write_record(path, {"job": times, "pods": pods})


def kept_times(layout: Layout, namespace: str, job_id: str) -> Found | None:
    """Return what `keep_times` has kept of a job; None if that is nothing, or was damaged."""
    hour = int(time.time() // _HOUR)
    for each in (hour, hour - 1):
        with suppress(OSError):
            record = read_record(os.path.join(layout.removed(each), namespace, f"{job_id}.json"))
            if record is not None:
                return record["job"], record["pods"]
    return None


def forget_old_times(layout: Layout) -> None:
    """Remove the times that were kept before the last hour began."""
    oldest = int(time.time() // _HOUR) - 1
    with suppress(OSError):  # another process does the same
        for name in os.listdir(layout.removed()):
            if name.isdigit() and int(name) < oldest:
                remove_tree(layout.removed(int(name)))


def drop_waiting(layout: Layout, namespace: str, group_id: str) -> None:
    """End a batch's jobs that wait for their turn; not one that is being started just now."""
    for job_id in job_ids(layout, namespace, group_id):
        path, lock = layout.record(namespace, job_id), layout.lock(namespace, job_id)
        end_waiting(path, lock, DROPPED, "not started: its batch was stopped")
