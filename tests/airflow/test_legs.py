"""The last legs of tasks whose jobs have succeeded, while the store gives no answer. No Airflow starts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_core._runner import object_names
from tests.airflow_provider.records_of_jobs import record
from tests.batches.places import watch_that_is_refused
from tests.jobs.recorded import ID, Recorded

pytestmark = [pytest.mark.airflow, pytest.mark.attack]


def double(number: int) -> int:
    return 2 * number


def wait_long(seconds: int) -> None:
    time.sleep(seconds)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    return tmp_path / "kinetic" / "store"


def lose(store: Path) -> None:
    """From now on it gives no answer, to nobody: its name leads in a circle."""
    store.rename(store.with_name("away"))
    store.symlink_to(store)


def give_back(store: Path) -> None:
    store.unlink()
    store.with_name("away").rename(store)


@contextmanager
def given_back_later(store: Path, seconds: float) -> Iterator[None]:
    timer = Timer(seconds, give_back, [store])
    timer.start()
    try:
        yield
    finally:
        timer.join()


def given_back_when_asked_again(task: Task, store: Path) -> None:
    """As soon as the operator has had no answer, and wants to know for how long to wait."""

    def seconds(_: Any) -> float:
        if store.is_symlink():
            give_back(store)
        return 0.1

    kind = type(task.operator)
    task.operator.__class__ = type(kind.__name__, (kind,), {"outage_interval": property(seconds)})


class Task:
    """A task whose job was started, or has ended, and its operator as a worker has it in the last leg."""

    def __init__(
        self,
        function: Callable[..., Any] = double,
        *,
        ended: bool = True,
        argument: object = 21,
        deployment: str = "",
        **options: Any,
    ) -> None:
        from airflow.sdk import DAG

        from airflow_provider.job_of_task import Origin, TaskIdentity, start_or_adopt
        from airflow_provider.operators.kinetic import KineticOperator
        from kinetic_core.backends.base import backend_of
        from kinetic_core.connections import default_connections
        from kinetic_core.jobs.observe import wait
        from kinetic_core.jobs.submit import Call
        from kinetic_core.options import RunOptions

        ti = {"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": -1}
        tries = {"max_tries": 1, "try_number": 1}
        none = SimpleNamespace(xcom_push=lambda **_: None, xcom_pull=lambda **_: None)
        began = SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC))
        self.context = {"ti": SimpleNamespace(**ti, **tries, **vars(none)), "dag_run": began}
        options = {"accelerator": "cpu", "backend": "local", **options}
        with DAG("dag", schedule=None):
            self.operator = KineticOperator(
                task_id="task", python_callable=function, op_args=[argument], **options
            )
        checked = RunOptions.checked(accelerator="cpu", backend="local")
        identity = TaskIdentity.of(self.context)
        started = start_or_adopt(
            Call(function, (argument,), {}),
            checked,
            default_connections(),
            identity,
            origin=Origin.of(identity, deployment) if deployment else None,
        )
        if ended:
            wait(backend_of(started.reference, default_connections()), started.reference)
        self.reference = started.reference
        self.event = {
            "status": "ended",
            "reference": started.reference.to_dict(),
            "cursor": [0, 0, 0],
            "deadline": None,
            "silent": False,
        }

    def last_leg(self) -> Any:
        return self.operator.execute_complete(self.context, self.event, 1)


def test_a_last_leg_without_a_store_is_deferred_again(store: Path) -> None:
    from airflow.providers.common.compat.sdk import TaskDeferred

    task = Task()
    lose(store)
    with pytest.raises(TaskDeferred):
        task.last_leg()
    give_back(store)
    assert task.last_leg() == 42


def test_a_worker_that_may_not_defer_waits_for_the_store(store: Path) -> None:
    task = Task(deferrable=False)
    task.operator.outage_interval = 0.1
    lose(store)
    with given_back_later(store, 1.0):
        assert task.last_leg() == 42


def test_a_trigger_waits_for_the_store(store: Path) -> None:
    from airflow_provider.triggers.kinetic import KineticJobTrigger

    task = Task()
    lose(store)
    trigger = KineticJobTrigger(task.event["reference"], task.event["cursor"], time.time() - 60)
    trigger.outage_interval = 0.1
    began = time.monotonic()

    async def fired() -> Any:
        return await anext(trigger.run())

    with given_back_later(store, 2.0):
        assert asyncio.run(fired()).payload["status"] == "ended"
    assert time.monotonic() - began > 2.0


def test_a_task_says_that_its_job_may_not_be_seen(store: Path, capsys: Any) -> None:
    """And waits: somebody may permit it."""
    from airflow_provider.triggers.kinetic import KineticJobTrigger
    from kinetic_core.backends.base import open_backend
    from kinetic_core.connections import default_connections

    task = Task(ended=False)
    refusing = watch_that_is_refused(open_backend("local", default_connections()))
    trigger = KineticJobTrigger(task.event["reference"], task.event["cursor"], time.time() - 60)
    said = "cannot see how the job is, asking again: cannot read"

    async def fired() -> Any:
        firing = asyncio.ensure_future(anext(trigger.run()))
        while refusing.refusals < 4:
            assert not firing.done()
            await asyncio.sleep(0.01)
        refusing.is_permitted = True
        return await firing

    assert asyncio.run(fired()).payload["status"] == "ended"
    assert "".join(capsys.readouterr()).count(said) == 1


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Recorded]]:
    made: list[Recorded] = []

    def record(state: str, fault: Callable[[str, str], None]) -> Recorded:
        made.append(Recorded(tmp_path, monkeypatch, state, fault))
        return made[0]

    yield record
    for each in made:
        each.close()


def test_a_trigger_of_pods_waits_for_the_store(recorded: Callable[..., Recorded]) -> None:
    """Kubernetes says that the job has succeeded: a worker that collects its value needs the store, too."""
    from airflow_provider.triggers.kinetic import KineticJobTrigger
    from kinetic_core.errors import StoreError

    outages: list[str] = []

    def fault(operation: str, name: str) -> None:
        if outages and (operation, name) == ("find", object_names.result(ID)):
            raise StoreError(outages.pop())

    reference = recorded("finished", fault).job()
    outages += ["no answer"] * 3
    trigger = KineticJobTrigger(reference.to_dict(), [0, 0, 0], time.time() - 60)
    trigger.outage_interval = 0.01

    async def fired() -> Any:
        return await anext(trigger.run())

    assert asyncio.run(fired()).payload["status"] == "ended"
    assert outages == []


def jobs_in(store: Path) -> list[str]:
    return sorted(each.name for each in (store / "jobs").iterdir())


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_job_is_started_when_the_store_is_back(store: Path, deferrable: bool) -> None:
    """Lost after an earlier worker has created the job: its next leg finds that one, and makes no other."""
    from airflow.providers.common.compat.sdk import TaskDeferred

    task = Task(deferrable=deferrable, ended=False)
    (before,) = jobs_in(store)
    lose(store)
    given_back_when_asked_again(task, store)
    try:
        assert task.operator.execute(task.context) == 42
    except TaskDeferred:
        assert deferrable
    assert jobs_in(store) == [before]


def test_the_first_start_waits_for_the_store_too(store: Path) -> None:
    task = Task(deferrable=False)
    task.context["ti"].run_id = "another"
    lose(store)
    given_back_when_asked_again(task, store)
    assert task.operator.execute(task.context) == 42
    assert len(jobs_in(store)) == 2


@pytest.mark.parametrize("is_cleared", [False, True])
def test_every_later_try_returns_the_one_success(
    store: Path, monkeypatch: pytest.MonkeyPatch, is_cleared: bool
) -> None:
    """Each worker dies before Airflow has the value; a person clears the task after the first, or not."""
    monkeypatch.setenv("AIRFLOW_VAR_KINETIC_DEPLOYMENT", "ours")
    monkeypatch.setenv("AIRFLOW_VAR_KINETIC_PLACES", "[]")
    task = Task(deployment="ours", deferrable=False)
    if is_cleared:
        task.context["ti"].task, task.context["ti"].max_tries = SimpleNamespace(retries=2), 3
        task.context["dag_run"] = SimpleNamespace(start_date=datetime(2026, 1, 2, tzinfo=UTC), clear_number=1)
    for number in (2, 3):
        task.context["ti"].try_number = number
        assert task.operator.execute(task.context) == 42
    assert jobs_in(store) == [task.reference.job_id]


@pytest.mark.parametrize("limit", ["submit_patience", "execution_timeout"])
def test_a_store_that_stays_away_fails_the_try(store: Path, limit: str) -> None:
    from kinetic_core.errors import StoreError

    task = Task()
    task.operator.outage_interval = 0.1
    setattr(task.operator, limit, 0.5 if limit == "submit_patience" else timedelta(seconds=0.5))
    lose(store)
    began = time.monotonic()
    with pytest.raises(StoreError):
        task.operator.execute(task.context)
    assert time.monotonic() - began >= 0.5
    give_back(store)


def test_a_leg_after_a_broken_trigger_goes_on_with_its_job(store: Path) -> None:
    """Though Airflow has written another beginning of the run since, which is part of the id."""
    from airflow_provider.job_of_task import TaskIdentity
    from airflow_provider.records import KEY, JobRecord

    task = Task()
    (job,) = jobs_in(store)
    record = JobRecord.of(TaskIdentity.of(task.context), task.reference)
    xcoms = {KEY: record.to_dict()}
    task.context["ti"].xcom_pull = lambda **asked: xcoms.get(asked["key"])
    task.context["dag_run"].start_date = datetime(2026, 1, 2, tzinfo=UTC)
    assert task.operator.resume_execution("__fail__", {"error": "gone"}, task.context) == 42
    assert jobs_in(store) == [job]


def count_slowly(number: int) -> None:
    for each in range(number):
        print(f"line {each}", flush=True)
        time.sleep(0.2)


def test_a_trigger_leaves_airflow_time_for_its_last_line(store: Path) -> None:
    """Airflow puts a line nowhere that it gets after the event. The last leg shows what was not shown."""
    from airflow_provider.task_logs import Cursor, LogTail
    from airflow_provider.triggers.kinetic import KineticJobTrigger
    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections

    class Trigger(KineticJobTrigger):
        log = logging.Logger("of a trigger")  # noqa: LOG001  as nobody else has it

    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign]
    Trigger.log.addHandler(handler)

    task = Task(count_slowly, ended=False)
    trigger = Trigger(task.event["reference"], [0, 0], time.time() - 60)
    trigger.first_look_seconds = 0.5

    async def fired() -> Any:
        return (await anext(trigger.run())).payload, time.time()

    event, at = asyncio.run(fired())
    shown = [record for record in kept if record.getMessage().startswith("line ")]
    assert shown
    assert at - shown[-1].created >= 2.0

    backend = backend_of(task.reference, default_connections())
    rest = LogTail(backend, task.reference, Cursor.from_list(event["cursor"])).rest(0)
    assert [*(record.getMessage() for record in shown), *rest] == [f"line {each}" for each in range(21)]


def test_a_log_is_not_read_while_its_job_is_soon_over(store: Path) -> None:
    """Each look asks the node of a pod; what was not shown, the end of the task shows."""
    from airflow_provider.triggers.kinetic import KineticJobTrigger

    task = Task(count_slowly, ended=False, argument=12)
    trigger = KineticJobTrigger(task.event["reference"], [0, 0], time.time() - 60)
    trigger.first_look_seconds = 60.0  # not 5.0: on a busy machine the job takes longer

    async def fired() -> Any:
        return await anext(trigger.run())

    event = asyncio.run(fired())
    assert (event.payload["status"], event.payload["cursor"]) == ("ended", [0, 0])


def test_a_store_that_refuses_fails_the_leg(store: Path) -> None:
    from kinetic_core.errors import MalformedObject, ObjectNotFound, StoreError, StoreFull, StoreRefused

    assert StoreError("no answer").is_passing
    assert not any(
        kind("no").is_passing for kind in (MalformedObject, ObjectNotFound, StoreFull, StoreRefused)
    )


@pytest.mark.parametrize("state", ["running", "deferred", "up_for_retry", "awaiting_input", "", "queued"])
def test_only_what_a_person_does_ends_a_job(state: str) -> None:
    """For a worker, "" is that Airflow does not say, and "queued" a newer try, which adopts the job."""
    from airflow_provider.job_of_task import ENDED

    assert state not in ENDED


def test_a_timeout_ends_the_job(store: Path) -> None:
    """Airflow calls the same method for `execution_timeout`, while it handles the exception."""
    from airflow.providers.common.compat.sdk import AirflowTaskTimeout, TaskDeferred

    from kinetic_core import JobStatus
    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.observe import observe

    task = Task(wait_long, ended=False)
    with pytest.raises(TaskDeferred):
        task.last_leg()
    try:
        raise AirflowTaskTimeout("its time is up")
    except AirflowTaskTimeout:
        task.operator.on_kill()
    seen = observe(backend_of(task.reference, default_connections()), task.reference)
    assert seen.status is JobStatus.CANCELLED


def test_a_timeout_is_one_also_if_nothing_can_be_cancelled(store: Path) -> None:
    from airflow.providers.common.compat.sdk import AirflowTaskTimeout, TaskDeferred

    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.cancel import cancel

    task = Task(wait_long, ended=False)
    with pytest.raises(TaskDeferred):
        task.last_leg()
    lose(store)
    try:
        raise AirflowTaskTimeout("its time is up")
    except AirflowTaskTimeout:
        with pytest.raises(AirflowTaskTimeout, match=r"cannot be cancelled now: .*store"):
            task.operator.on_kill()
    give_back(store)
    cancel(backend_of(task.reference, default_connections()), task.reference)


@pytest.mark.parametrize("of", ["build", "sensor", "another task"])
def test_the_event_of_another_tasks_trigger_ends_nothing(store: Path, of: str) -> None:
    """The task's own job goes on, and is waited for again."""
    others = {
        "build": {"status": "built", "message": "", "deadline": None, "build": {"build_id": "b"}},
        "sensor": {"status": "ended", "reference": {"job_id": ID}, "deadline": None},
        "another task": {"status": "ended", "reference": record().reference.to_dict(), "deadline": None},
    }
    task = Task(deferrable=False)
    task.event = others[of]
    assert task.last_leg() == 42
    if of != "build":
        assert task.operator.execute_after_build(task.context, others[of], 1) == 42


def test_a_trigger_cancels_the_job_at_its_deadline(store: Path, capsys: Any) -> None:
    """A worker's slot may be minutes away. The last leg reports how the job ended, and when it did itself."""
    from airflow.providers.common.compat.sdk import AirflowTaskTimeout

    from airflow_provider.records import KEY
    from airflow_provider.triggers.kinetic import KineticJobTrigger
    from kinetic_core import JobStatus
    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.observe import observe

    async def fired(job: Task) -> Any:
        event = job.event
        return await anext(KineticJobTrigger(event["reference"], [0, 0], 0.0, time.time() - 1).run())

    task = Task(wait_long, ended=False)
    event = asyncio.run(fired(task))
    assert repr(event) == f"timeout {task.reference.job_id}"
    seen = observe(backend_of(task.reference, default_connections()), task.reference)
    assert seen.status is JobStatus.CANCELLED
    pushed: dict[str, Any] = {}
    task.context["ti"].xcom_push = lambda key, value: pushed.update({key: value})
    task.event = event.payload
    try:
        task.last_leg()
    except AirflowTaskTimeout as error:
        assert "was cancelled: execution_timeout has passed" in str(error)  # noqa: PT017  as Airflow does:
        task.operator.on_kill()
    end = pushed[KEY]["end"]
    assert (end["status"], end["message"]) == ("CANCELLED", "execution_timeout has passed")
    lines = "".join(capsys.readouterr())
    assert lines.lower().count(f"cancelling {task.reference.job_id}") == 1, lines


def test_a_job_that_ended_at_its_deadline_has_a_value(store: Path) -> None:
    task = Task()
    task.event["status"] = "timeout"
    assert task.last_leg() == 42


def fail(number: int) -> None:
    raise ValueError(f"shard {number} is corrupt")


class Unknown(Exception):
    """One that Airflow cannot rebuild."""


def fail_by_itself(number: int) -> None:
    raise Unknown(f"shard {number} is corrupt")


@pytest.mark.parametrize("function", [fail, fail_by_itself])
def test_a_failure_has_one_frame_of_ours(store: Path, function: Callable[..., Any]) -> None:
    """What the function raised is what a reader looks for, not how it was collected."""
    task = Task(function)
    with pytest.raises(Exception, match="shard 21 is corrupt") as raised:
        task.last_leg()
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [frame.name for frame in frames if "airflow_provider/" in frame.filename][1:] == []
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("of", ["job", "batch", "build", "end of a job"])
def test_a_deadline_counts_without_a_connection(of: str, store: Path) -> None:
    """Somebody has removed it while the task was deferred, which would else be so for ever."""
    from airflow_provider.triggers.batch import KineticBatchTrigger
    from airflow_provider.triggers.job_end import KineticJobEndTrigger
    from airflow_provider.triggers.kinetic import KineticBuildTrigger, KineticJobTrigger

    reference, when = record().reference.to_dict(), (time.time() - 60, time.time())
    trigger: Any = {
        "job": lambda: KineticJobTrigger(reference, [], *when, conn_id="removed"),
        "batch": lambda: KineticBatchTrigger(reference, 1, "", {}, *when, conn_id="removed"),
        "build": lambda: KineticBuildTrigger({"project": "p", "build_id": "b"}, *when, conn_id="removed"),
        "end of a job": lambda: KineticJobEndTrigger(ID, *when, conn_id="removed"),
    }[of]()

    async def first() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 10)

    event = asyncio.run(first()).payload
    assert event["status"] == "timeout"
    assert of != "build" or "'removed'" in event["message"]


def cannot_name_it(_: int) -> None:
    error = ValueError("cannot read " + os.fsdecode(b"caf\xe9"))
    error.add_note(os.fsdecode(b"nor caf\xe9"))
    raise error


def test_a_failure_has_text_that_airflow_can_write(store: Path) -> None:
    """Its log is JSON in UTF-8: a name that is not ended the worker before the task had a state."""
    with pytest.raises(ValueError, match="cannot read") as raised:
        Task(cannot_name_it).last_leg()
    assert str(raised.value) == r"cannot read caf\udce9"
    assert r"nor caf\udce9" in raised.value.__notes__
    assert "".join(traceback.format_exception(raised.value)).encode()


def ends_with(error: BaseException) -> BaseException:
    """What a leg raises that ends with this error."""
    from airflow_provider.operators.base import plainly

    @plainly
    def leg(_: Any) -> None:
        raise error from ValueError("because of caf\udce9")

    with pytest.raises(Exception, match="caf") as raised:
        leg(None)
    assert "".join(traceback.format_exception(raised.value)).encode()
    return raised.value


def test_every_error_of_a_leg_has_text_that_airflow_can_write() -> None:
    from airflow_provider.airflow_sdk import AirflowException, AirflowFailException

    assert str(ends_with(AirflowFailException("no caf\udce9"))) == r"no caf\udce9"
    told = ends_with(ImportError("no caf\udce9"))
    assert (type(told), str(told)) == (AirflowException, r"ImportError: no caf\udce9")
    assert type(ends_with(OSError(2, "no such file", "caf\udce9"))) is FileNotFoundError


def test_a_signal_alone_ends_nothing(store: Path) -> None:
    """In the handler nothing is asked and nothing is cancelled: it may stand in the middle of anything."""
    from airflow.providers.common.compat.sdk import TaskDeferred

    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.cancel import cancel
    from kinetic_core.jobs.observe import observe

    task = Task(wait_long, ended=False)
    with pytest.raises(TaskDeferred):
        task.last_leg()
    task.operator.on_kill()
    assert not observe(backend_of(task.reference, default_connections()), task.reference).is_terminal
    cancel(backend_of(task.reference, default_connections()), task.reference)


def test_a_worker_told_to_stop_lets_its_job_live(store: Path) -> None:
    """While Airflow does not tell the task's state: nobody is known to have ended the task."""
    from airflow.providers.common.compat.sdk import AirflowException

    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.cancel import cancel
    from kinetic_core.jobs.observe import observe

    task = Task(wait_long, ended=False, deferrable=False)
    task.operator.on_kill()
    with pytest.raises(AirflowException, match="the job lives on, and the next try adopts it"):
        task.last_leg()
    assert not observe(backend_of(task.reference, default_connections()), task.reference).is_terminal
    cancel(backend_of(task.reference, default_connections()), task.reference)


@pytest.mark.timeout(240)
def test_a_worker_told_while_it_notes_the_place_obeys_then(store: Path) -> None:
    """Nothing interrupts what it asks Airflow; afterwards it starts its job for the next try, and stops."""
    from airflow.providers.common.compat.sdk import AirflowException

    from airflow_provider.deployment import Kept, UsedPlace

    task = Task(deferrable=False)
    task.context["ti"].run_id = "another"
    kept = Kept.here("").file
    kept.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(kept)  # whoever reads what is known of the places waits for a writer
    places = [UsedPlace(task.reference).key]
    known = json.dumps({"since": time.time(), "name": "ours", "places": places})
    before: list[list[str]] = []

    def tell() -> None:
        for reading in ("the name", "the place", "the place, after it was told"):
            with kept.open("w") as reader:
                kept.unlink()
                os.mkfifo(kept)  # for the next one: this one reads until its writer is gone
                if reading == "the place":
                    before.append(jobs_in(store))
                    task.operator.on_kill()
                reader.write(known)

    telling = Thread(target=tell, daemon=True)
    telling.start()
    with pytest.raises(AirflowException, match="the job lives on, and the next try adopts it"):
        task.operator.execute(task.context)
    telling.join(60)
    assert before == [[task.reference.job_id]]
    assert len(jobs_in(store)) == 2


def test_a_trigger_that_is_moved_ends_no_job(store: Path) -> None:
    """Airflow kills it as it does when somebody ends its task, whose state decides."""
    from airflow_provider.triggers.kinetic import KineticJobTrigger
    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.cancel import cancel
    from kinetic_core.jobs.observe import observe

    task = Task(wait_long, ended=False)
    trigger = KineticJobTrigger(task.reference.to_dict(), [0, 0], time.time())
    asyncio.run(trigger.on_kill())
    assert not observe(backend_of(task.reference, default_connections()), task.reference).is_terminal
    cancel(backend_of(task.reference, default_connections()), task.reference)
