"""Rerun of the inputs for which a finished batch has no value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import CHUNK
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.batches.definition import failure_object, resumption_object, resumptions
from kinetic_core.batches.queue import Line, Waiting
from kinetic_core.batches.scheduler import in_parallel
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.inputs import stored_of
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.signing import Keys
from kinetic_core.store.protocol import ObjectInfo, ObjectStore

_TAKE_OVER_SECONDS = 30.0
_POLL_SECONDS = 0.5


def resume(
    backend: Backend,
    whole: JobReference,
    submitted: Sequence[int],
    create: Callable[[int, Sequence[int]], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Create another chunk for the inputs without a value, unless an input of the batch still runs.

    `create` makes the chunk of a number for some inputs. The stored objects of these inputs are removed
    first, so that they begin at attempt 0. Of several simultaneous callers one does this and the others wait;
    after half a minute they take its process for dead. If that process goes on, it removes only objects that
    it saw before the resumption, and none that the new chunk has stored.
    """
    assert backend.parts is not None  # noqa: S101  only there inputs share Jobs
    jobs = backend.parts.parts(whole.namespace, whole.job_id)
    if any(not observe(job, ()).is_terminal for job in jobs):
        return
    states = stored_states(backend, whole.namespace, whole.job_id, jobs)
    rest = [index for index in submitted if states.get(index) != "succeeded"]
    if not rest:
        return
    before = _stored_before(backend.store, whole.job_id, set(rest))
    number = 1 + max((int(job["metadata"]["labels"][CHUNK]) for job in jobs), default=-1)
    if not is_first(backend.store, whole.job_id, number):
        give_up = time.monotonic() + _TAKE_OVER_SECONDS
        while time.monotonic() < give_up:
            if len(backend.parts.parts(whole.namespace, whole.job_id)) > len(jobs):
                return
            sleep(_POLL_SECONDS)
    backend.store.delete_seen(before)
    create(number, rest)


def stored_states(
    backend: Backend,
    namespace: str,
    group_id: str,
    jobs: Sequence[Mapping[str, Any]] | None = None,
    indexes: Iterable[int] | None = None,
) -> dict[int, str]:
    """Return how inputs ended, with one request per thousand if the outcomes' metadata says so.

    With `indexes` only these inputs are looked at, with a request for each. Outcomes whose signature cannot
    be verified are left out. `jobs`: the inputs' shared Jobs, if known.
    """
    if jobs is None:
        jobs = backend.parts.parts(namespace, group_id) if backend.parts is not None else ()
    keys, store = Keys(backend, namespace, jobs), backend.store
    if indexes is None:
        found = stored_of(store, group_id, object_names.result(f"{group_id}-*"))
    else:
        looked_at = ((index, store.find(object_names.result(f"{group_id}-{index}"))) for index in indexes)
        found = ((index, info) for index, info in looked_at if info is not None)
    states = ((index, keys.state_of(info, group_id)) for index, info in found)
    return {index: state for index, state in states if state}


def is_first(store: ObjectStore, group_id: str, number: int) -> bool:
    """Claim a resumption; return whether this caller is the one to do it."""
    return store.create_if_absent(resumption_object(group_id, number), b"")


def _stored_before(store: ObjectStore, group_id: str, indexes: set[int]) -> list[ObjectInfo]:
    """List the stored objects of some inputs, and the mark that stops the batch."""
    stop = store.find(object_names.stop(group_id))
    own = [info for index, info in stored_of(store, group_id) if index in indexes]
    return own if stop is None else [stop, *own]


def run_again(
    backend: Backend, line: Line, group_id: str, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Let the inputs without a value wait for their turn again, unless an input of the batch still runs.

    Their stored objects but outputs are removed, so that they begin anew. Of several simultaneous callers one
    does this, and the others wait; after half a minute they take its process for dead.
    """
    store, finished = backend.store, object_names.finished(group_id)
    if store.find(finished) is None:
        return
    jobs = [(index, one) for index, one in enumerate(line) if one]
    namespaces = {one.reference.namespace for _, one in jobs}
    done = {
        index
        for namespace in namespaces
        for index, state in stored_states(backend, namespace, group_id, ()).items()
        if state == "succeeded"
    }
    seen = [(each, reconcile(backend, each[1].reference).status) for each in jobs if each[0] not in done]
    rest = [each for each, status in seen if status is not JobStatus.SUCCEEDED]
    if not rest or not all(status.is_terminal for _, status in seen):
        return
    before = _results_before(store, group_id, rest)
    uids = {one.reference.job_id: _uid(backend, one) for _, one in rest}
    number = sum(1 for _ in store.list(resumptions(group_id)))
    if not is_first(store, group_id, number):
        give_up = time.monotonic() + _TAKE_OVER_SECONDS
        while time.monotonic() < give_up:
            if store.find(finished) is None:
                return
            sleep(_POLL_SECONDS)

    def remove(each: tuple[int, Waiting]) -> None:
        reference = each[1].reference
        uid = _uid(backend, each[1])
        if uid is not None and uid == uids[reference.job_id] and not _lives(backend, each[1]):
            backend.remove(reference.namespace, reference.job_id)

    for _, error in in_parallel(remove, rest):
        if error is not None:
            raise error
    store.delete_seen(before)


def _results_before(
    store: ObjectStore, group_id: str, rest: Sequence[tuple[int, Waiting]]
) -> list[ObjectInfo]:
    """List the stored objects of some inputs; last those that say the batch was stopped and has ended."""
    indexes = {index for index, _ in rest}
    names = [failure_object(group_id, index) for index in indexes]
    names += [index_object(one.reference) for _, one in rest]
    names += [object_names.stop(group_id), object_names.finished(group_id)]
    own = [info for index, info in stored_of(store, group_id) if index in indexes]
    there = store.present(names)
    others = (store.find(name) for name in names if name in there)
    return [*own, *(info for info in others if info is not None)]


def _uid(backend: Backend, one: Waiting) -> str | None:
    """Return the UID of an input's Job, None if the Job is gone."""
    found = backend.get(one.reference.namespace, one.reference.job_id)
    return None if found is None else str(found[0]["metadata"].get("uid"))


def _lives(backend: Backend, one: Waiting) -> bool:
    return not reconcile(backend, one.reference).is_terminal
