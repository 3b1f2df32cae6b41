"""Detail of one job: its row in the list, the end of its log, its outputs and links.

Takes a handful of requests: the job with its pods and events if it may live, one listing of its log and the
last pieces of it, one page of its outputs, up to two for each earlier attempt. Nothing is changed or
reconciled, no value is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from airflow_provider.job_of_task import TaskIdentity
from airflow_provider.records import EarlierJob, JobRecord, advice, earlier_to_value, readable
from airflow_provider.ui.places import environment
from airflow_provider.ui.rows import Instance, Live, phases_to_value, row
from kinetic_core._runner import object_names
from kinetic_core._runner.wire import FailureClass, encodable
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.errors import KineticError
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs import addresses
from kinetic_core.jobs.facts import attempt_header, stored_outcome
from kinetic_core.jobs.fallback import remedy
from kinetic_core.jobs.logs import host_count, stored_end
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.timeline import explain, known_phases
from kinetic_core.jobs.warm import summary_of

TAIL_BYTES = 32 << 10
TAIL_LINES = 200
NO_LINE = "no line of it is stored"
UNREAD = "its lines could not be read"
"""What stands for the lines of a job without a stored outcome, and of one whose store gives no answer."""
_MOST_OUTPUTS = 100
_MOST_ATTEMPTS = 20
_MOST_HOSTS = 4
"""Hosts of a slice whose logs are shown; all of them are in the task's log."""
_RESUMPTION = "airflow resumption"
_WHY_HELD = (
    "until the trigger's event, which is held within seconds of the deferral: Airflow's scheduler may fail a "
    "task that is resumed so soon"
)
_END = "airflow end"
_WHY_END = "until what waited for the job had read its outcome, and Airflow had recorded the task's end"
_WHY = {_RESUMPTION: _WHY_HELD, _END: _WHY_END}
_Stretch = tuple[str, float | None, float | None]
"""Name of a phase, its begin and its end, in Unix seconds; None if that is not known."""


def detail(instance: Instance, record: JobRecord, home: Backend | str) -> dict[str, Any]:
    """Return the row of a task instance with the job of `record`, and all else that the page shows of it.

    `home` is the job's backend, or the reason why it is unknown.
    """
    reference = record.reference
    shown: dict[str, Any] = {
        "links": _links(reference),
        "namespace": reference.namespace,
        "image": reference.image_uri,
        "environment": environment(home),
        "advice": "",
        "traceback": "",
        "log": [],
        "silence": UNREAD,
        "worker": None,
        "outputs": [],
        "troubles": [],
    }
    if isinstance(home, str):
        return row(instance, None, home) | shown | {"troubles": [home]}
    live, trouble = None, "its Job has gone"
    try:
        if record.end is None:
            live = _live(home, reference)
            shown["advice"] = _remedy(home, reference, live)
        shown["log"] = tail(home, reference, _attempt(record, live))
        if not shown["log"]:
            told = row(instance, live)
            shown["silence"] = silence(home, reference, told["status"], told["reason"])
        shown["outputs"] = outputs(home, reference)
        shown["worker"] = _worker(home, reference)
        if record.end is not None and record.end.status is JobStatus.FAILED:
            shown |= _failure(home, reference)
        shown["earlier"] = [*_earlier_jobs(home, instance, record), *_attempts(home, instance, record, live)]
    except (KineticError, OSError) as error:
        trouble = str(error)
        shown["troubles"] = [trouble]
    told = row(instance, live, trouble)
    return told | shown | {"airflow": airflow_phases(instance, told["phases"])}


def airflow_phases(
    instance: Instance, phases: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the phases of a task `before` and `after` those of its job.

    The times at which the task was scheduled and queued are left out if they are of a later leg: then the
    whole of Airflow's time before the first leg is one phase, if it is known when that began. A task that
    waited for its image has noted these times itself; after a build it waits in the queue again. A task that
    has adopted a job began after it.
    """
    times, build = instance.times, instance.build
    begin, end = (phases[0]["began"], phases[-1]["began"] + phases[-1]["seconds"]) if phases else (None, None)
    before = [("airflow worker", times.started, begin)]
    if build is not None:
        before = [
            ("airflow worker", times.started, build.began),
            ("build", build.began, build.ended or begin or times.ended),
            (_RESUMPTION, build.ended, build.sent),
            ("airflow queue", build.sent or build.ended, build.resumed),
            ("airflow worker", build.resumed, begin),
        ]
    if (times.queued or 0.0) <= min(times.started or math.inf, begin or math.inf):
        before = [
            ("airflow scheduler", times.scheduled, times.queued),
            ("airflow queue", times.queued, times.started),
            *before,
        ]
    elif times.started is not None and times.started <= (begin or math.inf):
        name = "airflow scheduler and queue" if instance.try_number == 1 else "airflow retry"
        before = [(name, times.runnable, times.started), *before]
    is_over = instance.record is not None and instance.record.end is not None
    return {"before": _between(before), "after": _between(_after(instance, end) if is_over else ())}


def _after(instance: Instance, end: float | None) -> Iterator[_Stretch]:
    """Yield what Airflow took after a job that has ended at `end`.

    Of a task that a worker has ended, the times of the scheduler and the queue are those of that leg: the
    trigger's event has put it there, maybe before the cluster had noted the job's end. The worker has noted
    when it went on.
    """
    times, began = instance.times, end
    own = None if instance.record is None else instance.record.end
    resumed = None if own is None else own.resumed
    is_own = instance.job_try == instance.try_number
    if is_own and end is not None and (times.scheduled or 0.0) > (times.started or math.inf):
        sent = max(end, times.scheduled or 0.0)
        began = max(sent, times.queued or 0.0)
        yield from ((_RESUMPTION, end, sent), ("airflow scheduler", sent, began))
        if resumed is not None:
            resumed = max(began, resumed)
            yield from (("airflow queue", began, resumed), ("airflow worker", resumed, times.ended))
            return
    yield _END, began, times.ended


def _between(phases: Iterable[_Stretch]) -> list[dict[str, Any]]:
    return [
        {"name": name, "attempt": 0, "began": began, "seconds": round(ended - began, 3)}
        | ({"why": _WHY[name]} if name in _WHY else {})
        for name, began, ended in phases
        if began is not None and ended is not None and ended > began
    ]


def tail(backend: Backend, reference: JobReference, attempt: int) -> list[str]:
    """Return the last lines of an attempt that the runner has stored, as it does every few seconds."""
    lines: list[str] = []
    hosts = min(host_count(reference), _MOST_HOSTS)
    for host in range(hosts):
        text = b"".join(stored_end(backend.store, reference, attempt, host, TAIL_BYTES))
        found = text.decode(errors="replace").splitlines()[-TAIL_LINES // hosts :]
        lines += (f"[host {host}] {line}" if hosts > 1 else line for line in found)
    return lines


def silence(backend: Backend, reference: JobReference, status: str, reason: str) -> str:
    """Return why a job or an input of that status and reason has no stored line.

    A runner stores all lines before the outcome that it commits; one that was killed may have kept some.
    """
    if status in (JobStatus.PENDING.value, JobStatus.RUNNING.value):
        return "no line is stored yet"
    if backend.store.find(object_names.result(reference.job_id)) is None:
        return NO_LINE
    has_told = status == JobStatus.SUCCEEDED.value or reason == FailureClass.USER_ERROR
    return "it printed nothing" if has_told else "it printed nothing that was stored"


def _live(backend: Backend, reference: JobReference) -> Live | None:
    found = backend.get(reference.namespace, reference.job_id)
    if found is None:
        seen = stored_outcome(backend, reference, None)
    else:
        seen = verdict(*found)
        if seen.status.ended_without_value:
            told = stored_outcome(backend, reference, found[0])
            seen = seen if told.status is JobStatus.NOT_FOUND else told
    if seen.status is JobStatus.NOT_FOUND:
        return None
    return Live(seen, known_phases(backend, reference, found, {}, is_over=seen.is_terminal))


def _worker(backend: Backend, reference: JobReference) -> dict[str, Any] | None:
    """Return how the warm worker of a call is and where its time went; None for a job that is no call.

    An XCom may name any job: of one that is no worker, or is gone, nothing is told.
    """
    found = backend.get(reference.namespace, reference.worker) if reference.worker else None
    summary = None if found is None else summary_of(backend, found)
    own = None if summary is None else find(backend, reference.worker)
    if summary is None or own is None:
        return None
    seen = summary.seen
    state = ("idle" if summary.is_idle else "runs a call") if seen.status is JobStatus.RUNNING else ""
    return {
        "job_id": summary.job_id,
        "state": state or seen.status.value.lower(),
        "calls": summary.calls,
        "idle_seconds": summary.idle_seconds,
        "phases": phases_to_value(explain(backend, own).phases),
    }


def _earlier_jobs(backend: Backend, instance: Instance, record: JobRecord) -> list[dict[str, Any]]:
    """Return how the jobs of the tries before ended, the first try first.

    A task was told little of a job whose pods had gone when it began: the store knows what that job raised.
    Its id is made from the task instance, so that no XCom, which authors of DAGs can write, names another.
    """
    known = {each.job_id: each for each in instance.earlier}
    names = (instance.dag_id, instance.run_id, record.run_began, instance.task_id, instance.map_index)
    for each in TaskIdentity(*names, instance.job_try).tries():
        job_id, told = each.job_id(), known.get(each.job_id())
        if each.try_number == instance.job_try or (told and told.reason != FailureClass.CONTROL_PLANE):
            continue
        own = replace(record.reference, job_id=job_id, spec_digest="")  # the call may have changed since
        found = backend.get(own.namespace, job_id)
        seen = stored_outcome(backend, own, found[0] if found else None)
        if seen.status is not JobStatus.NOT_FOUND:
            known[job_id] = EarlierJob.of(each.try_number, job_id, seen)
    return earlier_to_value(sorted(known.values(), key=lambda each: each.try_number))


def _attempts(
    backend: Backend, instance: Instance, record: JobRecord, live: Live | None
) -> Iterator[dict[str, Any]]:
    """Yield how the attempts of a job before its last one ended, with their numbers, counted from 0."""
    reference, last = record.reference, _attempt(record, live)
    found = backend.get(reference.namespace, reference.job_id) if last else None
    for number in range(max(last - _MOST_ATTEMPTS, 0), last):
        header = attempt_header(backend, reference, number, found[0] if found else None)
        failure = None if header is None else header.failure
        ended = EarlierJob(instance.job_try, reference.job_id, "UNKNOWN", "", "its pod is gone")
        if failure is not None:
            reason, text = str(failure.failure_class), readable(failure.message)
            ended = replace(ended, status=JobStatus.after(failure).value, reason=reason, message=text)
        yield asdict(ended) | {"attempt": number}


def _remedy(backend: Backend, reference: JobReference, live: Live | None) -> str:
    """Return what gives a job that waits for a node one, what to copy of it between backticks."""
    told = "" if live is None else remedy(backend, reference, live.observation)
    command, _, why = told.partition(": ")
    return f"`{command}`: {why}" if why else ""


def _failure(backend: Backend, reference: JobReference) -> dict[str, str]:
    """Return the traceback and the advice of a failed job; nothing of an outcome that nobody signed."""
    found = backend.get(reference.namespace, reference.job_id)
    failure = stored_outcome(backend, reference, found[0] if found else None).failure
    if failure is None:
        return {}
    return {"traceback": readable(failure.traceback or ""), "advice": advice(failure)}


def _attempt(record: JobRecord, live: Live | None) -> int:
    if live is not None:
        return live.observation.attempt
    return record.end.attempt if record.end else 0


def _links(reference: JobReference) -> list[dict[str, str]]:
    """Return pages of Google's console; an address of another scheme is shown as text, never as a link."""
    places = {
        "Job": addresses.workload(reference),
        "Job logs": addresses.logs(reference),
        "Outputs": addresses.outputs(reference),
    }
    return [{"name": name, "address": address} for name, address in places.items() if address]


def outputs(backend: Backend, reference: JobReference) -> list[dict[str, Any]]:
    """Return the first files in the job's own output directory; a directory elsewhere is not read."""
    prefix = object_names.outputs_prefix(reference.job_id) + "/"
    listed = itertools.islice(backend.store.list(prefix), _MOST_OUTPUTS)
    return [{"name": encodable(info.name.removeprefix(prefix)), "size": info.size} for info in listed]
