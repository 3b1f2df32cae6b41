"""Rows of the page: one for each task instance, from Airflow, its job and the cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider.batch_record import BatchRecord
from airflow_provider.records import BuildWait, EarlierJob, JobEnd, JobRecord
from kinetic_core._runner.wire import FailureClass
from kinetic_core.batches.snapshot import BatchTimes
from kinetic_core.errors import InvalidAccelerator, InvalidRequest
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.cost import UNITS, Prices, usage_in
from kinetic_core.jobs.logs import host_count
from kinetic_core.jobs.phases import PHASES, Phase

TASK_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States of a task instance that are final."""
NO_JOB = "NO_JOB"
NEVER = "NEVER"
UNKNOWN = "UNKNOWN"
"""States of a row besides a job's own: no job was started yet, none ever will be, or its state is unknown."""
_MOST_GROUPS = 20
_HELD = tuple(f"{unit}_seconds" for unit in UNITS)
INPUTS_FAILED = "inputs failed"
"""Reason of a batch more of whose inputs failed than may."""
_OUR_WORDS = {*FailureClass, INPUTS_FAILED} - {FailureClass.USER_ERROR, FailureClass.CONFIGURATION}
"""Reasons whose messages quote nothing that user code has raised."""
HIDDEN = "what the function raised is in the task's log, which you may not read"


BEFORE_JOB: Mapping[str, tuple[str, str]] = {
    "no state": ("airflow scheduler", "it waits for its tasks upstream, or for Airflow's scheduler"),
    "scheduled": (
        "airflow scheduler",
        "it waits for a free slot of {pool}, or of another limit of Airflow",
    ),
    "queued": ("airflow queue", "it waits for a worker of Airflow's executor, and holds its slot of {pool}"),
    "running": ("airflow worker", "its worker prepares the job: it packs the project and uploads it"),
    "restarting": ("airflow worker", "Airflow stops its worker, then begins the task again"),
    "up_for_retry": ("airflow retry", "{before}; the next one begins {after}"),
    "up_for_reschedule": ("airflow retry", "it waits for the time at which Airflow looks at it again"),
    "deferred": ("airflow trigger", "it is deferred: the task's log says what its trigger waits for"),
    "awaiting_input": ("airflow input", "it waits for somebody's answer in Airflow"),
}
"""Reason and text of a task without a job, by the state that Airflow gives the task."""


@dataclass(frozen=True)
class Times:
    """Times of a task instance's last try in Unix seconds, None for what has not come.

    Whenever a worker gets the task again, Airflow overwrites the times at which it was scheduled and queued,
    and keeps the time at which it first started. `runnable`, when nothing but Airflow was left to wait for,
    is asked for then, and only where one task is shown. `next_try`, of a task that is up for retry, is known
    only where a retry policy has said it.
    """

    scheduled: float | None = None
    queued: float | None = None
    started: float | None = None
    ended: float | None = None
    runnable: float | None = None
    next_try: float | None = None

    @property
    def are_of_later_leg(self) -> bool:
        """Whether the task was scheduled and queued again after it had started."""
        return self.started is not None and (self.queued or 0.0) > self.started


@dataclass(frozen=True)
class Instance:
    """Task instance as Airflow's database has it, with its job or batch. `label`: its rendered map index.

    `job_try` is the try that started the job of `record`, which may be earlier than the one that adopted it.
    """

    task_id: str
    map_index: int
    label: str
    state: str
    try_number: int
    record: JobRecord | None
    job_try: int = 0
    earlier: tuple[EarlierJob, ...] = ()
    run_id: str = ""
    dag_id: str = ""
    batch: BatchRecord | None = None
    times: Times = Times()
    build: BuildWait | None = None
    pool: str = ""

    @property
    def waits_for_image(self) -> BuildWait | None:
        """Return the wait for an image that goes on, None if there is none."""
        has_begun = self.record is not None or self.batch is not None or self.state in TASK_ENDED
        return None if has_begun or self.build is None or self.build.ended is not None else self.build

    @property
    def living(self) -> JobRecord | BatchRecord | None:
        """Return the record of the instance's job or batch, if a cluster may know more of it."""
        if self.batch is not None:
            return self.batch if self.batch.failed is None and self.state not in TASK_ENDED else None
        return self.record if self.record is not None and self.record.end is None else None


@dataclass(frozen=True)
class Live:
    """Job as the cluster shows it now."""

    observation: JobObservation
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class LiveBatch:
    """Batch as the cluster shows it now: its foremost input, None if none lives, and its times so far.

    `times` are None if they are unknown.
    """

    state: JobObservation | None
    times: BatchTimes | None


@dataclass(frozen=True)
class Filters:
    """Filters of rows: "" for any. `text` is searched in ids, labels, functions, accelerators.

    `order` is a number of rows to sort by, `cost`, `waited` or `ran`, with a "-" for the greatest first.
    """

    task_id: str = ""
    map_index: int | None = None
    status: str = ""
    reason: str = ""
    text: str = ""
    order: str = ""


def row(instance: Instance, live: Live | LiveBatch | None, trouble: str = "") -> dict[str, Any]:
    """Return one row, plain JSON. `trouble` says why nothing is known of what may live.

    `waited`: seconds before there was a container and between two of them, of a batch until its first input
    ran; `ran`: the rest. None if unknown.
    """
    record = instance.record
    shown: dict[str, Any] = {
        "dag_id": instance.dag_id,
        "run_id": instance.run_id,
        "task_id": instance.task_id,
        "map_index": instance.map_index,
        "label": instance.label,
        "task_state": instance.state,
        "try_number": instance.try_number,
        "status": NO_JOB,
        "reason": "",
        "message": "",
        "phases": [],
        "waited": None,
        "ran": None,
        "earlier": [asdict(each) for each in instance.earlier],
    }
    if instance.batch is not None:
        of_batch = live if isinstance(live, LiveBatch) else None
        return shown | _of_batch(instance.state, instance.batch, of_batch, trouble)
    if record is not None:
        return shown | _of_job(instance, record, live if isinstance(live, Live) else None, trouble)
    if build := instance.waits_for_image:
        text = "the task waits for its image, which is being built"
        shown |= {"waited": round(time.time() - build.began, 1), "build": {"page": build.page}}
        return shown | {"reason": "image build", "message": text}
    if instance.state in TASK_ENDED:
        return shown | {"status": NEVER, "message": f"the task is {instance.state} and has started no job"}
    return shown | _before_job(instance)


def _before_job(instance: Instance) -> dict[str, Any]:
    """Return why a task has no job yet, and for how long its state in Airflow has been so, if it is known."""
    times, build = instance.times, instance.build
    reason, text = BEFORE_JOB.get(instance.state, ("", f"the task is {instance.state}"))
    ended = "" if times.ended is None else f" at {_clock(times.ended)}"
    known = {
        "pool": f"pool {instance.pool!r}" if instance.pool else "its pool",
        "before": f"the try before has ended{ended}",
        "after": "after the task's retry delay" if times.next_try is None else f"at {_clock(times.next_try)}",
    }
    began = {
        "scheduled": times.scheduled,
        "queued": times.queued,
        "running": (build.resumed if build else None) or times.started,
    }.get(instance.state)
    waited = None if began is None else round(max(time.time() - began, 0.0), 1)
    return {"reason": reason, "message": text.format_map(known), "waited": waited}


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _of_job(instance: Instance, record: JobRecord, live: Live | None, trouble: str) -> dict[str, Any]:
    """Return what the row of a job says."""
    reference = record.reference
    shown = {
        "job_id": reference.job_id,
        "job_try": instance.job_try,
        "function": reference.func_name,
        "accelerator": reference.hardware,
        "hosts": _hosts(record),
        "backend": reference.backend,
        "created_at": reference.created_at,
    }
    if record.end is not None:
        return shown | _ended(record.end)
    if live is not None:
        return shown | _living(live)
    ended = f"the task is {instance.state}; how its job ended was not recorded"
    message = "; ".join(filter(None, (ended, trouble))) if instance.state in TASK_ENDED else trouble
    return shown | {"status": UNKNOWN, "message": message}


def _of_batch(task_state: str, record: BatchRecord, live: LiveBatch | None, trouble: str) -> dict[str, Any]:
    """Return what the row of a batch says: the batch in place of a job, and the number of its inputs.

    A batch waits while none of its inputs runs.
    """
    reference, failed = record.reference, record.failed
    shown = {
        "job_id": reference.job_id,
        "job_try": record.try_number,
        "inputs": record.size,
        "function": reference.func_name,
        "accelerator": reference.hardware,
        "hosts": 1,
        "backend": reference.backend,
        "created_at": reference.created_at,
    }
    times = live.times if live is not None and live.times is not None else record
    shown |= {"run_seconds": times.run_seconds, "waited": times.waited}
    if times.seconds is not None and times.waited is not None:
        shown["ran"] = max(times.seconds - times.waited, 0.0)
    if failed is None and task_state in TASK_ENDED:
        text = f"the task is {task_state}; how its {record.size} inputs ended was not recorded"
        return shown | {"status": UNKNOWN, "message": text}
    if failed is None and trouble:
        return shown | {"status": UNKNOWN, "message": trouble}
    if failed is None:
        size = f"{record.size} inputs"
        seen = None if live is None else live.state
        if seen is None or seen.status is JobStatus.RUNNING:
            return shown | {"status": JobStatus.RUNNING.value, "message": size}
        message = f"{size}: {seen.message}" if seen.message else size
        return shown | {"status": seen.status.value, "reason": seen.reason, "message": message}
    text = (
        f"{failed} of {record.size} inputs have no value" if failed else f"{record.size} inputs have a value"
    )
    if failed and record.ended_by:
        text = f"{record.ended_by}: {record.size - failed} of {record.size} inputs have a value"
        return shown | {"status": JobStatus.CANCELLED.value, "reason": "Cancelled", "message": text}
    is_well = task_state == "success" or not failed
    return shown | {
        "status": (JobStatus.SUCCEEDED if is_well else JobStatus.FAILED).value,
        "reason": "" if is_well else INPUTS_FAILED,
        "message": text,
    }


def _ended(end: JobEnd) -> dict[str, Any]:
    """Return how a job ended, as its task recorded it."""
    return {
        "status": end.status.value,
        "reason": "" if end.status is JobStatus.SUCCEEDED else end.failure_class or end.reason,
        "message": end.message,
        "attempts": end.attempt + 1,
        **_times(end.phases),
    }


def _living(live: Live) -> dict[str, Any]:
    """Return what a job does, as it was observed now."""
    seen = live.observation
    return {
        "status": seen.status.value,
        "reason": "" if seen.status is JobStatus.RUNNING else seen.reason,
        "message": seen.message,
        "attempts": seen.attempt + 1,
        **_times(live.phases),
    }


def with_shared_builds(
    rows: Iterable[dict[str, Any]], everything: Iterable[Instance]
) -> list[dict[str, Any]]:
    """Return the rows; each that waits for an image says how many of all instances wait for its build, and
    since when the first does.
    """
    began: dict[str, list[float]] = {}
    for wait in filter(None, (each.waits_for_image for each in everything)):
        began.setdefault(wait.page, []).append(wait.began)

    def shared(build: Mapping[str, Any]) -> dict[str, Any]:
        waits = began.get(build["page"], []) if build["page"] else []
        return {**build, "tasks": len(waits), "since": min(waits, default=None)}

    return [{**each, "build": shared(each["build"])} if "build" in each else each for each in rows]


def page(rows: Sequence[Mapping[str, Any]], filters: Filters, offset: int, limit: int) -> dict[str, Any]:
    """Return the matching rows from `offset` on, their number, and the values to filter by."""
    inside = [each for each in rows if _is_of_task(each, filters)]
    wanted = _ordered([each for each in inside if _matches(each, filters)], filters.order)
    return {
        "jobs": wanted[offset : offset + limit],
        "total": len(wanted),
        "statuses": Counter(each["status"] for each in inside),
        "reasons": Counter(each["reason"] for each in inside if each["reason"]),
        "groups": _groups(wanted),
        "history": _history(inside),
        "running": any(each["task_state"] not in TASK_ENDED for each in inside),
        **{name: round(sum(each.get(name, 0.0) for each in wanted), 1) for name in _HELD},
        "cost": _sum(each.get("cost") for each in wanted),
        "at": time.time(),
    }


def _history(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the jobs and batches of each run took, the oldest run first: how long that ran which ran
    longest, the longest wait, and the usage and cost of all.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for each in rows:
        if each["ran"] is not None:
            runs.setdefault(each["run_id"], []).append(each)
    return [
        {
            "run_id": run_id,
            "jobs": len(jobs),
            "are_batches": any("inputs" in each for each in jobs),
            "failed": sum(each["status"] == JobStatus.FAILED.value for each in jobs),
            "ran": max(each["ran"] for each in jobs),
            "waited": max(each["waited"] for each in jobs),
            **{name: round(sum(each.get(name, 0.0) for each in jobs), 1) for name in _HELD},
            "cost": _sum(each.get("cost") for each in jobs),
        }
        for run_id, jobs in reversed(runs.items())
    ]


def _ordered(rows: Sequence[Mapping[str, Any]], order: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows in an order as `Filters` has it; those without that number come last."""
    name = order.removeprefix("-")
    known = [each for each in rows if each.get(name) is not None]
    known.sort(key=lambda each: float(each[name]), reverse=order.startswith("-"))
    return [*known, *(each for each in rows if each.get(name) is None)]


def _groups(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the groups of rows by each field that jobs have here; an Airflow without teams has none."""
    teams = _grouped([each for each in rows if each.get("team")], "team")
    by_team = {"team": teams} if teams else {}
    return {"dag_id": _grouped(rows, "dag_id"), **by_team, "accelerator": _grouped(rows, "accelerator")}


def _grouped(rows: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the number of jobs and their cost for each value of a field, the most jobs first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in rows:
        if "job_id" in each:
            found.setdefault(str(each.get(name, "")), []).append(each)
    told = [
        {"name": value, "jobs": len(jobs), "cost": _sum(each.get("cost") for each in jobs)}
        for value, jobs in found.items()
    ]
    return sorted(told, key=lambda each: (-int(each["jobs"] or 0), str(each["name"])))[:_MOST_GROUPS]


def without_exceptions(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row for somebody who may not read the task's log: without texts of the user's exceptions.

    Another failure may quote one too, such as that of a module that cannot be imported.
    """
    earlier = [each | _hidden(each) for each in row["earlier"]]
    return {**row, "earlier": earlier, **_hidden(row)}


def without_text(reason: str) -> str | None:
    """Return what stands for the text of such a failure; None where the text quotes no user code."""
    return None if reason in _OUR_WORDS else HIDDEN


def _hidden(told: Mapping[str, Any]) -> dict[str, str]:
    instead = without_text(told["reason"]) if told["status"] == JobStatus.FAILED.value else None
    return {} if instead is None else {"message": instead}


def costed(row: Mapping[str, Any], prices: Prices | None) -> dict[str, Any]:
    """Return the row with the job's usage so far: `chip_seconds` or, without chips, `core_seconds`; the other
    is 0. And `cost`, where there is a price.

    Unknown phases count nothing, and without any phase the cost is unknown. Of a batch the time counts for
    which its attempts have run, if it is known.
    """
    nothing = {**row, **dict.fromkeys(_HELD, 0.0), "cost": None}
    phases = [(each["name"], each["seconds"]) for each in row["phases"]]
    if "inputs" in row:
        if row["run_seconds"] is None:
            return nothing
        phases = [("function", row["run_seconds"])]
    if not phases:
        return nothing
    try:
        usage = usage_in(row.get("job_id", ""), row.get("accelerator", ""), phases)
    except InvalidAccelerator:  # none, or one that a later version knows
        return nothing
    held = {f"{usage.unit}_seconds": round(usage.held, 1)}
    return {**nothing, **held, "cost": prices.cost(usage) if prices else None}


def _sum(amounts: Iterable[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _is_of_task(row: Mapping[str, Any], filters: Filters) -> bool:
    index = filters.map_index
    return filters.task_id in ("", row["task_id"]) and index in (None, row["map_index"])


def _matches(row: Mapping[str, Any], filters: Filters) -> bool:
    if filters.status not in ("", row["status"]) or filters.reason not in ("", row["reason"]):
        return False
    names = ("dag_id", "team", "run_id", "task_id", "label", "job_id", "function", "accelerator")
    texts = [*(str(row.get(name, "")) for name in names), f"{row['task_id']}[{row['map_index']}]"]
    texts += (each["job_id"] for each in row["earlier"])
    return any(filters.text.casefold() in text.casefold() for text in texts)


def _times(phases: Sequence[Phase]) -> dict[str, Any]:
    """Return the phases of the timeline, and for how long the job waited and ran, if there are any."""
    told = phases_to_value(phases)
    if not phases:
        return {"phases": told}
    waited = sum(each.seconds for each in phases if each.name in PHASES and not each.has_container)
    ran = sum(each.seconds for each in phases) - waited
    return {"phases": told, "waited": round(waited, 3), "ran": round(ran, 3)}


def phases_to_value(phases: Iterable[Phase]) -> list[dict[str, Any]]:
    """Return the phases of a timeline as plain data. Neighbours of one name, of two attempts, stay apart."""
    return [
        {"name": each.name, "attempt": each.attempt, "began": each.began, "seconds": round(each.seconds, 3)}
        for each in phases
    ]


def _hosts(record: JobRecord) -> int:
    try:
        return host_count(record.reference)
    except InvalidRequest:
        return 1  # an accelerator that a later version knows
