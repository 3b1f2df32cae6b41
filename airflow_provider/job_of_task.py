"""Job of a task instance: an earlier leg's or try's if one lives or succeeded, else a new one.

Any process computes the id of a job alike from the task instance, before anything runs. An id is no secret:
whoever knows a DAG's names can compute it. It says which job to look for; whether the stored job is trusted
depends on the cluster's Job, or the signature of its outcome.

Each job carries as origin the try that asked for it, so that tries find each other's jobs in the cluster, and
a triggerer finds the jobs of tasks that are over.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from kinetic_core._runner import object_names
from kinetic_core._runner.wire import is_encodable
from kinetic_core.backends.base import Backend, backend_name, open_backend
from kinetic_core.backends.kubernetes.names import JOB_ID, ORIGIN, SPEC_DIGEST
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.connections import Connections
from kinetic_core.errors import JobConflict, KineticError, ObjectNotFound, UnverifiedResult
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.bundle import Progress
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions

ENDED = frozenset(("success", "failed", "skipped", "removed", "upstream_failed", "restarting"))
"""States in which a task's worker is over because somebody, or a timeout, has ended or cleared the task. In
any other state, unknown ones included, the task goes on: its next leg or try finds the job."""
CLEARED = "restarting"
"""State after somebody has cleared a task while a worker has it."""
CLEARED_WHILE_DEFERRED = frozenset(("None", "scheduled", "queued"))
"""States after somebody has cleared a task while a trigger has it."""


def task_states(
    dag_id: str, run_id: str, task_ids: list[str], map_index: int | None = None
) -> Mapping[str, object]:
    """Return the states of task instances of a DAG run, as Airflow names them; missing ones are left out."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=task_ids, run_ids=[run_id], map_index=map_index
    )
    found: Mapping[str, object] = states.get(run_id, {})
    return found


def state_of(dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str:
    """Return the state of one task instance, "removed" if it is gone. `map_index`: None or -1 if unmapped."""
    mapped = map_index is not None and map_index >= 0
    states = task_states(dag_id, run_id, [task_id], map_index if mapped else None)
    key = f"{task_id}_{map_index}" if mapped else task_id
    return str(states[key]) if key in states else "removed"


_REMEMBERED_TRIES = 20


def _counts_clears() -> bool:
    """Return whether a run's `clear_number` rises with each clearing of a task: in Airflow 3.2 and newer.

    Source: `clear_task_instances` in `airflow/models/taskinstance.py` of 3.1.8, 3.2.0 and 3.3.2.
    """
    try:
        from airflow import __version__
    except ImportError:  # no Airflow, but its context: a test
        return True
    return not __version__.startswith("3.1.")


@dataclass(frozen=True)
class TaskIdentity:
    """Identity of one try of one task instance.

    `run_began` distinguishes a DAG run from an earlier, deleted one with the same id; Airflow sets it anew
    when a finished run is cleared. `try_number` never repeats within a DAG run, cleared or not. `first_try`
    is the first try since a person cleared the task, and `clear_number` how often tasks of the run were
    cleared, this one or another. `counts_clears` is False for Airflow 3.1, which raises `clear_number` only
    when a finished run is cleared. `team` is the DAG's team, where Airflow has teams.
    """

    dag_id: str
    run_id: str
    run_began: str
    task_id: str
    map_index: int
    try_number: int
    first_try: int = 1
    clear_number: int = 0
    team: str = ""
    counts_clears: bool = True

    @classmethod
    def of(cls, context: Any, run_began: str | None = None) -> Self:
        """Make the identity from the context of a running task; a later leg passes the first's `run_began`.

        Airflow's `max_tries` is the last try before the task was cleared, plus the retries since then.
        """
        ti, run = context["ti"], context["dag_run"]
        began: datetime | None = getattr(run, "start_date", None)
        if run_began is None:
            run_began = "" if began is None else began.isoformat()
        retries = getattr(getattr(ti, "task", None), "retries", ti.max_tries)
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            run_began=run_began,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            first_try=min(max(ti.max_tries - retries + 1, 1), ti.try_number),
            clear_number=getattr(run, "clear_number", None) or 0,
            team=getattr(run, "team_name", None) or "",
            counts_clears=_counts_clears(),
        )

    def job_id(self, spec_digest: str = "") -> str:
        """Return the id of the job this try starts.

        `spec_digest` gives another id for the rare try whose own id belongs to a different call, because the
        DAG changed between two legs of the try.
        """
        key = [self.dag_id, self.run_id, self.run_began, self.task_id, self.map_index]
        text = json.dumps([*key, self.try_number, spec_digest])
        return "job-" + hashlib.sha256(text.encode()).hexdigest()[:16]

    def tries(self) -> Iterator[TaskIdentity]:
        """Yield this try and those before it, newest first."""
        for number in range(self.try_number, max(self.try_number - _REMEMBERED_TRIES, 0), -1):
            yield replace(self, try_number=number)

    def owns(self, job_id: str, spec_digest: str) -> bool:
        """Return whether this try may wait for the job: its own, or one it may have adopted."""
        number = self.starter(job_id, spec_digest)
        return number is not None and self.may_adopt(number)

    def starter(self, job_id: str, spec_digest: str) -> int | None:
        """Return the try of this task instance that started the job, None if no try up to this one did."""
        found = (each for each in self.tries() if job_id in (each.job_id(), each.job_id(spec_digest)))
        return next((each.try_number for each in found), None)

    def may_adopt(self, try_number: int, clear_number: int | None = None) -> bool:
        """Return whether this try may adopt a job of that try: nobody has cleared the task in between.

        That holds if the job's `clear_number`, where known, is still the run's and this Airflow counts each
        clearing. If another task may have been cleared, only `first_try` tells. Retries that were edited
        without clearing move `first_try` too far: then the job is not adopted, and the work begins anew.
        """
        return try_number >= self.first_try or (self.counts_clears and clear_number == self.clear_number)


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """Try of a task instance (`map_index` -1 if it is not mapped) in the Airflow `deployment`."""

    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    run_began: str = ""
    try_number: int = 0
    clear_number: int = 0

    @classmethod
    def of(cls, identity: TaskIdentity, deployment: str) -> Self:
        """Make the origin of a try."""
        names = (identity.dag_id, identity.run_id, identity.task_id, identity.map_index)
        return cls(deployment, *names, identity.run_began, identity.try_number, identity.clear_number)

    @property
    def key(self) -> str:
        """Return the name of the task instance among the states that Airflow's `get_task_states` returns."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"

    @property
    def order(self) -> tuple[str, int]:
        """Return a sort key that is greater for a later try.

        Within a DAG run try numbers only rise; two runs with one id are ordered by their ISO times.
        """
        return self.run_began, self.try_number

    @property
    def id(self) -> str:
        """Return the label by which the jobs of all tries of the task instance are found."""
        names = [self.deployment, self.dag_id, self.run_id, self.task_id, self.map_index]
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]

    def to_text(self) -> str:
        """Encode the origin for the job's annotation."""
        return json.dumps({**asdict(self), "id": self.id})

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Decode an origin; None for any other text, because whoever may create jobs may annotate them."""
        try:
            told: dict[str, Any] = json.loads(text)
            found = cls(**{key: value for key, value in told.items() if key != "id"})
        except (AttributeError, TypeError, ValueError):
            return None
        texts = (found.deployment, found.dag_id, found.run_id, found.task_id, found.run_began)
        numbers = (found.map_index, found.try_number, found.clear_number)
        sound = all(isinstance(each, str) and is_encodable(each) for each in texts)
        sound = sound and all(isinstance(each, int) for each in numbers)
        return found if sound else None


@dataclass(frozen=True)
class Earlier:
    """Earlier job of the task instance. Of the last one it is known how it ended, of others only that."""

    try_number: int
    job_id: str
    observation: JobObservation


@dataclass(frozen=True)
class Started:
    """Job that now does the task's work, with its last observation."""

    reference: JobReference
    observation: JobObservation
    adopted: bool
    shipped: int = 0
    """Bytes of project, data and arguments of a new job, uploaded now or before."""
    earlier: tuple[Earlier, ...] = ()
    """Earlier jobs that are known, the newest first."""
    starter: TaskIdentity | None = None
    """Try, since cleared, whose result its task never got: this try only collects the result."""


Announce = Callable[[JobReference], object]
"""Called with a reference that names the place of a job or batch, which may not exist yet."""


class SupersededTry(KineticError):
    """A later try of the task has begun: this try, which was frozen or cut off, starts nothing any more."""


def start_or_adopt(
    call: Call,
    options: RunOptions,
    connections: Connections,
    identity: TaskIdentity,
    progress: Progress = _LOG.info,
    environment: Mapping[str, str] | None = None,
    origin: Origin | None = None,
    announce: Announce = lambda _place: None,
) -> Started:
    """Start or adopt the one job of this task instance.

    An active or succeeded job of an equal call is adopted, whichever try began it, if nobody has cleared the
    task since. So is the last job of a run that had ended when it was cleared, if the job succeeded and its
    result is not spent. Any other active job, of a cleared run or a changed call, is cancelled before the new
    job starts: two never run at once. `environment` and `origin` are for a new job. `announce` is called
    before a job is looked for or created.

    Raises SupersededTry if a later try has a job, after removing this one's; as `prepare` and `submit` do;
    ImageBuilding if the image is being built, before any job is looked for or created.
    """
    prepared = prepare(
        call,
        options,
        connections,
        job_id=identity.job_id(),
        progress=progress,
        build_patience=0.0,
    )
    announce(prepared.reference)
    backend, digest = prepared.backend, prepared.spec_digest
    others = Others(backend, prepared.reference.namespace, origin)
    others.end_superseded(identity)
    adopted, tries = others.adopted(identity, digest)
    if adopted is not None:
        others_of_task = (each for each in tries if each.job_id != adopted.reference.job_id)
        return replace(adopted, earlier=tuple(others_of_task))
    earlier = tuple(tries)
    told = "" if origin is None else origin.to_text()
    try:
        reference = submit(prepared, environment, told)
    except (JobConflict, UnverifiedResult):  # its id is taken: by another call, or by who can write there
        other = prepare(call, options, connections, job_id=identity.job_id(digest))
        reference = submit(other, environment, told)
    others.end_superseded(identity, reference)
    shipped = prepared.spec.shipped
    earlier = tuple(each for each in earlier if each.job_id != reference.job_id)
    observation = others.observation_of(reference)
    return Started(reference, observation, adopted=False, shipped=shipped, earlier=earlier)


def latest(
    options: RunOptions,
    connections: Connections,
    identity: TaskIdentity,
    origin: Origin | None = None,
    recorded: str = "",
) -> JobReference | None:
    """Return the newest job that the task instance has started since somebody cleared it.

    `recorded` is the id of the job in the task's record, "" for none. `origin` finds a job whose call was not
    the first of its try, and whose id therefore depends on a call that only its submitter knew.
    """
    connections = connections.with_settings(options.settings(connections.settings))
    backend = open_backend(backend_name(options.backend, 1, connections), connections)  # for its store
    living = (
        Others(backend, connections.settings.namespace, origin).living_by_try(identity)
        if origin is not None
        else {}
    )
    ids = [recorded] if recorded else []
    for each in identity.tries():
        if identity.may_adopt(each.try_number):
            ids += [*living.get(each.try_number, ()), each.job_id()]
    found = (find(backend, job_id) for job_id in ids)
    return next((reference for reference in found if reference is not None), None)


def mark_spent(backend: Backend, reference: JobReference, by: TaskIdentity | None = None) -> None:
    """Mark a job's result as spent: it is about to be delivered. A retry may still adopt the job.

    `by`: the try that delivers it. Its retries collect it again where it only collected the result of a try
    before a clear. None if nobody may collect it again.
    """
    text = "" if by is None else Origin.of(by, "").to_text()
    backend.store.create_if_absent(_spent_object(reference.job_id), text.encode())


def mark_cleared(backend: Backend, reference: JobReference) -> None:
    """Note that somebody cleared the job's task while a worker had it: no other try has its result.

    Airflow does not always say so itself: `max_tries` stays as it was if that worker then fails or is killed.
    """
    backend.store.create_if_absent(_cleared_object(reference.job_id), b"")


def _spent_object(job_id: str) -> str:
    return f"jobs/{job_id}/spent"


def _cleared_object(job_id: str) -> str:
    return f"jobs/{job_id}/cleared"


@dataclass(frozen=True)
class _Listed:
    """Job in a list of the cluster's, as far as the list tells how it is."""

    job_id: str
    origin: Origin
    spec_digest: str
    observation: JobObservation


@dataclass
class Others:
    """Jobs of all tries of a task instance, as the cluster has them."""

    backend: Backend
    namespace: str
    origin: Origin | None
    listed: list[_Listed] = field(default_factory=list)
    """Jobs as the last list had them."""

    def end_superseded(self, identity: TaskIdentity, own: JobReference | None = None) -> None:
        """Cancel the jobs of tries that belong to an earlier run of the same id or were cleared.

        With `own`, the job that this try has just created, also cancels those of all earlier tries, one of
        which may have been frozen while it created its job. Each try looks after creating its job, so of two
        simultaneous tries one sees the other.

        Raises SupersededTry, after cancelling `own`, if a later try has a job.
        """
        if self.origin is None:
            return
        mine = self.origin.order
        self.listed = list(self._jobs())
        for job_id, theirs in self._living().items():
            if own is not None and job_id == own.job_id:
                continue
            if theirs.order > mine:
                if own is not None:
                    self._cancel(own.job_id, f"try {theirs.try_number} of its task has job {job_id}")
                raise SupersededTry(
                    f"try {theirs.try_number} of task {identity.task_id} has job {job_id}: try "
                    f"{identity.try_number}, which was held up, ends"
                )
            cleared = not identity.may_adopt(theirs.try_number, theirs.clear_number)
            if own is not None or theirs.run_began != identity.run_began or cleared:
                self._cancel(job_id, f"try {identity.try_number} of its task has begun")

    def adopted(self, identity: TaskIdentity, spec_digest: str) -> tuple[Started | None, list[Earlier]]:
        """Return the job to adopt, None if there is none, and what is known of the task's earlier jobs."""
        if self.origin is None:
            adopted, tries = _look_at_tries(self.backend, identity, spec_digest, identity.tries())
        else:
            adopted, tries = self.newest(identity, spec_digest)
            if not tries and identity.try_number > identity.first_try:  # a Job may be gone, its outcome not
                before = [each for each in identity.tries() if each.try_number >= identity.first_try]
                adopted, tries = _look_at_tries(self.backend, identity, spec_digest, before[1:])
        return adopted or self.uncollected(identity, spec_digest), tries

    def observation_of(self, reference: JobReference) -> JobObservation:
        """Return how a job is that was just created: as the last list has it, or observed if that says too
        little.
        """
        listed = next((each.observation for each in self.listed if each.job_id == reference.job_id), None)
        return observe(self.backend, reference) if listed is None or listed.is_terminal else listed

    def uncollected(self, identity: TaskIdentity, spec_digest: str) -> Started | None:
        """Return the last job if it succeeded, and its run ended without the result and was cleared then.

        In a run that goes on, a cleared task may have been alive, and its person wants it to run again: then
        the result is spent, whether the worker or the trigger of before has heard of the clearing or not. The
        Job must still exist, because its key verifies the result.

        In a run that nobody has cleared, what is left of a run that began at another time is of one that was
        deleted: whoever makes a run anew wants its tasks to run, also once this run is cleared.
        """
        if self.origin is None:
            return None
        if identity.clear_number == 0:
            for each in self.listed:
                if each.origin.run_began != identity.run_began:
                    self.backend.store.create_if_absent(_spent_object(each.job_id), b"")
            return None
        last = max(self.listed, key=lambda each: each.origin.order, default=None)
        if last is None or last.origin.clear_number >= identity.clear_number:
            return None
        job_id, theirs = last.job_id, last.origin
        reference = find(self.backend, job_id)
        if reference is None or reference.spec_digest != spec_digest:
            return None
        if theirs.run_began == identity.run_began:
            mark_spent(self.backend, reference)
            return None
        if self.backend.store.find(_cleared_object(job_id)) or self._is_spent(identity, job_id):
            return None
        observation = observe(self.backend, reference)
        if observation.status is not JobStatus.SUCCEEDED:
            return None
        _LOG.info("only collecting the result of %s, which its task never got", job_id)
        starter = replace(identity, run_began=theirs.run_began, try_number=theirs.try_number)
        return Started(reference, observation, adopted=True, starter=starter)

    def _is_spent(self, identity: TaskIdentity, job_id: str) -> bool:
        """Return whether a job's result was delivered to others than this try and those that it retries."""
        try:
            text = self.backend.store.read(_spent_object(job_id))
        except ObjectNotFound:
            return False
        by = Origin.from_text(text.decode(errors="replace"))
        if by is None or by.run_began != identity.run_began:
            return True
        return not identity.may_adopt(by.try_number, by.clear_number)

    def living_by_try(self, identity: TaskIdentity) -> dict[int, list[str]]:
        """Return the ids of the live jobs of this run of the task, by the try that started them."""
        found: dict[int, list[str]] = {}
        self.listed = list(self._jobs())
        for job_id, theirs in self._living().items():
            if theirs.run_began == identity.run_began:
                found.setdefault(theirs.try_number, []).append(job_id)
        return found

    def newest(self, identity: TaskIdentity, spec_digest: str) -> tuple[Started | None, list[Earlier]]:
        """Return the newest job of this run of the task if it can be adopted, and the jobs before it.

        Reads that job alone, however many there were: an older one lives or has a result only if the newest
        is another call's, and then it was cancelled.
        """
        mine = [each for each in self.listed if each.origin.run_began == identity.run_began]
        mine.sort(key=lambda each: (each.origin.try_number, each.spec_digest == spec_digest), reverse=True)
        adopted, earlier = None, []
        for place, each in enumerate(mine):
            number, observation = each.origin.try_number, each.observation
            may_adopt = identity.may_adopt(number, each.origin.clear_number)
            reference = find(self.backend, each.job_id) if place == 0 or not observation.is_terminal else None
            if reference is not None and may_adopt and each.spec_digest == spec_digest:
                observation = observe(self.backend, reference)
                is_own = number == identity.try_number
                if place == 0 and _is_of_use(self.backend, reference, observation, is_own=is_own):
                    state = observation.status.value
                    _LOG.info("adopting %s, which an earlier worker started (%s)", each.job_id, state)
                    adopted = Started(reference, observation, adopted=True)
            elif reference is not None:
                why = "the call it was started for has changed" if may_adopt else "its run was cleared"
                observation = _cancelled_if_active(self.backend, reference, why)
            earlier.append(Earlier(number, each.job_id, observation))
        return adopted, earlier[:_REMEMBERED_TRIES]

    def _living(self) -> dict[str, Origin]:
        return {each.job_id: each.origin for each in self.listed if not each.observation.is_terminal}

    def _jobs(self) -> Iterator[_Listed]:
        """List the jobs, with one request."""
        assert self.origin is not None  # noqa: S101  without one nothing is looked for
        for job in self.backend.of_origin(self.namespace, self.origin.id):
            facts = job["metadata"]
            theirs = Origin.from_text((facts.get("annotations") or {}).get(ORIGIN) or "")
            if theirs is not None and theirs.id == self.origin.id:
                digest = str(facts["annotations"].get(SPEC_DIGEST, ""))
                yield _Listed(str(facts["labels"][JOB_ID]), theirs, digest, verdict(job, ()))

    def _cancel(self, job_id: str, why: str) -> None:
        reference = find(self.backend, job_id)
        _LOG.warning("cancelling %s: %s", job_id, why)
        if reference is not None:
            cancel(self.backend, reference)
        else:  # the store has forgotten it, or somebody has removed its handle
            self.backend.delete(self.namespace, job_id)


def _is_of_use(
    backend: Backend, reference: JobReference, observation: JobObservation, *, is_own: bool
) -> bool:
    """Return whether the job lives or has succeeded, and no worker of another try was told of a clear."""
    if not observation.is_terminal:
        return True
    if observation.status is not JobStatus.SUCCEEDED:
        return False
    return is_own or backend.store.find(_cleared_object(reference.job_id)) is None


def _look_at_tries(
    backend: Backend, identity: TaskIdentity, spec_digest: str, tries: Iterable[TaskIdentity]
) -> tuple[Started | None, list[Earlier]]:
    """Return the newest job that can be adopted, and the other jobs of the task's tries.

    Each of `tries` is looked for by its id: no list has the jobs of an Airflow without a name, or jobs that
    were removed. One request tells which are stored: a try that has adopted a job has none of its own.
    """
    others: list[Earlier] = []
    ids = [
        (each.try_number, job_id) for each in tries for job_id in (each.job_id(spec_digest), each.job_id())
    ]
    there = backend.store.present([object_names.handle(job_id) for _, job_id in ids])
    ids = [(number, job_id) for number, job_id in ids if object_names.handle(job_id) in there]
    for place, (number, job_id) in enumerate(ids):
        reference = find(backend, job_id)
        if reference is None:
            continue
        if not identity.may_adopt(number):
            observation = _cancelled_if_active(backend, reference, "it belongs to a run that was cleared")
        elif reference.spec_digest != spec_digest:
            observation = _cancelled_if_active(backend, reference, "the call it was started for has changed")
        else:
            observation = observe(backend, reference)
            if _is_of_use(backend, reference, observation, is_own=number == identity.try_number):
                state = observation.status.value
                _LOG.info("adopting %s, which an earlier worker started (%s)", job_id, state)
                adopted = Started(reference, observation, adopted=True)
                return adopted, others + _older(backend, ids[place + 1 :])
        others.append(Earlier(number, job_id, observation))
    return None, others


def _older(backend: Backend, ids: Iterable[tuple[int, str]]) -> list[Earlier]:
    """Return the jobs before an adopted one, for people to read; an unreadable one is left out."""
    found = []
    try:
        for number, job_id in ids:
            reference = find(backend, job_id)
            if reference is not None:
                found.append(Earlier(number, job_id, observe(backend, reference)))
    except KineticError as error:
        _LOG.info("not all jobs of earlier tries are known: %s", error)
    return found


def _cancelled_if_active(backend: Backend, reference: JobReference, why: str) -> JobObservation:
    observation = observe(backend, reference)
    if observation.is_terminal:
        return observation
    _LOG.warning("cancelling %s: %s", reference.job_id, why)
    cancel(backend, reference)
    return observe(backend, reference)
