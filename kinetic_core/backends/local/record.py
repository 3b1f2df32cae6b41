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


SUMMARY = "summary"
"""Last field of a record in its file, which can be read without the others; see `read_summary`."""
_SUMMARY_BYTES = 1024
"""How far before the end of the file it begins at most."""
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
    record.pop(SUMMARY, None)
    return record


def read_job(layout: Layout, namespace: str, job_id: str) -> dict[str, Any] | None:
    """Read a job's record; that of a job which waits in a batch that was dropped says how the job ended.

    Raises OSError for a record that is damaged.
    """
    path = layout.record(namespace, job_id)
    record = read_record(path)
    if record is None or not is_waiting(record) or "line" not in record:
        return record
    if (at := dropped_at(layout, namespace, record["line"]["group_id"])) is None:
        return record
    record = read_record(path)  # it may have begun before its batch was dropped, and after it was read
    if record is not None and is_waiting(record):
        end(record, *DROPPED_CONDITION, at)
    return record


def read_summary(path: str) -> dict[str, Any] | None:
    """Read how a job is, as `_summary` says, from the end of its record alone; None if there is no record.

    Raises OSError for a record that is damaged.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        end_of_file = os.pread(descriptor, _SUMMARY_BYTES, max(0, size - _SUMMARY_BYTES))
    finally:
        os.close(descriptor)
    _, name, text = end_of_file.rpartition(f'"{SUMMARY}":'.encode())  # in a text it has backslashes
    with suppress(ValueError):
        if name:
            summary: dict[str, Any] = json.loads(text.removesuffix(b"}"))
            return summary
    record = read_record(path)
    return None if record is None else _summary(record)


def _summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a job is: `ended`, its final condition; `line`, where it waits; nothing while it lives."""
    if (final := _final(record)) is not None:
        return {"ended": {name: text for name, text in final.items() if name != "message"}}
    return {"line": record["line"]} if record.get("waits") and "line" in record else {}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # the record holds the key that outcomes are signed with


def write_record(path: str, record: Mapping[str, Any], *, new: bool = False) -> None:
    """Replace the record as a whole. With `new`, raise FileExistsError if there is one already.

    Raises RecordGone if its directory is no longer there.
    """
    whole = {**record, SUMMARY: _summary(record)}
    _write(path, json.dumps(whole, separators=(",", ":")), new=new)  # json.dump would do without its C part


def _write(path: str, text: str, *, new: bool = False) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", opener=_private) as stream:
            stream.write(text)
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


def share_lock(path: str) -> int:
    """The descriptor of the lock, held beside others who share it; whoever has it alone is waited for."""
    return _locked(path, fcntl.LOCK_SH)


def _locked(path: str, how: int) -> int:
    """Lock the file of that name; one that was removed meanwhile, by whoever had its lock, locks nothing."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def is_over(record: Mapping[str, Any]) -> bool:
    """Whether the Job has ended, one way or the other."""
    return _final(record) is not None


def _final(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    conditions = record["job"].get("status", {}).get("conditions", ())
    final = ("Complete", "Failed")
    return next((one for one in conditions if one["type"] in final and one["status"] == "True"), None)


def is_waiting(record: Mapping[str, Any]) -> bool:
    """Whether the job waits for its turn in a batch, or is a call on a worker."""
    return bool(record.get("waits")) and not is_over(record)


def end_waiting(
    layout: Layout, namespace: str, job_id: str, reason: str, message: str, kind: str = "Failed"
) -> bool:
    """End a job that waits for its turn; False if it does not, or is being started just now."""
    lock = take_lock(layout.lock(namespace, job_id))
    if lock is None:
        return False
    try:
        record = read_job(layout, namespace, job_id)
        if record is None or not is_waiting(record):
            return False
        end(record, kind, reason, message)
        write_record(layout.record(namespace, job_id), record)
        return True
    finally:
        os.close(lock)


def end(record: dict[str, Any], kind: str, reason: str, message: str, at: str = "") -> None:
    """Give the Job its final condition: `Complete` or `Failed`, since a time, or now."""
    condition = {"type": kind, "status": "True", "reason": reason, "message": message}
    condition["lastTransitionTime"] = at or timestamp()
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


DROPPED_CONDITION = "Failed", DROPPED, "not started: its batch was stopped"
"""Type, reason and message of the condition."""


def drop_waiting(layout: Layout, namespace: str, group_id: str) -> None:
    """End all jobs of a batch that wait for their turn, with one file that every reader of them looks for.

    Waits for the jobs that are being started just now, which go on: when this has returned none begins.
    """
    mark = layout.dropped(namespace, group_id)
    if os.path.exists(mark) or not os.path.isdir(layout.cluster(namespace)):
        return
    with suppress(FileNotFoundError, RecordGone):  # all was removed
        turn = wait_for_lock(layout.turn_lock(namespace, group_id))
        try:
            _write(mark, json.dumps({"at": timestamp()}))
        finally:
            os.close(turn)


def dropped_at(layout: Layout, namespace: str, group_id: str) -> str | None:
    """Return when the jobs of a batch that wait were dropped; None if they were not. Raises OSError."""
    mark = layout.dropped(namespace, group_id)
    try:
        with open(mark, encoding="utf-8") as stream:
            return str(json.load(stream)["at"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as exc:
        raise OSError(errno.EIO, f"{mark} is damaged: {exc!r}; remove it and its inputs wait again") from exc


def write_dropped(layout: Layout, namespace: str, group_id: str) -> None:
    """Write into the records of jobs that were dropped how they ended; then jobs of the batch wait again."""
    if dropped_at(layout, namespace, group_id) is None:
        return
    for job_id in job_ids(layout, namespace, group_id):
        path = layout.record(namespace, job_id)
        if "line" not in (read_summary(path) or {}):
            continue
        lock = wait_for_lock(layout.lock(namespace, job_id))
        try:
            if (record := read_job(layout, namespace, job_id)) is not None:
                write_record(path, record)
        finally:
            os.close(lock)
    with suppress(FileNotFoundError):
        os.unlink(layout.dropped(namespace, group_id))
