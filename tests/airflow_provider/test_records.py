"""What a task says of its job: it survives XCom, and nobody else's job passes for the task's own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.access import Access
from airflow_provider.records import (
    BuildWait,
    EarlierJob,
    JobEnd,
    JobRecord,
    earlier_from_value,
    earlier_to_value,
)
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.phases import Phase
from tests.airflow_provider.records_of_jobs import DAG, RUN, ended, identity, record, reference


@pytest.mark.parametrize("end", [None, ended(), ended(JobStatus.FAILED, "user error")])
def test_a_record_survives_json(end: JobEnd | None) -> None:
    told = record(3, end, "kinetic_theirs")
    assert JobRecord.from_value(json.loads(json.dumps(told.to_dict()))) == told


def test_a_record_of_an_earlier_version_names_no_connection() -> None:
    value = record().to_dict()
    del value["conn_id"], value["gcp_conn_id"]
    assert JobRecord.from_value(value) == record()


@pytest.mark.parametrize("field", ["conn_id", "gcp_conn_id"])
@pytest.mark.parametrize("conn_id", ["../../secret key", "x\n", "x" * 251, {"a": 1}, "a\\b"])
def test_what_is_no_connection_to_airflow_makes_no_record(conn_id: Any, field: str) -> None:
    assert JobRecord.from_value(record().to_dict() | {field: conn_id}) is None


@pytest.mark.attack
def test_a_record_names_connections_and_nobody_to_impersonate() -> None:
    access = Access("lab", "google", ("robot@lab.iam.gserviceaccount.com",))
    told = JobRecord.of(identity(), reference(identity().job_id()), None, access)
    assert "robot" not in json.dumps(told.to_dict())
    read = JobRecord.from_value(
        told.to_dict() | {"impersonation_chain": ["robot@lab.iam.gserviceaccount.com"]}
    )
    assert read is not None
    assert read.access == Access("lab", "google")


def test_what_is_told_of_an_end_is_bounded() -> None:
    seen = JobObservation(JobStatus.FAILED, "Failed", "x" * 100_000, attempt=2)
    end = JobEnd.of(seen, tuple(Phase("queue", n, float(n), 1.0) for n in range(10_000)))
    assert len(json.dumps(record(end=end).to_dict())) < 15_000


@pytest.mark.promise("page: Job ids from another deployment")
def test_a_job_belongs_to_its_own_task_instance_only() -> None:
    told = record(3)
    assert told.started_by(DAG, RUN, "train", 3) == 1
    for other in [
        ("other", RUN, "train", 3),
        (DAG, "other", "train", 3),
        (DAG, RUN, "x", 3),
        (DAG, RUN, "train", 4),
    ]:
        assert told.started_by(*other) is None


def test_adopted_and_changed_jobs_belong_to_it_too() -> None:
    first, third = identity(try_number=1), identity(try_number=3)
    for job_id, number in ((first.job_id(), 1), (third.job_id("d1"), 3)):
        assert JobRecord.of(third, reference(job_id)).started_by(DAG, RUN, "train", -1) == number


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": "../../secret"},
        {"job_id": "job-0123456789abcdef\n"},
        {"namespace": "a/b"},
        {"namespace": 5},
        {"created_at": "yesterday"},
        {"store_uri": None},
        {"protocol": 99},
        {"accelerator": ["x"]},
    ],
)
def test_a_reference_that_cannot_be_used_makes_no_record(change: dict[str, Any]) -> None:
    value = record().to_dict()
    assert JobRecord.from_value(value) is not None
    assert JobRecord.from_value(value | {"reference": value["reference"] | change}) is None


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"reference": {}}, {"reference": None}])
def test_other_values_are_no_records(value: Any) -> None:
    assert JobRecord.from_value(value) is None


@pytest.mark.parametrize(
    "change",
    [
        {"status": "FINE"},
        {"phases": [{"name": "queue"}]},
        {"attempt": "x"},
        {"attempt": float("inf")},
        {"attempt": 10**400},
        {"resumed": "yesterday"},
        {"resumed": float("nan")},
    ],
)
def test_an_end_that_makes_no_sense_makes_no_record(change: dict[str, Any]) -> None:
    value = record(end=ended()).to_dict()
    assert JobRecord.from_value(value | {"end": value["end"] | change}) is None


@pytest.mark.attack
@pytest.mark.parametrize("odd", [10**400, float("inf"), float("nan"), -1])
def test_numbers_beyond_reason_make_no_record(odd: Any) -> None:
    """One task's XCom would otherwise end the page's answer about everybody's."""
    assert JobRecord.from_value(record().to_dict() | {"try_number": odd}) is None
    waits = {"try_number": 1, "began": 5.0, "ended": 7.0, "resumed": 9.0, "page": "", "sent": 8.0}
    assert BuildWait.from_value(waits) == BuildWait(**waits)
    for name in ("began", "ended", "resumed", "sent"):
        assert BuildWait.from_value(waits | {name: odd}) is None
    assert BuildWait.from_value(waits | {"page": odd}) is None
    assert BuildWait.from_value(waits | {"page": "https://example.com/cloud-build/"}) is None
    page = "https://console.cloud.google.com/cloud-build/builds;region=global/b-1?project=p"
    assert BuildWait.from_value(waits | {"page": page}) is not None


@pytest.mark.attack
@pytest.mark.parametrize("seconds", [10**400, float("nan"), float("inf"), -1, "1e999"])
def test_times_that_the_page_cannot_show_are_left_out(seconds: Any) -> None:
    """Whoever can write an XCom would else break the page of all that runs, which has every DAG's jobs."""
    value = record(end=ended()).to_dict()
    queue, function = value["end"]["phases"]
    for name in ("began", "seconds"):
        end = value["end"] | {"phases": [queue | {name: seconds}, function]}
        told = JobRecord.from_value(value | {"end": end})
        assert told is not None
        assert told.end is not None
        assert told.end.phases == (Phase(**function),)
    assert BuildWait.from_value({"try_number": 1, "began": seconds}) is None


@pytest.mark.attack
@pytest.mark.parametrize("name", ["message", "reason", "failure_class"])
def test_text_that_the_page_cannot_send_makes_no_record(name: str) -> None:
    """XCom's JSON carries it, and one task's would end the page's answer about everybody's."""
    value = record(end=ended()).to_dict()
    assert JobRecord.from_value(value | {"end": value["end"] | {name: "\ud800"}}) is None
    assert JobRecord.from_value(value | {"run_began": "\ud800"}) is None


@pytest.mark.attack
def test_what_the_page_cannot_send_is_left_out() -> None:
    value = record(end=ended()).to_dict()
    queue, function = value["end"]["phases"]
    end = value["end"] | {"phases": [queue | {"name": "\ud800"}, function]}
    told = JobRecord.from_value(value | {"end": end})
    assert told is not None
    assert told.end is not None
    assert told.end.phases == (Phase(**function),)
    page = "https://console.cloud.google.com/cloud-build/\ud800"
    assert BuildWait.from_value({"try_number": 1, "began": 5.0, "page": page}) is None


def test_a_try_number_beyond_reason_costs_nothing() -> None:
    told = replace(record(), try_number=10**12)
    assert told.started_by(DAG, RUN, "train", -1) is None


FAILED = EarlierJob.of(1, "job-1", JobObservation(JobStatus.FAILED, "Failed", "no luck"))


def test_earlier_jobs_survive_json_and_are_bounded() -> None:
    assert (FAILED.status, FAILED.reason, FAILED.message) == ("FAILED", "Failed", "no luck")
    assert earlier_from_value(json.loads(json.dumps(earlier_to_value([FAILED])))) == (FAILED,)
    many = [replace(FAILED, try_number=number, message="x" * 100_000) for number in range(50)]
    assert len(earlier_from_value(earlier_to_value(many))) == 20
    assert len(json.dumps(earlier_to_value(many))) < 30_000


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": 3},
        {"try_number": "1"},
        {"message": "x" * 1001},
        {"message": "\ud800"},
        {"more": 1},
        {"status": None},
    ],
)
def test_what_is_no_earlier_job_is_left_out(change: dict[str, Any]) -> None:
    (value,) = earlier_to_value([FAILED])
    assert earlier_from_value([value | change, value, None, 3]) == (FAILED,)


@pytest.mark.parametrize("value", [None, 3, "text", {}, {"try_number": 1}])
def test_other_values_are_no_earlier_jobs(value: Any) -> None:
    assert earlier_from_value(value) == ()
