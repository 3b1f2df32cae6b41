"""Claims of attempts: the pods of a host claim numbers in the store, in their order.

Kubernetes tells a pod how many ends of its index it has counted, which numbers most attempts. It does not
count pods that it deletes to suspend a Job (as Kueue does to preempt it), and begins at 0 when the Job is
resumed; and it may by mistake create two pods at a time. Claims are created once and never change, so their
numbers never repeat. They have no gaps: whoever finds the last one knows which pod came before it.

A pod runs only if the one before is known to have ended. That is so if

* Kubernetes has counted an end since: its controller replaces what it has seen end, and nothing else; or
* the outcome of that attempt is stored, which a runner does after user code has ended.

Before and after an attempt on a worker (see worker.py) only the latter is a proof: no controller knows both.

Otherwise the pod claims its number, runs nothing and ends. The Job's controller knows which pods live: it
makes another only when none does, and that one's count has risen. The claim says that its pod ran nothing, so
that the end which Kubernetes has counted spends nothing of the job's budgets.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, replace

from . import object_names, wire
from .attempt import Job
from .notes import ForgedNote, decode_note, encode_note, read_start
from .outcome import read_head
from .store import MissingObject, Store


@dataclass(frozen=True)
class Claim:
    """Claim of one attempt of one host. Without a `pod_uid` its number was taken by no pod.

    `failed` and `ignored` are Kubernetes' counts; `spent_failures` and `spent_restarts` what the job's
    budgets had paid, over all suspensions; `since` is the first attempt after the last suspension. `last` is
    the last number up to this one that a pod took, -1 for none, and `last_counted` Kubernetes' count then.
    `runs` is False for a pod that was turned away and ran nothing. `on_worker` is the last number up to this
    one under which a worker ran user code, -1 for none: Kubernetes counts no end of it, so that only its
    stored outcome proves that it is over.
    """

    number: int
    pod_uid: str = ""
    failed: int = 0
    ignored: int = 0
    spent_failures: int = 0
    spent_restarts: int = 0
    since: int = 0
    last: int = -1
    last_counted: int = 0
    runs: bool = True
    on_worker: int = -1

    @property
    def counted(self) -> int:
        """Return how many ends Kubernetes had counted."""
        return self.failed + self.ignored

    def content(self, job: Job) -> bytes:
        """Encode the claim, signed with the job's key."""
        return encode_note(job.outcome_key, _object(job, self.number), {**asdict(self), "at": time.time()})


def read_claim(content: bytes, name: str, key: bytes | bytearray, number: int = 0) -> Claim:
    """Decode the claim stored as `name`; one without a pod if no runner of this job wrote it."""
    try:
        told = decode_note(key, name, content)
    except ForgedNote:
        return Claim(number, last=number)
    return Claim(**{name: told[name] for name in Claim.__dataclass_fields__ if name in told})


def take_number(job: Job, store: Store) -> tuple[Job, bool]:
    """Claim an attempt; return the job with it, and True if the attempt before is known to have ended."""
    counted = job.failed_count + job.ignored_count
    before = next(filter(None, (_stored(job, store, number) for number in range(counted - 1, -1, -1))), None)
    while True:
        claim = _next(before, job)
        is_mine = claim.counted == counted
        if is_mine:
            claim = replace(claim, failed=job.failed_count, ignored=job.ignored_count)
            is_next = _may_run(before, counted, job, store)
            claim = replace(claim, pod_uid=job.pod_uid, last=claim.number, last_counted=counted, runs=is_next)
            if job.on_worker and is_next:
                claim = replace(claim, on_worker=claim.number)
        if store.create_if_absent(_object(job, claim.number), claim.content(job)) and is_mine:
            break
        before = _stored(job, store, claim.number) or before
    numbered = replace(
        job,
        failed_count=claim.spent_failures,
        ignored_count=claim.spent_restarts,
        uncounted=claim.number - claim.spent_failures - claim.spent_restarts,
        since=claim.since,
    )
    return numbered, claim.runs


def tell_end(job: Job, store: Store) -> None:
    """Store that the last attempt on a worker is over, unless its runner has, which may have been killed."""
    last = _last(job, store)
    if last is None or last.on_worker < 0:
        return
    name = object_names.attempt_outcome(job.job_id, last.on_worker, job.host)
    failure = wire.Failure(wire.FailureClass.PREEMPTED, "its runner ended without a word", "execute")
    header = {"protocol": wire.PROTOCOL, "author": "runner", "job_id": job.job_id, "key_id": job.key_id}
    header |= {"attempt": last.on_worker, "state": "failed", "codec": "none", "retry": True, "object": name}
    frame = wire.encode_frame({**header, "failure": failure.to_dict()}, {}, job.outcome_key)
    store.create_if_absent(name, frame)


def all_have_ended(job: Job, store: Store) -> bool:
    """Return whether all hosts of a call have stored how their last attempts on the worker have ended."""
    for host in range(job.hosts):
        own = replace(job, host=host)
        last = _last(own, store)
        if last is not None and last.on_worker >= 0 and _why_not_ended(own, store, last.on_worker):
            return False
    return True


def _last(job: Job, store: Store) -> Claim | None:
    last = None
    while (claim := _stored(job, store, 0 if last is None else last.number + 1)) is not None:
        last = claim
    return last


def _may_run(before: Claim | None, counted: int, job: Job, store: Store) -> bool:
    """Return whether the attempts before are known to have ended."""
    if before is None or before.last < 0:
        return True
    if job.on_worker:
        return _has_ended(job, store, before.last)
    if before.on_worker >= 0 and not _has_ended(job, store, before.on_worker):
        return False
    return counted > before.last_counted or _has_ended(job, store, before.last)


def _next(before: Claim | None, job: Job) -> Claim:
    """Return the claim after `before` on the way to this pod's; pods that died unclaimed leave no gap."""
    if before is None:
        return Claim(0)
    following = replace(before, number=before.number + 1, pod_uid="", runs=True)
    if job.failed_count + job.ignored_count <= before.counted:  # the counts have begun anew
        return replace(following, failed=0, ignored=0, since=following.number)
    if job.ignored_count > before.ignored:
        spent = before.spent_restarts + int(before.runs)
        return replace(following, ignored=before.ignored + 1, spent_restarts=spent)
    return replace(following, failed=before.failed + 1, spent_failures=before.spent_failures + 1)


def _stored(job: Job, store: Store, number: int) -> Claim | None:
    name = _object(job, number)
    try:
        return read_claim(read_start(store, name), name, job.outcome_key, number)
    except MissingObject:
        return None


def _has_ended(job: Job, store: Store, attempt: int) -> bool:
    """Return whether that attempt has stored how it ended."""
    why_not = _why_not_ended(job, store, attempt)
    if why_not:
        sys.stderr.write(f"kinetic: attempt {attempt + 1} has not said how it ended: {why_not}\n")
    return not why_not


def _why_not_ended(job: Job, store: Store, attempt: int) -> str:
    """Return why that attempt is not known to have ended, "" if it is."""
    name = object_names.attempt_outcome(job.job_id, attempt, job.host)
    try:
        header = wire.decode_head(read_head(store, name), job.outcome_key)
        object_names.require_place(header, job.job_id, name)
    except (MissingObject, wire.FrameError) as exc:
        return str(exc) or type(exc).__name__
    return ""


def _object(job: Job, number: int) -> str:
    return object_names.claim(job.job_id, number, job.host)
