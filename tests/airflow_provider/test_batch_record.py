"""What a task tells of its batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.batch_of_task import batch_id
from airflow_provider.batch_record import BatchRecord, Cause, causes, failure_lines
from airflow_provider.job_of_task import TaskIdentity
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.errors import JobCancelled, JobOutOfMemory
from kinetic_core.job import JobReference
from tests.airflow_provider.test_batch_values import REFERENCE

CAUSE = Cause("ValueError: odd", "user error", 1, (7,))


def record(**changes: Any) -> BatchRecord:
    identity = TaskIdentity("dag", "run", "began", "task", 2, 3, 2)
    own = batch_id(identity, 2)
    of = {"job_id": own, "group_id": own, "spec_digest": "d", "namespace": "default"}
    reference = JobReference.from_dict({**REFERENCE, **of, "created_at": "2026-01-01T00:00:02Z"})
    return replace(BatchRecord(reference, 10, "began", 3, 2, "lab", 1, "7", (CAUSE,)), **changes)


def test_a_cause_is_text_that_airflow_can_keep() -> None:
    error = ValueError("cannot read caf\udce9")
    error.add_note("nor caf\udce9")
    (told,) = causes([7], {7: error})
    assert told.text == r"ValueError: cannot read caf\udce9"
    assert failure_lines([7], {7: error})[-1] == r"input 7: nor caf\udce9"


def test_a_record_survives_xcom_and_knows_its_task() -> None:
    for told in (record(), record(run_seconds=12.5), record(run_seconds=12, seconds=30.0, waited=0)):
        assert BatchRecord.from_value(told.to_dict()) == told
    assert record().is_of("dag", "run", "task", 2)
    assert not record().is_of("dag", "run", "task", 1)


@pytest.mark.attack
@pytest.mark.parametrize(
    "changes",
    [
        {"size": "10"},
        {"size": 10**9},
        {"more": 1},
        {"missing": "1-"},
        {"run_seconds": "1"},
        {"run_seconds": float("nan")},
        {"run_seconds": -1.0},
        {"seconds": "1"},
        {"seconds": True},
        {"seconds": float("inf")},
        {"waited": -1},
        {"waited": 10**400},
        {"missing": "0-999999999999"},
        {"causes": None},
        {"run_began": "\ud800"},
        {"ended_by": "\ud800"},
        {"conn_id": "lab\nlab"},
        {"gcp_conn_id": "lab\nlab"},
        {"gcp_conn_id": 5},
        {"reference": {**record().reference.to_dict(), "group_id": "grp-0123456789abcdef"}},
        {"reference": {**record().reference.to_dict(), "job_id": "job-0123456789abcdef"}},
        {"reference": {**record().reference.to_dict(), "namespace": "a/b"}},
    ],
)
def test_what_is_no_record_is_none(changes: dict[str, Any]) -> None:
    assert BatchRecord.from_value({**record().to_dict(), **changes}) is None


def test_a_record_of_an_earlier_version_has_no_times() -> None:
    told = record(run_seconds=12.5).to_dict()
    del told["seconds"], told["waited"]
    assert BatchRecord.from_value(told) == record(run_seconds=12.5)


@pytest.mark.attack
@pytest.mark.parametrize("value", [None, [], {}, "grp"])
def test_another_value_is_no_record(value: Any) -> None:
    assert BatchRecord.from_value(value) is None


@pytest.mark.attack
@pytest.mark.parametrize(
    "cause",
    [
        {},
        "odd",
        vars(CAUSE) | {"inputs": ["7"]},
        vars(CAUSE) | {"text": "x" * 301},
        vars(CAUSE) | {"count": "1"},
        vars(CAUSE) | {"text": "\ud800"},
    ],
)
def test_what_is_no_cause_is_left_out(cause: Any) -> None:
    found = BatchRecord.from_value({**record().to_dict(), "causes": [cause]})
    assert found is not None
    assert found.causes == ()


@pytest.mark.attack
def test_inputs_that_a_record_names_take_no_memory() -> None:
    """An author of DAGs can write ten million inputs in a few letters."""
    told = record(size=10_000_000, missing="0-9999999,5")
    assert told.missing_in(range(9_999_990, 9_999_995)) == set(range(9_999_990, 9_999_995))
    assert record(missing="1,3-5").missing_in(range(2, 5)) == {3, 4}
    assert record(missing="").missing_in(range(10)) == set()


def test_a_cause_is_what_the_failure_says_not_its_error() -> None:
    memory = Failure(FailureClass.OUT_OF_MEMORY, "grp-1: no memory left", "user")
    errors: dict[int, BaseException] = {
        0: JobOutOfMemory("job-0123456789abcdef: no memory left", memory),
        1: JobOutOfMemory("grp-0123456789abcdef-1: no memory left", memory),
        2: JobCancelled("grp-2: it was cancelled"),
    }
    assert [each.text for each in causes([0, 1, 2], errors)] == [
        "JobOutOfMemory: grp-1: no memory left",
        "JobCancelled: grp-2: it was cancelled",
    ]


@pytest.mark.promise("scale: The log says which inputs failed and why, the first ten by cause")
def test_failed_inputs_are_named_by_their_cause() -> None:
    memory = Failure(FailureClass.OUT_OF_MEMORY, "no memory left", "user")
    errors: dict[int, BaseException] = {index: ValueError("odd") for index in range(1, 40, 2)}
    errors[4] = JobOutOfMemory("grp-0123456789abcdef-4: no memory left", memory)
    errors[6] = JobOutOfMemory("grp-0123456789abcdef-6: no memory left", memory)
    lines = failure_lines([*sorted(errors), 900, 901], dict(sorted(errors.items())))
    assert lines == [
        "20 x ValueError: odd (inputs 1, 3, 5, 7, 9, 11, 13, 15, 17, 19 ...)",
        "2 x JobOutOfMemory: no memory left",
        "and 2 more inputs without a value, of which the first were read",
    ]
    told = causes([*sorted(errors), 900], dict(sorted(errors.items())))
    assert [(each.count, each.reason, each.inputs[:2]) for each in told] == [
        (20, "user error", (1, 3)),
        (2, "out of memory", (4, 6)),
    ]
