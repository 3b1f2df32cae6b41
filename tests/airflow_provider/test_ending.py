"""Who ends a task whose job has ended, as its first leg decides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kinetic_core
from airflow_provider.access import ENVIRONMENT
from airflow_provider.ending import FAILED, SUCCESS, End, Ending, Installation, end_of, needs_worker
from airflow_provider.task_logs import Cursor, LogTail
from kinetic_core._runner import codec, object_names, wire
from kinetic_core.connections import default_connections
from kinetic_core.errors import UnverifiedResult
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import drop_payloads
from kinetic_core.jobs.collect import collect
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.observe import observe, wait
from tests.conftest import wait_for
from tests.warm.places import Cluster

PLAIN = Installation()


class BaseOperator:
    """Airflow's own, as far as this is concerned."""

    outlets: Any = ()
    on_success_callback: Any = ()
    on_failure_callback: Any = ()
    _post_execute_hook = None

    def post_execute(self) -> None:
        """Do nothing, as Airflow's does."""

    def iter_mapped_dependants(self) -> Any:
        return iter(self.dependants)

    dependants: Any = ()


BaseOperator.__module__ = "airflow.sdk.bases.operator"


class Hooked(BaseOperator):
    def post_execute(self) -> None:
        """Do something."""


def task(kind: type = BaseOperator, **fields: Any) -> Any:
    made = kind()
    vars(made).update(fields)
    return made


def instance(**fields: Any) -> Any:
    return SimpleNamespace(**{"map_index": -1, "try_number": 1, "max_tries": 0, **fields})


def states(of: Any, ti: Any | None = None, airflow: Installation = PLAIN) -> list[str]:
    """The states that only a worker can give the task."""
    return sorted({state for state, _ in needs_worker(of, ti or instance(), airflow)})


@pytest.mark.promise("scale: Where a worker is needed it ends the task, and the ADR says when")
@pytest.mark.parametrize(
    ("of", "ti", "airflow", "expected"),
    [
        (task(), None, PLAIN, []),
        (task(outlets=[1]), None, PLAIN, [SUCCESS]),
        (task(multiple_outputs=True), None, PLAIN, [SUCCESS]),
        (task(multiple_outputs=False), None, PLAIN, []),
        (task(dependants=[1]), None, PLAIN, [SUCCESS]),
        (task(dependants=[1]), instance(map_index=0), PLAIN, []),
        (task(returns_dag_result=True), None, PLAIN, [SUCCESS]),
        (task(on_success_callback=[print]), None, PLAIN, [SUCCESS]),
        (task(on_failure_callback=[print]), None, PLAIN, [FAILED]),
        (task(_post_execute_hook=print), None, PLAIN, [SUCCESS]),
        (task(Hooked), None, PLAIN, [SUCCESS]),
        (task(), instance(max_tries=1), PLAIN, [FAILED]),
        (task(), instance(try_number=2, max_tries=1), PLAIN, []),
        (task(email="me@example.com"), None, PLAIN, [FAILED]),
        (task(email="me@example.com", email_on_failure=False), None, PLAIN, []),
        (task(dag=SimpleNamespace(fail_fast=True)), None, PLAIN, [FAILED]),
        (task(), None, Installation(listens=frozenset([SUCCESS])), [SUCCESS]),
        (task(), None, Installation(listens=frozenset([FAILED])), [FAILED]),
        (task(), None, Installation(has_own_xcoms=True), [SUCCESS]),
        (task(), None, Installation(clears_task_state=True), [SUCCESS]),
        (task(), None, Installation(is_traced=True), [FAILED, SUCCESS]),
    ],
)
def test_what_needs_a_worker(of: Any, ti: Any, airflow: Installation, expected: list[str]) -> None:
    assert states(of, ti, airflow) == expected


def test_an_ending_travels_in_a_triggers_arguments() -> None:
    ending = Ending((SUCCESS,), "2026-01-01", 2, "double[1]", pushes=False, signs=False, log="gs://logs/1")
    assert Ending.from_dict(ending.to_dict()) == ending


@kinetic_core.run(accelerator="cpu", backend="local")
def double(number: int) -> int:
    return number * 2


@kinetic_core.run(accelerator="cpu", backend="local")
def said() -> None:
    print("said")


def ended_by_trigger(handle: JobHandle) -> End:
    seen = observe(handle.place, handle)
    ending = Ending((SUCCESS, FAILED), run_began="2026-01-01T00:00:00+00:00", try_number=1)
    return end_of(handle.place, handle, seen, ending, Cursor(), ENVIRONMENT)


@pytest.mark.attack
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("state", [SUCCESS, FAILED])
def test_a_planted_outcome_ends_no_task(local_jobs: object, state: str, *, is_gone: bool) -> None:
    """Whether its job is still there or not: a worker, which does not believe it either, says so."""
    handle = double.run_async(21)
    assert handle.result(cleanup=False) == 42
    end = ended_by_trigger(handle)
    assert (end.state, end.value) == (SUCCESS, 42)
    if is_gone:
        drop_payloads(default_connections(), [handle])
    name = object_names.result(handle.job_id)
    told = {"protocol": wire.PROTOCOL, "job_id": handle.job_id, "attempt": 0, "codec": "typed"}
    ends = {SUCCESS: "succeeded", FAILED: "failed"}
    handle.place.store.delete(name)
    handle.place.store.create_if_absent(
        name, wire.encode_frame({**told, "state": ends[state]}, codec.encode("owned"))
    )
    with pytest.raises(UnverifiedResult):
        ended_by_trigger(handle)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A fake cluster whose pods are real runners, watched as a triggerer watches it."""
    made = Cluster(tmp_path, Path(__file__).parent)
    yield made
    made.close()


def quiet(go: str) -> int:
    while not Path(go).exists():
        time.sleep(0.01)
    return 42


def talkative(go: str) -> int:
    print("said")
    return quiet(go)


@pytest.mark.parametrize(("function", "lines"), [(quiet, []), (talkative, ["said"])])
def test_the_end_of_a_job_asks_the_cluster_nothing(
    cluster: Cluster, tmp_path: Path, function: Any, lines: list[str]
) -> None:
    """Its watch has told of the job and its pod; the outcome says that nothing was printed, or the store has
    what was."""
    go, faults = tmp_path / "go", cluster.fake.faults
    handle = cluster.submit(function, str(go), warm=None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, cluster.backend, handle)
        wait_for(lambda: faults.count("watch=") >= len(("Job", "Pod", "Event")))  # each has listed before
        go.touch()
        waiting.result()
    asked = len(faults.requests)
    end = ended_by_trigger(handle)
    assert (end.value, list(end.lines[:-1])) == (42, lines)
    assert [each.line for each in faults.requests[asked:] if "watch=" not in each.line] == []


def test_a_log_that_was_shown_whole_is_not_read_again(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    handle = cluster.submit(talkative, str(tmp_path / "go"), warm=None)
    wait(cluster.backend, handle)
    outcome = collect(cluster.backend, handle)
    assert outcome.log_size == len(b"said\n")
    shown = LogTail(cluster.backend, handle, Cursor(0, outcome.log_size))
    cluster.backend.store.delete_all(f"jobs/{handle.job_id}/logs/")
    assert shown.short_rest(0, 10, outcome.log_size) == []
    in_groups = LogTail(cluster.backend, handle, replace(shown.cursor, groups=2))
    assert in_groups.short_rest(0, 10, outcome.log_size) == ["::endgroup::"] * 2
    assert LogTail(cluster.backend, handle, Cursor(0, 1)).short_rest(0, 10, outcome.log_size) != []


def test_on_this_machine_a_log_is_read_to_its_end(local_jobs: object) -> None:
    """It has lines of the runner's own, of which the outcome's size knows nothing."""
    handle = said.run_async()
    handle.result(cleanup=False)
    assert LogTail(handle.place, handle).short_rest(0, 10, log_size=0) == ["said"]


def test_one_place_that_is_gone_keeps_no_other(local_jobs: object) -> None:
    handle = double.run_async(21)
    assert handle.result(cleanup=False) == 42
    elsewhere = replace(JobReference.from_dict(handle.to_dict()), backend="gke", store_uri="gs://gone")
    drop_payloads(default_connections(), [elsewhere, handle])
    assert handle.place.get(handle.namespace, handle.job_id) is None
