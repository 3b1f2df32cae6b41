"""Timeline of a job: every second since its submission, with its cause and what would shorten it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count, pairwise
from math import isfinite
from types import MappingProxyType
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.outcome import Header
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.names import CHUNK, CONTAINER, IDLE_SECONDS
from kinetic_core.backends.kubernetes.objects import Condition, Job, Pod, seconds
from kinetic_core.backends.kubernetes.pods import gone_pods
from kinetic_core.errors import ObjectNotFound
from kinetic_core.job import JobObservation, JobReference, Step
from kinetic_core.jobs.facts import attempt_header, told_times
from kinetic_core.jobs.fallback import PassedOver, passed_over
from kinetic_core.jobs.lanes import outcome_start, runs_on_lane
from kinetic_core.jobs.observe import observe
from kinetic_core.jobs.phases import LocalPhase, Phase
from kinetic_core.jobs.signing import variable, verified_header

_TOLD_BY_THE_RUNNER = {
    "started": "start",
    "installing": "dependencies",
    "installed": "start",
    "data": "data",
    "debugger": "debugger",
    "user_started": "function",
    "user_finished": "result",
    "serving": "calls",
    "idle": "idle",
}
"""Times in the header of an outcome, and the phase that begins then."""
_PREPARING = {Step.PACK: "packing", Step.BUILD: "build", Step.UPLOAD: "upload"}
"""Phases of preparing a job, by its steps."""
_TOLD_BY_EVENTS = {"TriggeredScaleUp": "scale-up", "Pulling": "image", "Pulled": "container"}
"""Reasons of the cluster autoscaler's and the kubelet's events, and the phase that begins then."""
_BEFORE_EVENTS = ("scheduling", "container")
"""The phases of a pod during which its events come."""
_Mark = tuple[float, str, int]
"""Time at which a phase of an attempt begins, in Unix seconds, the phase's name, and the attempt."""
_CLOCKS_AGREE = 30.0
"""Seconds by which a machine's clock may differ from the API server's before its times are shifted."""
_QUICK_SECONDS = 3.0
"""Seconds from a pod's creation to its container's start within which its events would explain little."""
_WHOLE_SECOND = 1.0
"""Seconds by which a time of Kubernetes' may be too early, because it is written in whole seconds."""


@dataclass(frozen=True)
class Explanation:
    """State and timeline of a job until now. `str()` of an explanation is for people.

    The phases follow each other without a gap, from the call to the end or to now: the steps of preparing
    the job, then what followed its submission. That and the end are `created_at` and `finished_at` of the
    `observation`.
    """

    job_id: str
    observation: JobObservation
    phases: tuple[Phase, ...]
    passed_over: tuple[PassedOver, ...] = ()

    @property
    def seconds(self) -> float:
        """Return the time from the call to the job's end, or to now, in seconds."""
        return self.phases[-1].end - self.phases[0].began if self.phases else 0.0

    def __str__(self) -> str:
        seen = self.observation
        said = f": {seen.message}" if seen.message else ""
        lines = [f"{self.job_id} is {seen.status.value}{f' ({seen.reason})' if seen.reason else ''}{said}"]
        lines += [f"  no capacity for {one.accelerator}: {one.why}" for one in self.passed_over]
        for phase in self.phases:
            attempt = f" (attempt {phase.attempt + 1})" if phase.attempt else ""
            lines.append(f"{phase.seconds:9.1f} s  {phase.name}{attempt}: {phase.advice}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from kinetic_core.notebook import explanation_html

        return explanation_html(self)


def explain(backend: Backend, reference: JobReference) -> Explanation:
    """Explain a job by its objects and its last outcome; of a slice, by host 0 or the failed host."""
    observation = observe(backend, reference)
    found = backend.get(reference.namespace, reference.job_id)
    try:
        start = outcome_start(backend, reference)
        header = verified_header(backend, reference, start, found[0] if found else None)
        Header.from_dict(header)
    except (ObjectNotFound, wire.FrameError):  # that it is malformed, the observation says
        header = {}
    known = known_phases(backend, reference, found, header, is_over=observation.is_terminal)
    if known:
        ended = known[-1].end if observation.is_terminal else None
        submitted = known[0].began + reference.preparation_seconds
        observation = replace(observation, created_at=submitted, finished_at=ended)
    return Explanation(reference.job_id, observation, known, passed_over(backend, reference))


def current_phase(backend: Backend, reference: JobReference, attempt: int) -> str:
    """Return the phase in which an attempt runs, as its runner has told; "" before it has."""
    found = backend.get(reference.namespace, reference.job_id)
    times = told_times(backend, reference, attempt, found[0]) if found else {}
    marks = _runner_marks(times, attempt, has_started=False)
    return max(marks)[1] if marks else ""


def known_phases(
    backend: Backend,
    reference: JobReference,
    found: Found | None,
    outcome: Mapping[str, Any],
    *,
    is_over: bool,
) -> tuple[Phase, ...]:
    """Return the phases of a job until now, from its objects and its outcome's header ({} for no outcome).

    `is_over`: the job has ended. Reads the events of the job's pods, but for pods that started at once;
    changes nothing.
    """
    told = outcome.get("host") or 0
    job, pods = found or backend.removed(reference.namespace, reference.job_id) or ({}, [])
    pods = [pod for pod in pods if Pod(pod).host == told]
    names = [str(pod["metadata"].get("name")) for pod in pods]
    slow = [name for name, pod in zip(names, pods, strict=True) if not _started_at_once(pod)]
    events = backend.events(reference.namespace, slow, _job_of_lost_pods(reference, job, pods, outcome))
    passed = passed_over(backend, reference)
    known = tuple(
        phases(
            submitted_at(reference),
            job,
            [*pods, *gone_pods(events, names, told)],
            events,
            outcome,
            time.time(),
            passed[-1].at if passed else None,
            _noted(backend, reference, found[0] if found else {}, pods, outcome, is_over=is_over),
            is_over=is_over,
        )
    )
    known = _with_preparation(reference, known)
    if backend.name == "local":
        known = tuple(LocalPhase(one.name, one.attempt, one.began, one.seconds) for one in known)
    if runs_on_lane(reference):  # it has no Job, and waits for the inputs before it
        return tuple(replace(each, name="queue") if each.name == "unknown" else each for each in known)
    if not (job and variable(job, IDLE_SECONDS)):
        return known
    # A worker has no function; how much of its time was its calls', it says when it has ended.
    own = ("running", "function")
    return tuple(replace(each, name="idle") if each.name in own else each for each in known)


def _with_preparation(reference: JobReference, known: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Return the known phases of a job after those of preparing it, which end where the first of them begins.

    A job is uploaded before its submission, and after it until its Job is made: that is one phase.
    """
    if not known:
        return known
    began = known[0].began - reference.preparation_seconds
    lengths = [(_PREPARING[step], lasted) for step, lasted in reference.steps]
    if lengths and lengths[-1][0] == known[0].name:
        lengths[-1] = known[0].name, lengths[-1][1] + known[0].seconds
        known = known[1:]
    before = []
    for name, lasted in lengths:
        before += [Phase(name, 0, began, lasted)] if lasted else []
        began += lasted
    return (*before, *known)


def _noted(
    backend: Backend,
    reference: JobReference,
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    outcome: Mapping[str, Any],
    *,
    is_over: bool,
) -> dict[int, Mapping[str, float]]:
    """Return the times of the attempts that are not the outcome's, as their runners noted them.

    An attempt that runs, or was lost, has left no word but the times it has stored meanwhile. Of a job that
    is over without an outcome of its runner's the pods may be gone, and an observer's outcome may count too
    few attempts. Then all attempts are asked for that there may have been; so it is for a call on a worker,
    which has no pod.
    """
    last = max([int(outcome.get("attempt") or 0), *(Pod(pod).attempt for pod in pods)])
    attempts: Iterable[int] = range(last if outcome or not pods else last + 1)
    is_call = bool(reference.worker) and not pods and not outcome
    if is_call or ((outcome or is_over) and not outcome.get("times")):
        attempts = count()
    found: dict[int, Mapping[str, float]] = {}
    for attempt in attempts:
        header = attempt_header(backend, reference, attempt, job or None)
        times = header.times if header is not None else told_times(backend, reference, attempt, job or None)
        if times:
            found[attempt] = times
        elif attempt >= last:
            break
    return found


def _started_at_once(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's container started so soon that neither a node nor an image was waited for."""
    state = _container_state(pod)
    started = seconds((state.get("running") or state.get("terminated") or {}).get("startedAt"))
    created = seconds(pod["metadata"].get("creationTimestamp"))
    return created is not None and started is not None and started - created <= _QUICK_SECONDS


def _job_of_lost_pods(
    reference: JobReference,
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    outcome: Mapping[str, Any],
) -> str:
    """Return the name of the Job, if it had pods of which nothing is left but events; "" otherwise.

    So it is for an hour after the job was collected, too, which removes its Job. The events of a Job that
    inputs or calls share are those of all of them: too many to read.
    """
    if not job:
        is_own = reference.group_id is None and not reference.worker
        return reference.k8s_name if is_own and outcome else ""
    if CHUNK in (job["metadata"].get("labels") or {}):
        return ""
    known = {Pod(pod).attempt for pod in pods}
    is_lost = _ending(job) is not None if not known else len(known) <= max(known)
    return str(job["metadata"]["name"]) if is_lost else ""


def submitted_at(reference: JobReference) -> float:
    """Return when the job was submitted, in Unix seconds."""
    return datetime.fromisoformat(reference.created_at).timestamp()


@dataclass(frozen=True)
class _Attempt:
    """Attempt of a job: its pod, {} if nothing is known of it, and the times that its runner noted."""

    number: int
    pod: Mapping[str, Any]
    times: Mapping[str, float]


def phases(
    submitted: float,
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    outcome: Mapping[str, Any],
    now: float,
    moved_on_at: float | None = None,
    noted: Mapping[int, Mapping[str, float]] = MappingProxyType({}),
    *,
    is_over: bool | None = None,
) -> Iterator[Phase]:
    """Yield the phases of a job, in order, from Kubernetes' objects and the header of its outcome.

    Each begins where the one before ends: together they are the time from submission to the end, or to now.
    `events` are those of the job's pods, which a cluster keeps for an hour. Kubernetes' own times are whole
    seconds, so a phase of less may be missing, and a time before the submission counts as the submission's.
    `moved_on_at`: when the job moved to its current accelerator. `noted` are the times of attempts whose
    outcome was not the job's. `is_over`: the job has ended; default: what `job` and `outcome` say. The API
    server's clock counts where the clock of the submitter or of a node cannot be right.
    """
    made = seconds((job.get("metadata") or {}).get("creationTimestamp"))
    if made is not None and submitted > made + _CLOCKS_AGREE:
        submitted = made
    ending = _ending(job)
    ended = ending.since if ending is not None else None
    if is_over is None:
        is_over = bool(outcome) or ending is not None
    attempts = _attempts(pods, outcome, noted)
    marks = list(_first_marks(submitted, made, moved_on_at))
    if not job and is_over and moved_on_at is None:
        marks = list(_marks_without_a_job(submitted, events, is_known=bool(pods)))
    if not attempts and is_over and _had_pods(job):
        marks.append((max(marks[-1][0], _job_started(job) or submitted), "unknown", 0))
    limits = [*(_created(each) or ended or now for each in attempts[1:]), ended or now]
    for each, latest in zip(attempts, limits, strict=False):
        closes = each is attempts[-1] and (is_over or bool(outcome) or _returned(each))
        closing = "termination" if closes else "replacement"
        marks += _attempt_marks(each, events, marks[-1][0], latest, closing)
    yield from _between(marks, _whole_end(marks, ended, outcome) if is_over else now)


def _between(marks: Sequence[_Mark], end: float) -> Iterator[Phase]:
    """Divide the time from the first mark to the end: each second belongs to the last mark before it.

    A mark that comes too late, by a clock that is wrong, counts as the end; one that comes too early counts
    as the mark before it.
    """
    end = max(end, marks[0][0])
    parts: list[_Mark] = []
    for at, name, attempt in marks:
        began = min(max(at, parts[-1][0] if parts else at), end)
        while parts and parts[-1][0] == began:
            parts.pop()
        if not parts or parts[-1][1:] != (name, attempt):
            parts.append((began, name, attempt))
    for (began, name, attempt), (until, _, _) in pairwise([*parts, (end, "", 0)]):
        if until > began:
            yield Phase(name, attempt, began, until - began)


def _whole_end(marks: Sequence[_Mark], ended: float | None, outcome: Mapping[str, Any]) -> float:
    """Return when a job that is over ended: as its Job says, within a second, or else as its outcome does."""
    last = marks[-1][0]
    if ended is not None:
        return max(ended, last) if last < ended + _WHOLE_SECOND else ended
    told = outcome.get("finished_at")
    return max(last, float(told)) if isinstance(told, int | float) and isfinite(told) else last


def _attempts(
    pods: Sequence[Mapping[str, Any]],
    outcome: Mapping[str, Any],
    noted: Mapping[int, Mapping[str, float]],
) -> list[_Attempt]:
    """Return the attempts in order, each with its pods, and with its times at the last of these."""
    known = {number: _finite(times) for number, times in noted.items() if times}
    last = int(outcome.get("attempt") or 0)
    if times := _finite(outcome.get("times") or {}):
        known[last] = times
    elif not pods and not known and (began := _finite({"user_started": outcome.get("started_at")})):
        known[last] = began  # whoever recorded the failure has seen the pod
    shown: dict[int, list[Mapping[str, Any]]] = {number: [] for number in known}
    for pod in sorted(pods, key=lambda pod: Pod(pod).created):
        shown.setdefault(Pod(pod).attempt, []).append(pod)
    found = []
    for number, own in sorted(shown.items()):
        found += [_Attempt(number, pod, {}) for pod in own[:-1]]
        found.append(_Attempt(number, own[-1] if own else {}, known.get(number, {})))
    return found


def _finite(times: Mapping[str, Any]) -> dict[str, float]:
    """Return the times that are times, for a job's own code may have written them."""
    return {str(name): float(at) for name, at in times.items() if at is not None and isfinite(float(at))}


def _first_marks(submitted: float, made: float | None, moved_on_at: float | None) -> Iterator[_Mark]:
    """Yield the marks of a job before it has a pod; `made`: when its Job was created."""
    if moved_on_at is not None:
        yield submitted, "capacity", 0
        yield max(submitted, moved_on_at), "queue", 0
    elif made is not None:
        yield submitted, "upload", 0
        yield max(submitted, made), "queue", 0
    else:
        yield submitted, "queue", 0


def _marks_without_a_job(
    submitted: float, events: Sequence[Mapping[str, Any]], *, is_known: bool
) -> Iterator[_Mark]:
    """Yield the marks before the first pod of a job whose Job was removed; `is_known`: that pod is known.

    A Job that waits for a queue has an event of its own for that. Without a queue it gets its pods at once.
    """
    yield submitted, "upload" if is_known else "unknown", 0
    held = [each for each in events if each.get("reason") == "Suspended"]
    at = seconds(held[0].get("firstTimestamp") or held[0].get("eventTime")) if held else None
    if at is not None:
        yield max(at, submitted), "queue", 0


def _attempt_marks(
    one: _Attempt, events: Sequence[Mapping[str, Any]], earliest: float, latest: float, closing: str
) -> list[_Mark]:
    """Return the marks of an attempt, in order, none before `earliest`; `closing`: the phase after its end.

    Times of one machine that cannot lie between `earliest` and `latest` are shifted.
    """
    own = list(_pod_marks(one.pod, one.number, closing, one.times)) if one.pod else []
    named = {name: at for at, name, _ in own}
    least = max(earliest, named.get("container", earliest))
    began = named.get("start", least)
    times = _moved(one.times, began if least <= began <= latest else least, latest)
    first = min(times.values(), default=latest)
    starts = least - _CLOCKS_AGREE, first + _CLOCKS_AGREE
    own = [mark for mark in own if mark[1] != "start" or starts[0] <= mark[0] <= starts[1]]
    own = [(min(at, first) if name == "start" else at, name, number) for at, name, number in own]
    before = [mark for mark in own if mark[1] in _BEFORE_EVENTS]
    after = [mark for mark in own if mark[1] not in _BEFORE_EVENTS]
    after += _runner_marks(times, one.number, has_started=any(mark[1] == "start" for mark in after))
    if "finished" in times:
        after.append((times["finished"], closing, one.number))
    marks = [*before, *(_event_marks(one.pod, one.number, events) if one.pod else ()), *after]
    # Only by time: of marks in the same second, the later phase stands later in the list.
    return sorted(((max(at, earliest), name, number) for at, name, number in marks), key=lambda mark: mark[0])


def _runner_marks(times: Mapping[str, float], attempt: int, *, has_started: bool) -> list[_Mark]:
    """Return the marks of an attempt that its runner noted; `has_started`: its pod has one of them too."""
    named = dict(_TOLD_BY_THE_RUNNER)
    if "gathered" in times:
        named |= {"started": "hosts", "gathered": "start"}
    elif has_started:
        del named["started"]  # the container's own start is earlier
    return [(times[key], name, attempt) for key, name in named.items() if key in times]


def _moved(times: Mapping[str, float], earliest: float, latest: float) -> dict[str, float]:
    """Shift the times of one machine by the least error that its clock must have."""
    if not times:
        return {}
    first, last = min(times.values()), max(times.values())
    wrong = 0.0
    if first < earliest - _CLOCKS_AGREE:
        wrong = first - earliest
    elif last > latest + _WHOLE_SECOND:
        wrong = last - latest
    return {name: at - wrong for name, at in times.items()}


def _pod_marks(
    pod: Mapping[str, Any], attempt: int, closing: str, times: Mapping[str, float]
) -> Iterator[_Mark]:
    """Yield when each phase of one attempt began; `times` are those of which its runner has told."""
    state = _container_state(pod)
    ended = state.get("terminated") or {}
    scheduled = [
        condition.get("lastTransitionTime")
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True"
    ]
    stamps = {
        "scheduling": pod["metadata"].get("creationTimestamp"),
        "container": scheduled[0] if scheduled else None,
        "start" if times else "running": (state.get("running") or ended).get("startedAt"),
        closing: None if "finished" in times else ended.get("finishedAt"),
    }
    for name, stamp in stamps.items():
        at = seconds(stamp)
        if at is not None:
            yield at, name, attempt


def _container_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the container with user code; {} if it has none."""
    states = ((pod.get("status") or {}).get("containerStatuses")) or ()
    return next((each.get("state") or {} for each in states if each["name"] == CONTAINER), {})


def _event_marks(
    pod: Mapping[str, Any], attempt: int, events: Iterable[Mapping[str, Any]]
) -> Iterator[_Mark]:
    """Yield marks from events: when a pool began to grow for a pod, when its image was pulled."""
    name, uid = pod["metadata"].get("name"), pod["metadata"].get("uid")
    for event in events:
        whom = event.get("involvedObject") or {}
        at = seconds(event.get("firstTimestamp") or event.get("eventTime"))
        phase = _TOLD_BY_EVENTS.get(str(event.get("reason")))
        # A set's pods share names; of a pod that is gone only the name is known.
        is_its_own = whom.get("name") == name and (uid is None or whom.get("uid", uid) == uid)
        if is_its_own and phase and at is not None:
            yield at, phase, attempt


def _created(one: _Attempt) -> float | None:
    """Return when an attempt's pod was created; None if that is not known."""
    return seconds(one.pod["metadata"].get("creationTimestamp")) if one.pod else None


def _returned(one: _Attempt) -> bool:
    """Return whether an attempt's container has ended with success, which Kubernetes has still to say."""
    return (_container_state(one.pod).get("terminated") or {}).get("exitCode") == 0


def _had_pods(job: Mapping[str, Any]) -> bool:
    """Return whether a Job of its own had a pod that has ended; a batch's counts those of all inputs."""
    is_chunk = bool(job) and CHUNK in (job["metadata"].get("labels") or {})
    return not is_chunk and bool((job.get("status") or {}).get("failed"))


def _job_started(job: Mapping[str, Any]) -> float | None:
    """Return when a Job was first allowed to have pods."""
    return seconds((job.get("status") or {}).get("startTime"))


def _ending(job: Mapping[str, Any]) -> Condition | None:
    """Return how a Job ended; None if it has not. That of a batch's input may not say when."""
    told = Job(job).true_conditions
    return told.get("Complete") or told.get("Failed")
