"""`WaitingAlert`: tells people, once, that the job or batch of a task has waited too long for capacity.

A trigger tells them, or a worker that waits itself. What either needs travels as plain data: the path of the
callback and the facts of the task. A mark in the job's store says that the alert was sent: it outlives the
process, and of two triggers that run at once only one can set it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow_provider.threads import in_thread
from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.errors import InvalidRequest, KineticError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs import addresses
from kinetic_core.terminal import duration

if TYPE_CHECKING:
    from airflow.sdk.definitions.callback import AsyncCallback

SEND_SECONDS = 30.0
"""Seconds that a callback may take; what happens to the job meanwhile is acted on afterwards."""
_AGAIN_SECONDS = 30.0
"""Seconds until a store that did not answer is asked for the mark again."""
_IN_DAG_FILE = re.compile(r"unusual_prefix_[0-9a-f]{40}_|__main__\.")
"""Beginning of the path of what a DAG's file defines: only that file's own process can import it."""


@dataclass(frozen=True)
class WaitingAlert:
    """Alert for a task's `waiting_alert`: `callback` is called once if the job does not run `after` a time.

        WaitingAlert(timedelta(minutes=30), AsyncCallback(tell_platform_team, {"channel": "#tpus"}))

    The callback is one of Airflow's, as for its deadline alerts: a coroutine function, or the class of a
    notifier that has `async_notify`. It is called with its own arguments and, if it takes one, with a
    `context` (see `alert_context`). Its failure is logged, and changes nothing for the task. Raises
    InvalidRequest for an alert that could never be sent.
    """

    after: timedelta
    callback: AsyncCallback = field(repr=False)  # Airflow stores the text of a mapped task's arguments

    def __post_init__(self) -> None:
        if not isinstance(self.after, timedelta) or self.after <= timedelta(0):
            raise InvalidRequest(
                f"WaitingAlert: after={self.after!r} must be a timedelta above zero, such as "
                "timedelta(minutes=30)"
            )
        if not isinstance(self.callback, _async_callback()):
            raise InvalidRequest(
                f"WaitingAlert: callback={self.callback!r} must be an AsyncCallback of Airflow's. It takes a "
                "coroutine function, or the class of a notifier, and the arguments: "
                "AsyncCallback(SlackWebhookNotifier, {'text': '{{ waiting.text }}'})"
            )
        path = self.callback.path
        if _IN_DAG_FILE.match(path) or "<" in path:
            raise InvalidRequest(
                f"WaitingAlert: {_IN_DAG_FILE.sub('', path)} is defined in the file of the DAG or within a "
                "function, where the triggerer cannot import it. Define it at the top of a module that is "
                "installed beside the triggerer, or in Airflow's folder of plugins if the triggerer has it"
            )
        try:
            json.dumps(self.callback.kwargs)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                f"WaitingAlert: the arguments of {path} travel to the triggerer as JSON: {error}"
            ) from error

    def for_task(self, ti: Any, name: str) -> dict[str, Any]:
        """Return the alert of a task instance, called `name`, as plain JSON for `AlertClock`."""
        facts = ("dag_id", "task_id", "run_id", "map_index", "try_number")
        return {
            "after": self.after.total_seconds(),
            "callback": self.callback.path,
            "kwargs": self.callback.kwargs or {},
            "name": name,
            "ti": {**{each: getattr(ti, each) for each in facts}, "log_url": getattr(ti, "log_url", "")},
        }


def check_alert(alert: object) -> None:
    """Raise InvalidRequest unless it is a task's `waiting_alert`, or None."""
    if alert is not None and not isinstance(alert, WaitingAlert):
        raise InvalidRequest(
            f"waiting_alert={alert!r} must be a WaitingAlert: "
            "WaitingAlert(timedelta(minutes=30), AsyncCallback(tell_platform_team))"
        )


def _async_callback() -> type[AsyncCallback]:
    try:
        module = import_module("airflow.sdk.definitions.callback")
    except ModuleNotFoundError:  # before 3.2
        module = import_module("airflow.sdk.definitions.deadline")
    found: type[AsyncCallback] = module.AsyncCallback
    return found


def _mark(reference: JobReference, try_number: int) -> str:
    """Return the name of the object that says that the alert was sent: of a job or, in a batch, of a try."""
    if _is_batch(reference):  # whose inputs without a value run again in the next try
        return object_names.batch(reference.job_id, f"waiting-alert-{try_number}")
    return f"jobs/{reference.job_id}/waiting-alert"


def _is_batch(reference: JobReference) -> bool:
    return reference.job_id == reference.group_id


class AlertClock:
    """Clock of one alert: it runs while the job waits, and says when to `send`.

    `alert` is that of `WaitingAlert.for_task`, None if the task has none; `reference` is that of the job or
    batch. A wait for the first start begins when the job was created; a later one, after a lost node for
    instance, when this process sees it. Times are Unix seconds; a callback may take `patience` seconds.
    """

    def __init__(
        self,
        alert: Mapping[str, Any] | None,
        backend: Backend,
        reference: JobReference,
        clock: Callable[[], float] = time.time,
        patience: float = SEND_SECONDS,
    ) -> None:
        self._alert: Mapping[str, Any] = alert or {}
        self._after = float(self._alert.get("after", 0))
        self._backend, self._reference = backend, reference
        self._clock, self._patience = clock, patience
        self._since: float | None = None
        self._seen: JobObservation | None = None
        self._not_before = 0.0
        self._is_over = alert is None

    @property
    def due(self) -> float:
        """Return the seconds until the alert is to be sent; infinity if nothing waits, or it was sent."""
        if self._is_over or self._since is None:
            return float("inf")
        return max(0.0, max(self._since + self._after, self._not_before) - self._clock())

    def see(self, seen: JobObservation | None) -> None:
        """Take note of an observation; None: nothing is known."""
        self._seen = seen
        if seen is None or seen.status is not JobStatus.PENDING:
            self._since = None
        elif self._since is None:
            is_first = seen.attempt == 0 and seen.started_at is None and seen.created_at is not None
            self._since = seen.created_at if is_first else self._clock()

    async def send(self, warn: Callable[..., object]) -> None:
        """Call the callback, unless another process has; say so, and what goes wrong, to a logger's `warn`.

        The mark is set first, so a process that dies between the two sends nothing. While the store does not
        answer, the alert is late.
        """
        if self._since is None or self._seen is None:
            return
        path, mark = self._alert["callback"], _mark(self._reference, self._alert["ti"]["try_number"])
        try:
            is_first = await in_thread(self._backend.store.create_if_absent, mark, b"")
        except (KineticError, OSError) as error:
            warn("the waiting alert is late, because its mark cannot be stored: %s", error)
            self._not_before = self._clock() + _AGAIN_SECONDS
            return
        self._is_over = True
        if not is_first:
            return
        context = alert_context(self._alert, self._reference, self._seen, self._since, self._clock())
        warn("%s; calling %s", context["waiting"]["text"], path)
        try:
            async with asyncio.timeout(self._patience):
                await _called(path, self._alert["kwargs"], context)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not fail a healthy task
            warn("the waiting alert failed, and is not repeated: %s: %r", path, error, exc_info=True)


def alert_context(
    alert: Mapping[str, Any], reference: JobReference, seen: JobObservation, since: float, now: float
) -> dict[str, Any]:
    """Return the context of a callback, as plain JSON.

    `ti` has the task instance's `dag_id`, `task_id`, `run_id`, `map_index`, `try_number` and `log_url`.
    `waiting` has the `job_id` of the job or batch, its `hardware`, `backend`, `cluster` and `namespace`, the
    `reason` in one word, the `message` in a sentence, `seconds` and `since`, `job_url` and `logs_url` ("" for
    what has no such page), and all in one `text`.
    """
    ti, seconds = alert["ti"], now - since
    why = f"{seen.reason}: {seen.message}" if seen.message else seen.reason
    text = (
        f"{alert['name'] or ti['task_id']} of DAG {ti['dag_id']} has waited {duration(seconds)} for "
        f"{reference.hardware}: {reference.job_id}: {why}"
    )
    waiting = {
        "job_id": reference.job_id,
        "hardware": reference.hardware,
        "backend": reference.backend,
        "cluster": reference.cluster_name,
        "namespace": reference.namespace,
        "reason": seen.reason,
        "message": seen.message,
        "seconds": round(seconds),
        "since": datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds"),
        "job_url": "" if _is_batch(reference) else addresses.workload(reference),
        "logs_url": "" if _is_batch(reference) else addresses.logs(reference),
        "text": text,
    }
    return {"ti": dict(ti), "run_id": ti["run_id"], "waiting": waiting}


async def _called(path: str, kwargs: Mapping[str, Any], context: dict[str, Any]) -> None:
    """Await a callback as Airflow awaits those of its deadline alerts."""
    callback = resolve_name(path)
    parameters = inspect.signature(callback).parameters.values()
    if any(each.name == "context" or each.kind is each.VAR_KEYWORD for each in parameters):
        await callback(**kwargs, context=context)
    else:
        await callback(**kwargs)
