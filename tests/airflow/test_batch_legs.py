"""The legs of a task that runs a batch, killed and repeated, with or without its store. Without Airflow."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow_provider.batches import calls
from tests.conftest import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.attack]
SIZE = 4
KINDS: dict[str, dict[str, Any]] = {"jobs": {}, "workers": {"warm": "5s", "max_concurrent": 2}}
"""How the inputs run: each as a job, or on workers, which end by themselves a moment after the test."""


def note(number: int, folder: str) -> int:
    """Note the call, and end when the folder says so."""
    with Path(folder, f"calls-{number}").open("a") as told:
        told.write("x")
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    if number % 2 and Path(folder, "odd-fail").exists():
        raise ValueError(f"{number} is odd")
    return number * number


def stumble(number: int, folder: str) -> int:
    """As `note`; the first call of an odd number fails."""
    value = note(number, folder)
    if number % 2 and Path(folder, f"calls-{number}").read_text() == "x":
        raise ValueError(f"{number} is odd")
    return value


def fail_first(number: int, folder: str) -> int:
    """Fail for 0 and 1; as `note` for all others."""
    if number > 1:
        return note(number, folder)
    with Path(folder, f"calls-{number}").open("a") as told:
        told.write("x")
    raise ValueError(f"{number} is too small")


class BatchTask:
    """A task of four inputs, whose functions note their calls in `folder`, and its operator in a worker."""

    def __init__(
        self, folder: Path, try_number: int = 1, function: Callable[..., int] = note, **options: Any
    ) -> None:
        from airflow.sdk import DAG

        from airflow_provider.operators.batch import KineticBatchOperator

        self.pushed: dict[str, Any] = {}
        names = {"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": -1}
        xcoms = {
            "xcom_push": lambda key, value: self.pushed.update({key: value}),
            "xcom_pull": lambda **asked: self.pushed.get(asked["key"]),
        }
        self.context: Any = {
            "ti": SimpleNamespace(**names, **xcoms, max_tries=3, try_number=try_number),
            "dag_run": SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC)),
        }
        options = {"accelerator": "cpu", "backend": "local", **options}
        with DAG("dag", schedule=None):
            self.operator = KineticBatchOperator(
                task_id="task",
                python_callable=function,
                op_kwargs={"number": list(range(SIZE)), "folder": str(folder)},
                **options,
            )

    def deferred(self) -> Any:
        """Run the first leg; the trigger to which it defers."""
        from airflow.providers.common.compat.sdk import TaskDeferred

        with pytest.raises(TaskDeferred) as raised:
            self.operator.execute(self.context)
        return raised.value.trigger

    def last_leg(self, trigger: Any) -> Any:
        """Let the trigger fire, and run the leg that it resumes."""
        return self.operator.execute_complete(self.context, fired(trigger), 1)


def fired(trigger: Any) -> Any:
    async def first() -> Any:
        return await anext(trigger.run())

    return asyncio.run(first()).payload


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the functions; the store is beside it."""
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parent))
    variables = {
        "REFERENCE_SECRET": "0" * 16,
        "REFERENCE_SECRET_" + "0" * 16: "00" * 32,
        "DEPLOYMENT": "ours",
        "PLACES": "[]",
    }
    for name, value in variables.items():  # Airflow asks for these here, before it asks its API server
        monkeypatch.setenv(f"AIRFLOW_VAR_KINETIC_{name}", value)
    folder = tmp_path / "calls"
    folder.mkdir()
    return folder


def store(home: Path) -> Path:
    return home.parent / "kinetic" / "store"


def lose(home: Path) -> None:
    """From now on the store gives no answer: its name leads in a circle."""
    store(home).rename(store(home).with_name("away"))
    store(home).symlink_to(store(home))


def give_back(home: Path) -> None:
    store(home).unlink()
    store(home).with_name("away").rename(store(home))


def each_once(home: Path) -> bool:
    return [calls(home, number) for number in range(SIZE)] == [1] * SIZE


STEPS = {
    "the manifest is stored": "store/batches/grp-*/manifest.json",
    "the first job is created": "cluster/default/grp-*.json",
    "all is submitted": "store/batches/grp-*/finished.json",
}


def killed_at(home: Path, pattern: str, kind: str, try_number: int = 1) -> None:
    """Run a try's first leg in a worker, which is killed as soon as there is a file of that name."""
    program = f"import sys; from {__name__} import BatchTask, KINDS, Path; "
    program += f"task = BatchTask(Path(sys.argv[1]), {try_number}, **KINDS[{kind!r}]); "
    program += "task.operator.execute(task.context)"
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "tests/airflow"), *sys.path])
    worker = subprocess.Popen(
        [sys.executable, "-c", program, str(home)],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    kinetic = home.parent / "kinetic"
    wait_for(lambda: any(kinetic.glob(pattern)) or worker.poll() is not None)
    with suppress(ProcessLookupError):
        worker.send_signal(signal.SIGKILL)
    worker.wait()


@pytest.mark.promise("scale: No client: chunks of Indexed Jobs; it lives when worker or triggerer dies")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_first_leg_runs_no_input_twice(home: Path, step: str, kind: str) -> None:
    """The next try adopts the batch, and creates what is missing."""
    killed_at(home, STEPS[step], kind)
    task = BatchTask(home, try_number=2, **KINDS[kind])
    trigger = task.deferred()
    (home / "go").touch()
    task.context["ti"].try_number = 1  # `last_leg` resumes the first try
    values = task.last_leg(trigger)
    assert list(values) == [number**2 for number in range(SIZE)]
    assert each_once(home)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_last_leg_is_repeated(home: Path, kind: str) -> None:
    """The next try finds that all inputs have a value, and runs none."""
    task = BatchTask(home, **KINDS[kind])
    trigger = task.deferred()
    (home / "go").touch()
    fired(trigger)
    again = BatchTask(home, try_number=2, **KINDS[kind])
    assert list(again.operator.execute(again.context)) == [number**2 for number in range(SIZE)]
    assert each_once(home)


@pytest.mark.promise("scale: Retries per input")
@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_runs_only_inputs_without_a_value(home: Path, kind: str) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    (home / "odd-fail").touch()
    task = BatchTask(home, **KINDS[kind])
    trigger = task.deferred()
    (home / "go").touch()  # not earlier: what has ended in the first leg is never deferred
    with pytest.raises(AirflowException, match=r"2 of 4 inputs of grp-[0-9a-f]{16} have no value"):
        task.last_leg(trigger)
    record = task.pushed["kinetic_batch"]
    assert (record["failed"], record["missing"]) == (2, "1,3")
    assert record["run_seconds"] > 0
    assert 0 < record["waited"] < record["seconds"]
    assert {each["text"] for each in record["causes"]} == {f"ValueError: {n} is odd" for n in (1, 3)}
    assert living(trigger) == 0
    (home / "odd-fail").unlink()
    (home / "go").unlink()
    again = BatchTask(home, try_number=2, **KINDS[kind])
    trigger = again.deferred()
    (home / "go").touch()
    again.context["ti"].try_number = 1
    assert list(again.last_leg(trigger)) == [number**2 for number in range(SIZE)]
    assert [calls(home, number) for number in range(SIZE)] == [1, 2] * 2


@pytest.mark.promise("scale: Retries per input")
def test_job_retries_are_attempts_of_each_input(home: Path) -> None:
    """An input that fails once has a value in the end, and the task needs no retry of Airflow's."""
    task = BatchTask(home, function=stumble, job_retries=1)
    trigger = task.deferred()
    (home / "go").touch()
    assert list(task.last_leg(trigger)) == [number**2 for number in range(SIZE)]
    assert [calls(home, number) for number in range(SIZE)] == [1, 2] * 2
    record = task.pushed["kinetic_batch"]
    assert (record["failed"], record["missing"], record["causes"]) == (0, "", [])


@pytest.mark.promise("scale: `fail_fast`")
@pytest.mark.promise("scale: `max_concurrent` means what it says", "one at a time")
def test_fail_fast_starts_nothing_after_a_failure(home: Path) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    (home / "odd-fail").touch()
    task = BatchTask(home, max_concurrent=1, fail_fast=True)
    trigger = task.deferred()
    (home / "go").touch()
    with pytest.raises(AirflowException, match=r"3 of 4 inputs of grp-.* \(max_failures=0\): .*1 is odd"):
        task.last_leg(trigger)
    assert [calls(home, number) for number in range(SIZE)] == [1, 1, 0, 0]
    record = task.pushed["kinetic_batch"]
    assert (record["failed"], record["missing"]) == (3, "1-3")


@pytest.mark.promise("scale: `fail_fast`")
def test_fail_fast_ends_what_runs_if_asked(home: Path) -> None:
    """The trigger counts the failures, and input 2, which waits for a file, ends without it."""
    from airflow.providers.common.compat.sdk import AirflowException

    limits = {"max_failures": 1, "fail_fast": True, "cancel_running_on_fail": True}
    task = BatchTask(home, function=fail_first, max_concurrent=1, **limits)
    trigger = task.deferred()
    with pytest.raises(AirflowException, match=r"4 of 4 inputs of grp-.* \(max_failures=1\)"):
        task.last_leg(trigger)
    found = [calls(home, number) for number in range(SIZE)]
    assert found[:2] == [1, 1]
    assert (found[2] <= 1, found[3]) == (True, 0)
    assert living(trigger) == 0


class Acting(logging.Logger):
    """Logger that does something, once, when it is told a text."""

    def __init__(self, acts: dict[str, Callable[[], object]]) -> None:
        super().__init__("of an operator")
        self._acts = acts

    def handle(self, record: logging.LogRecord) -> None:
        for text in [each for each in self._acts if each in record.getMessage()]:
            self._acts.pop(text)()


def test_a_worker_that_cannot_stop_a_batch_tries_again(home: Path) -> None:
    """The store is away for as long as it is asked for the first time."""
    from airflow.providers.common.compat.sdk import AirflowException

    limits = {"max_failures": 1, "fail_fast": True, "cancel_running_on_fail": True}
    task = BatchTask(home, function=fail_first, max_concurrent=1, deferrable=False, **limits)
    acts: dict[str, Callable[[], object]] = {
        "starting no more": partial(lose, home),
        "trying again": partial(give_back, home),
    }
    kind = type(task.operator)
    task.operator.__class__ = type(kind.__name__, (kind,), {"log": Acting(acts)})
    with pytest.raises(AirflowException, match=r"4 of 4 inputs of grp-.* \(max_failures=1\)"):
        task.operator.execute(task.context)
    assert acts == {}


STEPS_OF_ROUND = {
    "it is defined": "store/batches/grp-*/rounds/1/round.json",
    "its first lane is made": "cluster/default/grp-*-l1000.json",
    "all is submitted": "store/batches/grp-*/rounds/1/finished.json",
}


@pytest.mark.parametrize("step", STEPS_OF_ROUND)
def test_a_killed_retry_begins_one_round(home: Path, step: str) -> None:
    """On workers, the try after it completes the round, and each input of it runs once."""
    from airflow.providers.common.compat.sdk import AirflowException

    (home / "odd-fail").touch()
    task = BatchTask(home, **KINDS["workers"])
    trigger = task.deferred()
    (home / "go").touch()
    with pytest.raises(AirflowException, match="2 of 4 inputs"):
        task.last_leg(trigger)
    (home / "odd-fail").unlink()
    (home / "go").unlink()
    killed_at(home, STEPS_OF_ROUND[step], "workers", try_number=2)
    again = BatchTask(home, try_number=3, **KINDS["workers"])
    trigger = again.deferred()
    (home / "go").touch()
    again.context["ti"].try_number = 1
    assert list(again.last_leg(trigger)) == [number**2 for number in range(SIZE)]
    assert [calls(home, number) for number in range(SIZE)] == [1, 2] * 2
    assert not list((home.parent / "kinetic/store/batches").glob("grp-*/rounds/2"))


def test_a_last_leg_without_a_store_waits_for_it(home: Path) -> None:
    from airflow.providers.common.compat.sdk import TaskDeferred

    task = BatchTask(home)
    trigger = task.deferred()
    (home / "go").touch()
    event = fired(trigger)
    lose(home)
    with pytest.raises(TaskDeferred):
        task.operator.execute_complete(task.context, event, 1)
    give_back(home)
    assert list(task.operator.execute_complete(task.context, event, 1)) == [n**2 for n in range(SIZE)]
    assert each_once(home)


def test_a_trigger_of_a_batch_waits_for_the_store(home: Path) -> None:
    task = BatchTask(home, max_concurrent=1)
    trigger = task.deferred()
    trigger.outage_interval = 0.1
    wait_for(lambda: any(calls(home, n) for n in range(SIZE)))  # a job without its store cannot begin
    lose(home)

    async def first() -> Any:
        event = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(1.0)
        assert not event.done(), "nobody knows how the batch is"
        await asyncio.to_thread(give_back, home)
        (home / "go").touch()
        return await event

    assert asyncio.run(first()).payload["status"] == "ended"
    assert each_once(home)


def test_a_leg_after_a_broken_trigger_waits_for_the_same_batch(home: Path) -> None:
    from airflow.providers.common.compat.sdk import TaskDeferred

    task = BatchTask(home)
    first = task.deferred()
    with pytest.raises(TaskDeferred) as raised:
        task.operator.resume_execution("__fail__", {"error": "gone"}, task.context)
    (home / "go").touch()
    again: Any = raised.value.trigger
    assert again.reference["job_id"] == first.reference["job_id"]
    assert list(task.last_leg(again)) == [number**2 for number in range(SIZE)]
    assert each_once(home)


def living(trigger: Any) -> int:
    """How many jobs of the trigger's batch have not ended."""
    from kinetic_core.backends.base import backend_of
    from kinetic_core.backends.kubernetes.verdict import observe
    from kinetic_core.connections import default_connections
    from kinetic_core.job import JobReference

    reference = JobReference.from_dict(trigger.reference)
    found = backend_of(reference, default_connections()).all(reference.namespace)
    own = [each for job_id, each in found.items() if job_id.startswith(reference.job_id)]
    return sum(not observe(*each).is_terminal for each in own)


@pytest.mark.parametrize(("kind", "count"), [("jobs", SIZE), ("workers", 2)])
def test_a_trigger_cancels_the_batch_at_its_deadline(home: Path, kind: str, count: int) -> None:
    from airflow.providers.common.compat.sdk import AirflowTaskTimeout

    task = BatchTask(home, execution_timeout=timedelta(hours=1), **KINDS[kind])
    trigger = task.deferred()
    wait_for(lambda: any(calls(home, number) for number in range(SIZE)))  # which, the machine's slots decide
    assert living(trigger) == count
    assert 3000 < trigger.remaining <= 3600
    trigger.deadline = time.time()  # an hour later
    event = fired(trigger)
    assert (event["status"], living(trigger)) == ("timeout", 0)
    with pytest.raises(AirflowTaskTimeout, match="execution_timeout has passed"):
        task.operator.execute_complete(task.context, event, 1)
    record = task.pushed["kinetic_batch"]
    assert (record["ended_by"], record["failed"]) == ("execution_timeout has passed", SIZE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_ended_before_its_deadline_has_values(home: Path, kind: str) -> None:
    """No triggerer ran from before the batch's end until after the deadline."""
    task = BatchTask(home, execution_timeout=timedelta(hours=1), **KINDS[kind])
    trigger = task.deferred()
    (home / "go").touch()
    assert fired(trigger)["status"] == "ended"
    trigger.deadline = time.time()
    event = fired(trigger)
    assert event["status"] == "timeout"
    assert list(task.operator.execute_complete(task.context, event, 1)) == [n**2 for n in range(SIZE)]


def test_failures_before_the_deadline_are_the_reason(home: Path) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    task = BatchTask(home, execution_timeout=timedelta(hours=1))
    (home / "odd-fail").touch()
    (home / "go").touch()
    trigger = task.deferred()
    assert fired(trigger)["status"] == "ended"
    trigger.deadline = time.time()
    with pytest.raises(AirflowException, match=r"2 of 4 inputs .* have no value .* 1 is odd"):
        task.operator.execute_complete(task.context, fired(trigger), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_records_the_batch_that_it_cancels(home: Path, capsys: Any, kind: str) -> None:
    from airflow.providers.common.compat.sdk import AirflowTaskTimeout

    limit = timedelta(seconds=4)
    task = BatchTask(home, deferrable=False, execution_timeout=limit, **KINDS[kind])
    try:
        task.operator.execute(task.context)
    except AirflowTaskTimeout as error:
        assert "execution_timeout has passed" in str(error)  # noqa: PT017  as Airflow does:
        task.operator.on_kill()
    assert "".join(capsys.readouterr()).count("Cancelling grp-") == 1
    record = task.pushed["kinetic_batch"]
    assert 0 < record["waited"] < record["seconds"]
    assert (record["ended_by"], record["failed"], record["missing"]) == (
        "execution_timeout has passed",
        SIZE,
        f"0-{SIZE - 1}",
    )


def test_a_trigger_that_is_moved_ends_no_batch(home: Path) -> None:
    trigger = BatchTask(home).deferred()
    asyncio.run(trigger.on_kill())
    assert living(trigger) > 0
    (home / "go").touch()
    assert fired(trigger)["status"] == "ended"


def test_what_workers_have_not_is_refused_in_the_dag(home: Path) -> None:
    """As soon as the DAG is parsed, or once a template is rendered, before anything is stored."""
    from airflow.providers.common.compat.sdk import AirflowFailException
    from airflow.sdk import task

    from kinetic_core.errors import InvalidRequest

    with pytest.raises(InvalidRequest, match="warm= needs max_concurrent= in a batch"):
        BatchTask(home, warm="5s")
    with pytest.raises(InvalidRequest, match="a batch with warm= does not go with budget="):
        task.kinetic_batch(accelerator="cpu", warm="5s", max_concurrent=2, budget=1.0)(note)
    templated = BatchTask(home, warm="{{ '5s' }}", max_concurrent=2, hang_after="{{ 600 }}")
    templated.operator.warm, templated.operator.hang_after = "5s", "600"  # as Airflow renders them
    with pytest.raises(AirflowFailException, match="does not go with hang_after="):
        templated.operator.execute(templated.context)
    assert not list(store(home).glob("batches/*"))
