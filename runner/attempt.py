"""Attempt as the manifest describes it, read from the container's environment once."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field

from . import object_names, wire
from .indexes import parse_indexes
from .signing_key import take_key

PROCESS, FORK = "process", "fork"
"""What calls of a worker share: a process, or what the process has imported of which each has a fork."""


class BadEnvironment(ValueError):
    """Missing or malformed variable that the manifest must set."""


@dataclass(frozen=True)
class Budget:
    """Budget of the job over all attempts, and the price of its accelerator, all hosts of it, for an hour."""

    amount: float
    hourly: float
    currency: str

    @property
    def seconds(self) -> float:
        """Return for how many seconds the budget pays for the accelerator."""
        return self.amount / self.hourly * 3600 if self.hourly else float("inf")


@dataclass(frozen=True)
class Lane:
    """Lane number `number` of the `count` lanes of a map's round: a call that runs inputs of `group_id`.

    See lane.py. `size`: how many inputs the map has. `timeout`, in seconds, and `retries` are those of each
    input. `round`: which round of the map it is of; the first is 0.
    """

    group_id: str
    number: int
    count: int
    size: int
    retries: int = 0
    timeout: float | None = None
    round: int = 0


@dataclass(frozen=True)
class Job:
    """Attempt of one job, as its container sees it.

    Of a slice, this is host number `host` of `hosts`, and the counts are of its own pods. Of a batch whose
    inputs share a Job, it is input number `index` of `group_id`. `debug_wait` is how many seconds it waits
    for a debugger; None for a job that is not debugged. Of a job with several accelerators, this is for
    number `choice`. `set_name` is the LeaderWorkerSet it is in. `at_once` is how many jobs of its batch may
    run at the same time. `outcome_key` is overwritten in the child before it loads user code; `key_id` names
    that key to readers of an outcome, and is no secret. `uncounted` attempts ended because the Job was
    suspended, which spends no budget; `since` is the first attempt after the last suspension (see claims.py).
    A worker waits for calls for `idle` seconds, in the pod `pod_name`; `idle` is None for a job with a
    function. `reuse` says what its calls share (kept_process.py), "" for nothing: a process that calls share
    has no `outcome_key`, but a `lock_key`, which is overwritten like it. A call that runs on a worker is
    `on_worker`, and may take files for its project from the directory `spare`. A call that runs inputs of a
    map is a `lane` of it.
    """

    store_uri: str
    job_id: str
    payload_sha256: str
    payload_bytes: int | None
    outcome_key: bytearray
    failed_count: int
    ignored_count: int
    pod_uid: str
    retries: int
    infrastructure_retries: int
    work_dir: str
    accelerator: str
    grace: float
    backend: str
    volumes_dir: str | None
    cache_dir: str | None = None
    host: int = 0
    hosts: int = 1
    lease: float | None = None
    group_id: str | None = None
    index: int | None = None
    fail_fast: bool = False
    timeout: float | None = None
    task_log: str | None = None
    debug_wait: float | None = None
    choice: int | None = None
    set_name: str | None = None
    hang_after: float | None = None
    budget: Budget | None = None
    at_once: int = 1
    uncounted: int = 0
    since: int = 0
    key_id: str = ""
    idle: float | None = None
    pod_name: str = ""
    reuse: str = ""
    on_worker: bool = False
    lane: Lane | None = None
    spare: str = ""
    lock_key: bytearray = field(default_factory=bytearray)

    def key_of_lock(self) -> bytes | bytearray:
        """Return the key that signs the versions of packages that the job installs; empty if it has none."""
        if self.lock_key or not self.outcome_key:
            return self.lock_key
        return wire.object_key(self.outcome_key, object_names.lock(self.job_id))

    def sealed(self, state: str) -> str:
        """Sign a state for the metadata of this job's outcome."""
        return wire.sealed_state(self.job_id, state, self.key_id, self.outcome_key)

    @property
    def has_rendezvous(self) -> bool:
        """Return whether the job's hosts agree in the store when they begin and how they end."""
        return self.hosts > 1 or self.set_name is not None

    @property
    def attempt(self) -> int:
        """Return how many attempts ended before this one, for whatever reason."""
        return self.failed_count + self.ignored_count + self.uncounted

    @property
    def is_last_restart(self) -> bool:
        """Return whether the infrastructure has used up its budget of interruptions."""
        return self.ignored_count >= self.infrastructure_retries

    @property
    def is_last_try(self) -> bool:
        """Return whether a user error now leaves no retry."""
        return self.failed_count >= self.retries


def take_job(environ: MutableMapping[str, str]) -> Job:
    """Read the job from `environ`; remove the outcome's key from it, and from the process (`signing_key`).

    Sets the id of user code's own job, whose Job may be shared. Raises BadEnvironment naming the variable.
    """
    try:
        group_id = environ.get("KINETIC_GROUP_ID")
        index = None if group_id is None else _take_index(environ, group_id)
        return Job(
            outcome_key=take_key(environ, index),
            store_uri=environ["KINETIC_STORE"],
            job_id=environ["KINETIC_JOB_ID"],
            payload_sha256=environ["KINETIC_PAYLOAD_SHA256"],
            payload_bytes=_whole(environ, "KINETIC_PAYLOAD_BYTES"),
            failed_count=int(environ.get("KINETIC_FAILED_COUNT") or 0),
            ignored_count=int(environ.get("KINETIC_IGNORED_COUNT") or 0),
            pod_uid=environ.get("KINETIC_POD_UID", ""),
            retries=int(environ.get("KINETIC_RETRIES") or 0),
            infrastructure_retries=int(environ.get("KINETIC_INFRASTRUCTURE_RETRIES") or 0),
            work_dir=environ["KINETIC_WORK_DIR"],
            accelerator=environ.get("KINETIC_ACCELERATOR", ""),
            grace=float(environ.get("KINETIC_GRACE_SECONDS") or 30),
            backend=environ.get("KINETIC_BACKEND", ""),
            volumes_dir=environ.get("KINETIC_VOLUMES_DIR"),
            cache_dir=environ.get("KINETIC_CACHE_DIR"),
            host=int(environ.get("KINETIC_HOST_INDEX") or 0),
            hosts=int(environ.get("KINETIC_HOST_COUNT") or 1),
            lease=_seconds(environ, "KINETIC_LEASE_SECONDS"),
            group_id=group_id,
            index=index,
            fail_fast=environ.get("KINETIC_FAIL_FAST") == "true",
            task_log=environ.pop("KINETIC_TASK_LOG", None),
            timeout=_seconds(environ, "KINETIC_TIMEOUT"),
            debug_wait=_seconds(environ, "KINETIC_DEBUG_WAIT_TIMEOUT"),
            choice=_whole(environ, "KINETIC_CHOICE"),
            set_name=environ.get("KINETIC_SET"),
            hang_after=_seconds(environ, "KINETIC_HANG_SECONDS"),
            budget=_budget(environ),
            at_once=int(environ.get("KINETIC_AT_ONCE") or 1),
            key_id=environ.get("KINETIC_KEY_ID", ""),
            idle=_seconds(environ, "KINETIC_IDLE_SECONDS"),
            pod_name=environ.get("KINETIC_POD_NAME", ""),
            reuse=environ.get("KINETIC_REUSE", ""),
            on_worker="KINETIC_ON_WORKER" in environ,
            lane=_lane(environ),
        )
    except KeyError as exc:
        raise BadEnvironment(f"the manifest sets no {exc.args[0]}") from exc
    except (ValueError, IndexError) as exc:
        raise BadEnvironment(f"the manifest sets a KINETIC_* variable wrongly: {exc}") from exc


def _whole(environ: MutableMapping[str, str], name: str) -> int | None:
    return int(environ[name]) if name in environ else None


def _seconds(environ: MutableMapping[str, str], name: str) -> float | None:
    return float(environ[name]) if name in environ else None


def _budget(environ: MutableMapping[str, str]) -> Budget | None:
    if "KINETIC_BUDGET" not in environ:
        return None
    amount, hourly, currency = environ["KINETIC_BUDGET"].split(maxsplit=2)
    return Budget(float(amount), float(hourly), currency)


def _take_index(environ: MutableMapping[str, str], group_id: str) -> int:
    """Return which input of its batch the job is, and set the id of user code's own job."""
    index = parse_indexes(environ["KINETIC_INDEXES"])[int(environ["JOB_COMPLETION_INDEX"])]
    environ["KINETIC_JOB_ID"] = environ["JOB_ID"] = object_names.input_id(group_id, index)
    return index


def _lane(environ: MutableMapping[str, str]) -> Lane | None:
    if "KINETIC_LANE" not in environ:
        return None
    group_id, number, count, size, _, round_number = environ["KINETIC_LANE"].split()
    retries, timeout = environ.get("KINETIC_INPUT_RETRIES") or 0, _seconds(environ, "KINETIC_INPUT_TIMEOUT")
    return Lane(group_id, int(number), int(count), int(size), int(retries), timeout, round=int(round_number))
