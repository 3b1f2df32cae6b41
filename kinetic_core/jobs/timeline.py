"""Timeline of a job: every second since its submission, with its cause and what would shorten it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.outcome import Header
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.names import CONTAINER
from kinetic_core.backends.kubernetes.objects import Pod, seconds
from kinetic_core.errors import ObjectNotFound
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.facts import attempt_header
from kinetic_core.jobs.fallback import PassedOver, passed_over
from kinetic_core.jobs.observe import observe
from kinetic_core.jobs.phases import Phase
from kinetic_core.jobs.signing import verified_header
from kinetic_core.store.documents import read_start

_TOLD_BY_THE_RUNNER = {
    "started": "start",
    "installing": "dependencies",
    "installed": "start",
    "data": "data",
    "debugger": "debugger",
    "user_started": "function",
    "user_finished": "result",
}
"""Times in the header of an outcome, and the phase that begins then."""
_TOLD_BY_EVENTS = {"TriggeredScaleUp": "scale-up", "Pulling": "image", "Pulled": "container"}
"""Reasons of the cluster autoscaler's and the kubelet's events, and the phase that begins then."""
_BEFORE_EVENTS = ("scheduling", "container")
"""The phases of a pod during which its events come."""
_CLOCKS_AGREE = 30.0
"""Seconds by which a machine's clock may differ from the API server's before its times are shifted."""


@dataclass(frozen=True)
class Explanation:
    """State and timeline of a job until now. `str()` of an explanation is for people."""

    job_id: str
    observation: JobObservation
    phases: tuple[Phase, ...]
    passed_over: tuple[PassedOver, ...] = ()

    def __str__(self) -> str:
        seen = self.observation
        said = f": {seen.message}" if seen.message else ""
        lines = [f"{self.job_id} is {seen.status.value}{f' ({seen.reason})' if seen.reason else ''}{said}"]
        lines += [f"  no capacity for {one.accelerator}: {one.why}" for one in self.passed_over]
        for phase in self.phases:
            attempt = f" (attempt {phase.attempt})" if phase.attempt else ""
            lines.append(f"{phase.seconds:9.1f} s  {phase.name}{attempt}: {phase.advice}")
        return "\n".join(lines)


def explain(backend: Backend, reference: JobReference) -> Explanation:
    """Explain a job by its objects and its last outcome; of a slice, by host 0 or the failed host."""
    observation = observe(backend, reference)
    found = backend.get(reference.namespace, reference.job_id)
    try:
        start = read_start(backend.store, object_names.result(reference.job_id))
        header = verified_header(backend, reference, start, found[0] if found else None)
        Header.from_dict(header)
    except (ObjectNotFound, wire.FrameError):  # that it is malformed, the observation says
        header = {}
    known = known_phases(backend, reference, found, header)
    return Explanation(reference.job_id, observation, known, passed_over(backend, reference))


def known_phases(
    backend: Backend, reference: JobReference, found: Found | None, outcome: Mapping[str, Any]
) -> tuple[Phase, ...]:
    """Return the phases of a job until now, from its objects and its outcome's header ({} for no outcome).

    Reads the events of the job's pods; changes nothing.
    """
    told = outcome.get("host") or 0
    job, pods = found if found is not None else ({}, [])
    pods = [pod for pod in pods if Pod(pod).host == told]
    events = backend.events(reference.namespace, [str(pod["metadata"].get("name")) for pod in pods])
    passed = passed_over(backend, reference)
    return tuple(
        phases(
            submitted_at(reference),
            job,
            pods,
            events,
            outcome,
            time.time(),
            passed[-1].at if passed else None,
            _earlier(backend, reference, job, pods, int(outcome.get("attempt") or 0)),
        )
    )


def _earlier(
    backend: Backend,
    reference: JobReference,
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    last: int,
) -> dict[int, Mapping[str, float]]:
    """Return the times of the attempts before the last of whose pods nothing is known any more."""
    known = {Pod(pod).attempt for pod in pods}
    headers = {
        attempt: attempt_header(backend, reference, attempt, job or None)
        for attempt in range(last)
        if attempt not in known
    }
    return {attempt: header.times for attempt, header in headers.items() if header is not None}


def submitted_at(reference: JobReference) -> float:
    """Return when the job was submitted, in Unix seconds."""
    return datetime.fromisoformat(reference.created_at).timestamp()


def phases(
    submitted: float,
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    outcome: Mapping[str, Any],
    now: float,
    moved_on_at: float | None = None,
    earlier: Mapping[int, Mapping[str, float]] = MappingProxyType({}),
) -> Iterator[Phase]:
    """Yield the phases of a job, in order, from Kubernetes' objects and the header of its outcome.

    They add up to the time from submission to the end, or to now. `events` are those of the job's pods, which
    a cluster keeps for an hour. Kubernetes' own times are whole seconds, so a phase of less may be missing,
    and a time before the submission counts as the submission's. `moved_on_at`: when the job moved to its
    current accelerator. `earlier` are the times of attempts without a pod. The API server's clock counts
    where the clock of the submitter or of a node cannot be right.
    """
    times = {str(key): float(value) for key, value in (outcome.get("times") or {}).items()}
    told = int(outcome.get("attempt") or 0) if times else None
    made = seconds((job.get("metadata") or {}).get("creationTimestamp"))
    if made is not None and submitted > made + _CLOCKS_AGREE:
        submitted = made
    earliest, latest = _frame(submitted, job, [pod for pod in pods if Pod(pod).attempt == told], now)
    times = _moved(times, earliest, latest)
    starts = earliest - _CLOCKS_AGREE, min(times.values(), default=latest) + _CLOCKS_AGREE
    marks: list[tuple[float, str, int]] = [(submitted, "queue", 0)]
    if moved_on_at is not None:
        marks = [(submitted, "capacity", 0), (moved_on_at, "queue", 0)]
    elif made is not None:
        marks = [(submitted, "upload", 0), (made, "queue", 0)]
    for attempt, noted in earlier.items():
        marks += [(noted[key], name, attempt) for key, name in _TOLD_BY_THE_RUNNER.items() if key in noted]
        marks += [(noted["finished"], "replacement", attempt)] if "finished" in noted else []
    for pod in sorted(pods, key=lambda pod: Pod(pod).attempt):
        own = list(_pod_marks(pod, Pod(pod).attempt, times=Pod(pod).attempt == told))
        own = [mark for mark in own if mark[1:] != ("start", told) or starts[0] <= mark[0] <= starts[1]]
        before = [mark for mark in own if mark[1] in _BEFORE_EVENTS]
        after = [mark for mark in own if mark[1] not in _BEFORE_EVENTS]
        marks += [*before, *_event_marks(pod, Pod(pod).attempt, events), *after]
    if told is not None:
        named = dict(_TOLD_BY_THE_RUNNER)
        if "gathered" in times:
            named |= {"started": "hosts", "gathered": "start"}
        elif any(mark[1:] == ("start", told) for mark in marks):
            del named["started"]  # the container's own start is earlier
        marks += [(times[key], name, told) for key, name in named.items() if key in times]
    # Only by time: of marks in the same second, the later phase stands later in the list. A mark in whole
    # seconds may lie before the submission that it follows.
    first = max(submitted, moved_on_at or submitted)
    marks = [(at if at == submitted else max(at, first), name, attempt) for at, name, attempt in marks]
    marks.sort(key=lambda mark: mark[0])
    end = max(times.get("finished") or _end(job) or now, marks[-1][0])
    for (began, name, attempt), until in zip(marks, [*(mark[0] for mark in marks[1:]), end], strict=True):
        if until > began:
            yield Phase(name, attempt, began, until - began)


def _frame(
    submitted: float, job: Mapping[str, Any], told: Sequence[Mapping[str, Any]], now: float
) -> tuple[float, float]:
    """Return the earliest and latest time of an attempt's own marks, by clocks that can be right."""
    latest = _end(job) or now
    marks = {name: at for pod in told for at, name, _ in _pod_marks(pod, 0, times=True)}
    earliest = max(submitted, marks.get("container", submitted))
    started = marks.get("start", earliest)
    return (started if earliest <= started <= latest else earliest), latest


def _moved(times: Mapping[str, float], earliest: float, latest: float) -> dict[str, float]:
    """Shift the times of one machine by the least error that its clock must have."""
    if not times:
        return {}
    first, last = min(times.values()), max(times.values())
    wrong = 0.0
    if first < earliest - _CLOCKS_AGREE:
        wrong = first - earliest
    elif last > latest + _CLOCKS_AGREE:
        wrong = last - latest
    return {name: at - wrong for name, at in times.items()}


def _pod_marks(pod: Mapping[str, Any], attempt: int, times: bool) -> Iterator[tuple[float, str, int]]:
    """Yield when each phase of one attempt began; `times` says that the runner reported its own phases."""
    status = pod.get("status") or {}
    state = next(
        (
            each.get("state") or {}
            for each in status.get("containerStatuses") or ()
            if each["name"] == CONTAINER
        ),
        {},
    )
    ended = state.get("terminated") or {}
    scheduled = [
        condition.get("lastTransitionTime")
        for condition in status.get("conditions") or ()
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True"
    ]
    stamps = {
        "scheduling": pod["metadata"].get("creationTimestamp"),
        "container": scheduled[0] if scheduled else None,
        "start" if times else "function": (state.get("running") or ended).get("startedAt"),
        "replacement": None if times else ended.get("finishedAt"),
    }
    for name, stamp in stamps.items():
        at = seconds(stamp)
        if at is not None:
            yield at, name, attempt


def _event_marks(
    pod: Mapping[str, Any], attempt: int, events: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[float, str, int]]:
    """Yield marks from events: when a pool began to grow for a pod, when its image was pulled."""
    name, uid = pod["metadata"].get("name"), pod["metadata"].get("uid")
    for event in events:
        whom = event.get("involvedObject") or {}
        at = seconds(event.get("firstTimestamp") or event.get("eventTime"))
        phase = _TOLD_BY_EVENTS.get(str(event.get("reason")))
        is_its_own = whom.get("name") == name and whom.get("uid", uid) == uid  # a set's pods share names
        if is_its_own and phase and at is not None:
            yield at, phase, attempt


def _end(job: Mapping[str, Any]) -> float | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return seconds(condition.get("lastTransitionTime"))
    return None
