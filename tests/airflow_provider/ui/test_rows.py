"""A row says what is known of a task instance's job; filters and pages choose among rows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.batch_of_task import batch_id
from airflow_provider.batch_record import BatchRecord
from airflow_provider.records import BuildWait, EarlierJob
from airflow_provider.ui.rows import (
    HIDDEN,
    Filters,
    Instance,
    Live,
    LiveBatch,
    Times,
    costed,
    page,
    row,
    with_shared_builds,
    without_exceptions,
)
from kinetic_core.batches.snapshot import BatchTimes
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.cost import Prices
from kinetic_core.jobs.phases import Phase
from tests.airflow_provider.records_of_jobs import ended, identity, instance, reference

WAITING = JobObservation(JobStatus.PENDING, "Unschedulable", "no node is free", attempt=1)


def test_a_task_without_a_job() -> None:
    shown = row(Instance("train", 0, "", "queued", 0, None), None)
    assert (shown["status"], shown["task_state"], "job_id" in shown) == ("NO_JOB", "queued", False)


@pytest.mark.promise("page: State, reason, attempts")
@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("no state", "airflow scheduler", "waits for its tasks upstream"),
        ("scheduled", "airflow scheduler", "a free slot of pool 'gpus'"),
        ("queued", "airflow queue", "a worker of Airflow's executor, and holds its slot of pool 'gpus'"),
        ("running", "airflow worker", "packs the project and uploads it"),
        ("restarting", "airflow worker", "begins the task again"),
        ("up_for_retry", "airflow retry", "ended at 1970-01-01 00:00:50 UTC; the next one begins after the"),
        ("up_for_reschedule", "airflow retry", "looks at it again"),
        ("deferred", "airflow trigger", "what its trigger waits for"),
        ("awaiting_input", "airflow input", "somebody's answer"),
    ],
)
def test_a_task_without_a_job_says_what_it_waits_for(state: str, reason: str, text: str) -> None:
    waits = Instance("train", 0, "", state, 1, None, times=Times(10.0, 20.0, 30.0, 50.0), pool="gpus")
    shown = row(waits, None)
    assert (shown["status"], shown["reason"]) == ("NO_JOB", reason)
    assert text in shown["message"]
    assert (shown["waited"] is not None) is (state in ("scheduled", "queued", "running"))


def test_a_retry_whose_time_is_known_says_it() -> None:
    times = Times(ended=50.0, next_try=90.0)
    shown = row(Instance("train", 0, "", "up_for_retry", 1, None, times=times), None)
    assert shown["message"].endswith("the next one begins at 1970-01-01 00:01:30 UTC")


def test_a_worker_that_goes_on_after_a_build_prepares_since_then() -> None:
    times, built = Times(1.0, 2.0, 3.0), BuildWait(1, 5.0, 9.0, time.time() - 7)
    shown = row(Instance("train", 0, "", "running", 1, None, times=times, build=built), None)
    assert shown["waited"] == pytest.approx(7, abs=5)


def test_a_state_of_a_later_airflow_is_told_as_it_is() -> None:
    shown = row(Instance("train", 0, "", "hibernating", 1, None), None)
    assert (shown["reason"], shown["message"], shown["waited"]) == ("", "the task is hibernating", None)


def test_a_task_that_waits_for_its_image_says_so() -> None:
    waits = Instance("train", 0, "", "deferred", 1, None, build=BuildWait(1, 5.0))
    assert (row(waits, None)["status"], row(waits, None)["reason"]) == ("NO_JOB", "image build")
    assert row(waits, None)["waited"] > 1e9
    built = replace(waits, state="running", build=BuildWait(1, 5.0, 9.0, 10.0))
    assert row(built, None)["reason"] == "airflow worker"
    assert row(replace(waits, state="failed"), None)["status"] == "NEVER"


def test_a_build_says_how_many_tasks_share_it_since_when() -> None:
    def wait(index: int, began: float, page: str) -> Instance:
        return Instance("train", index, "", "deferred", 1, None, build=BuildWait(1, began, page=page))

    here, elsewhere = wait(0, 5.0, "https://a"), replace(wait(1, 3.0, "https://a"), dag_id="other")
    over = replace(wait(2, 1.0, "https://a"), build=BuildWait(1, 1.0, 2.0, page="https://a"))
    unknown = wait(3, 4.0, "")
    rows = [row(each, None) for each in (here, instance(), unknown)]
    rows = with_shared_builds(rows, [here, elsewhere, over, unknown, wait(4, 2.0, "https://b")])
    assert (rows[0]["build"]["tasks"], rows[0]["build"]["since"]) == (2, 3.0)
    assert rows[2]["build"]["tasks"] == 0


def test_groups_are_of_jobs_and_the_largest_comes_first() -> None:
    rows = [
        *(costed(row(replace(instance(each), dag_id="sweep"), None), None) for each in range(3)),
        costed(row(replace(instance(accelerator="gpu-l4-1"), dag_id="nightly"), None), None),
        costed(row(Instance("train", 0, "", "queued", 0, None, dag_id="waits"), None), None),
    ]
    groups = page(rows, Filters(), 0, 10)["groups"]
    assert groups["dag_id"] == [
        {"name": "sweep", "jobs": 3, "cost": None},
        {"name": "nightly", "jobs": 1, "cost": None},
    ]
    assert [each["name"] for each in groups["accelerator"]] == ["tpu-v6e-8", "gpu-l4-1"]


def test_jobs_are_grouped_by_team_where_there_are_teams() -> None:
    teams = ("red", "blue", "red", "")
    rows = [costed(row(instance(number), None), None) | {"team": team} for number, team in enumerate(teams)]
    told = page(rows, Filters(), 0, 10)["groups"]
    assert list(told) == ["dag_id", "team", "accelerator"]
    assert [(each["name"], each["jobs"]) for each in told["team"]] == [("red", 2), ("blue", 1)]
    chosen = page(rows, Filters(text="blue"), 0, 10)["jobs"]
    assert [each["map_index"] for each in chosen] == [1]
    assert "team" not in page(rows[3:], Filters(), 0, 10)["groups"]


def test_the_history_of_a_task_is_told_by_run_the_oldest_first() -> None:
    waits, works = Phase("scheduling", 0, 0.0, 30.0), Phase("function", 0, 30.0, 60.0)
    prices = Prices("EUR", {("tpu", "v6e"): 3.6}, {})

    def of(run_id: str, index: int, *phases: Phase, failed: bool = False) -> dict[str, Any]:
        end = replace(ended(JobStatus.FAILED if failed else JobStatus.SUCCEEDED), phases=phases)
        one = replace(instance(index, state="success", end=end), run_id=run_id)
        return costed(row(one, None), prices)

    rows = [
        of("newest", 0, waits, works),
        of("newest", 1, works, failed=True),
        of("oldest", 0, works),
        costed(row(Instance("train", 0, "", "skipped", 0, None, run_id="skipped"), None), prices),
    ]
    oldest, newest = page(rows, Filters(), 0, 1)["history"]
    assert (oldest["run_id"], oldest["jobs"], oldest["ran"], oldest["waited"]) == ("oldest", 1, 60.0, 0.0)
    assert (newest["run_id"], newest["jobs"], newest["failed"]) == ("newest", 2, 1)
    assert (newest["ran"], newest["waited"], newest["are_batches"]) == (60.0, 30.0, False)
    assert (oldest["chip_seconds"], newest["chip_seconds"]) == (480.0, 960.0)
    assert newest["cost"] == pytest.approx(2 * oldest["cost"])
    of_one = page(rows, Filters(map_index=1), 0, 1)["history"]
    assert [each["run_id"] for each in of_one] == ["newest"]


@pytest.mark.promise("page: History of a task's durations, waits and cost")
def test_the_history_of_a_batch_is_what_its_records_say() -> None:
    """Of a run whose record is of an earlier version, or says nothing yet, there is no chart."""
    own = batch_id(identity("embed"), 1)
    whole = BatchRecord(reference(own, group_id=own), 3, "", 1, 1)
    prices = Prices("EUR", {("tpu", "v6e"): 3600.0}, {})

    def of(run_id: str, live: LiveBatch | None = None, **ended: Any) -> dict[str, Any]:
        state = "deferred" if live else "failed" if ended.get("failed") else "success"
        one = Instance("embed", -1, "", state, 1, None, run_id=run_id, batch=replace(whole, **ended))
        return costed(row(one, live), prices)

    rows = [
        of("waits for an answer", LiveBatch(WAITING, None)),
        of("runs", LiveBatch(WAITING, BatchTimes(1.0, 7.0, 2.0))),
        of("failed", failed=1, run_seconds=20.0, seconds=15.0, waited=5.0),
        of("half", failed=0, run_seconds=20.0, seconds=15.0),
        of("older", failed=0, run_seconds=20.0),
        of("oldest", failed=0, run_seconds=10, seconds=12, waited=0),
    ]
    told = page(rows, Filters(), 0, 1)["history"]
    assert {each["are_batches"] for each in told} == {True}
    names = ("run_id", "jobs", "failed", "ran", "waited", "chip_seconds", "cost")
    assert [tuple(each[name] for name in names) for each in told] == [
        ("oldest", 1, 0, 12, 0, 80.0, 80.0),
        ("failed", 1, 1, 10.0, 5.0, 160.0, 160.0),
        ("runs", 1, 0, 5.0, 2.0, 8.0, 8.0),
    ]


def test_a_task_that_was_skipped_waits_for_no_job() -> None:
    shown = row(Instance("train", 0, "", "skipped", 0, None), None)
    assert (shown["status"], shown["message"]) == ("NEVER", "the task is skipped and has started no job")


@pytest.mark.promise("scale: A message with the exception's text needs the permission to read the log")
def test_what_a_function_raised_is_for_who_may_read_logs() -> None:
    before = EarlierJob(1, "job-of-the-first-try", "FAILED", "user error", "no luck")
    failed = instance(state="failed", end=replace(ended(JobStatus.FAILED, "user error"), message="secret"))
    hidden = without_exceptions(row(replace(failed, earlier=(before,)), None))
    assert (hidden["message"], hidden["earlier"][0]["message"]) == (HIDDEN, HIDDEN)
    other = row(instance(state="failed", end=ended(JobStatus.FAILED, "out of memory")), None)
    assert without_exceptions(other) == other
    quoting = row(instance(state="failed", end=ended(JobStatus.FAILED, "configuration")), None)
    assert without_exceptions(quoting)["message"] == HIDDEN


@pytest.mark.promise("page: State, reason, attempts")
def test_a_job_that_waits_says_why() -> None:
    live = Live(WAITING, (Phase("queue", 0, 5.0, 7.04),))
    shown = row(instance(), live)
    assert (shown["status"], shown["reason"], shown["message"]) == (
        "PENDING",
        "Unschedulable",
        "no node is free",
    )
    assert (shown["attempts"], shown["hosts"], shown["accelerator"]) == (2, 1, "tpu-v6e-8")
    assert shown["phases"] == [{"name": "queue", "attempt": 0, "began": 5.0, "seconds": 7.04}]
    assert (shown["waited"], shown["ran"]) == (7.04, 0.0)


def test_waiting_between_attempts_is_no_run() -> None:
    names = {"scheduling": 30.0, "image": 5.0, "function": 8.0, "replacement": 4.0, "idle": 1.0}
    phases = tuple(Phase(name, 0, 0.0, seconds) for name, seconds in names.items())
    shown = row(instance(), Live(WAITING, phases))
    assert (shown["waited"], shown["ran"]) == (39.0, 9.0)
    unknown = row(instance(), None)
    assert (unknown["waited"], unknown["ran"]) == (None, None)


@pytest.mark.promise("page: Cost so far")
@pytest.mark.parametrize(
    ("order", "expected"),
    [("-cost", [1, 0, 2, 3]), ("cost", [0, 1, 2, 3]), ("-waited", [0, 1, 2, 3]), ("", [0, 1, 2, 3])],
)
def test_rows_are_sorted_by_a_number(order: str, expected: list[int]) -> None:
    """Those that have none, as the cost of hardware without a price, come last."""
    prices = Prices("EUR", {("tpu", "v6e"): 3600.0}, {})
    lives = [
        Live(WAITING, (Phase("queue", 0, 0.0, 9.0 - seconds), Phase("function", 0, 0.0, seconds)))
        for seconds in (3.0, 5.0, 7.0)
    ]
    names = ("tpu-v6e-8", "tpu-v6e-8", "gpu-l4-1")
    rows = [
        costed(row(instance(number, accelerator=name), live), prices)
        for number, (name, live) in enumerate(zip(names, lives, strict=True))
    ]
    rows.append(costed(row(Instance("train", 3, "", "queued", 0, None), None), prices))
    sorted_rows = page(rows, Filters(order=order), 0, 10)["jobs"]
    assert [each["map_index"] for each in sorted_rows] == expected


@pytest.mark.promise("page: Accelerator, host count")
def test_hosts_of_a_slice_and_accelerators_of_later_versions() -> None:
    assert row(instance(accelerator="tpu-v5e-16"), None)["hosts"] == 4
    assert row(instance(accelerator="tpu-v99-8"), None)["hosts"] == 1


def test_a_job_that_has_ended_needs_no_cluster() -> None:
    done = instance(state="failed", end=ended(JobStatus.FAILED, "out of memory"))
    assert done.living is None
    shown = row(done, None)
    assert (shown["status"], shown["reason"], shown["attempts"]) == ("FAILED", "out of memory", 2)


def test_a_job_of_which_nothing_is_known_says_so() -> None:
    assert row(instance(), None, "the cluster does not answer")["message"] == "the cluster does not answer"
    cancelled = Live(JobObservation(JobStatus.CANCELLED, "Cancelled", "the job was cancelled"), ())
    assert row(instance(state="failed"), cancelled)["status"] == "CANCELLED"
    killed = row(instance(state="failed"), None)
    assert (killed["status"], killed["message"]) == (
        "UNKNOWN",
        "the task is failed; how its job ended was not recorded",
    )


def test_filters_choose_rows_and_the_numbers_stay() -> None:
    instances = [
        instance(0, "success", ended()),
        instance(1, "failed", ended(JobStatus.FAILED, "user error")),
        replace(instance(2), label="<b>lr=0.1</b>"),
    ]
    rows = [row(each, Live(WAITING, ()) if each.living else None) for each in instances]

    def chosen(**wanted: object) -> list[int]:
        return [each["map_index"] for each in page(rows, Filters(**wanted), 0, 10)["jobs"]]  # type: ignore[arg-type]

    assert chosen() == [0, 1, 2]
    assert chosen(status="FAILED") == chosen(reason="user error") == chosen(text="TRAIN[1]") == [1]
    assert chosen(text="LR=0.1") == chosen(task_id="train", map_index=2) == [2]
    assert chosen(task_id="other") == []
    whole = page(rows, Filters(status="FAILED"), 0, 10)
    assert whole["statuses"] == {"SUCCEEDED": 1, "FAILED": 1, "PENDING": 1}
    assert whole["reasons"] == {"user error": 1, "Unschedulable": 1}
    assert whole["running"] is True


@pytest.mark.promise("page: State, reason, attempts")
def test_the_jobs_of_earlier_tries_are_told_and_found() -> None:
    before = EarlierJob(1, "job-of-the-first-try", "FAILED", "user error", "no luck")
    adopted = replace(instance(), try_number=3, job_try=2, earlier=(before,))
    shown = row(adopted, None)
    assert (shown["try_number"], shown["job_try"]) == (3, 2)
    assert shown["earlier"] == [
        {
            "try_number": 1,
            "job_id": "job-of-the-first-try",
            "status": "FAILED",
            "reason": "user error",
            "message": "no luck",
        }
    ]
    assert page([shown, row(instance(1), None)], Filters(text="of-the-first"), 0, 10)["jobs"] == [shown]


def test_pages_of_five_thousand_jobs() -> None:
    rows = [row(instance(index, "success", ended()), None) for index in range(5000)]
    third = page(rows, Filters(text="train"), 200, 100)
    assert [each["map_index"] for each in third["jobs"]] == list(range(200, 300))
    assert (third["total"], third["running"]) == (5000, False)


@pytest.mark.promise("page: Cost so far")
def test_what_a_job_has_used_and_what_that_costs() -> None:
    live = Live(WAITING, (Phase("queue", 0, 0.0, 100.0), Phase("function", 0, 100.0, 10.0)))
    prices = Prices("EUR", {("tpu", "v6e"): 3600.0}, {})
    assert costed(row(instance(), live), None)["chip_seconds"] == 80.0  # eight chips; waiting holds none
    shown = [costed(row(each, live), prices) for each in (instance(), instance(1, accelerator="tpu-v99-8"))]
    assert [(each["chip_seconds"], each["cost"]) for each in shown] == [(80.0, 80.0), (0.0, None)]
    told = page(shown, Filters(), 0, 10)
    assert (told["chip_seconds"], told["cost"]) == (80.0, 80.0)
    assert page(shown, Filters(map_index=1), 0, 10)["cost"] is None


@pytest.mark.promise("page: Cost so far")
def test_what_a_batch_has_used_and_what_that_costs() -> None:
    own = batch_id(identity("embed"), 1)
    told = BatchRecord(reference(own, group_id=own), 3, "", 1, 1)
    one = Instance("embed", -1, "", "deferred", 1, None, batch=told)
    over = replace(one, state="success", batch=replace(told, failed=0, run_seconds=20.0))
    prices = Prices("EUR", {("tpu", "v6e"): 3600.0}, {})
    runs = LiveBatch(WAITING, BatchTimes(10.0, 4.0, 1.0))
    shown = [
        costed(row(one, runs), prices),
        costed(row(over, None), prices),
        costed(row(one, LiveBatch(None, None)), prices),
        costed(row(one, None), prices),
    ]
    assert [(each["chip_seconds"], each["cost"]) for each in shown] == [
        (80.0, 80.0),
        (160.0, 160.0),
        (0.0, None),
        (0.0, None),
    ]
    assert page(shown, Filters(), 0, 10)["cost"] == 240.0


def test_chips_and_cores_are_summed_apart() -> None:
    live = Live(WAITING, (Phase("function", 0, 100.0, 10.0),))
    rows = [
        costed(row(instance(number, accelerator=name), live), None)
        for number, name in enumerate(("tpu-v6e-8", "cpu:2"))
    ]
    assert [(each["chip_seconds"], each["core_seconds"]) for each in rows] == [(80.0, 0.0), (0.0, 20.0)]
    told = page(rows, Filters(), 0, 10)
    assert (told["chip_seconds"], told["core_seconds"]) == (80.0, 20.0)


def test_a_task_without_a_job_has_used_nothing() -> None:
    shown = costed(row(Instance("train", 0, "", "queued", 0, None), None), None)
    assert (shown["chip_seconds"], shown["cost"]) == (0.0, None)
