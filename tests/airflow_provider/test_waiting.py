"""What a task's log says of a job that waits."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from airflow_provider.task_logs import StateLines
from kinetic_core.job import JobObservation, JobReference, JobStatus

FIELDS = [field.name for field in fields(JobReference) if field.default is MISSING]
REFERENCE = JobReference.from_dict({**dict.fromkeys(FIELDS, ""), "job_id": "job-0123456789abcdef"})


def seen(reason: str, message: str = "") -> JobObservation:
    return JobObservation(JobStatus.PENDING, reason, message)


def test_a_change_is_a_line_and_nothing_else_is() -> None:
    states = StateLines(REFERENCE, known=seen("Created"), clock=lambda: 0.0)
    assert states.line(seen("Created")) is None
    line = states.line(seen("Unschedulable", "0/5 nodes are available"))
    assert line == "job-0123456789abcdef is PENDING (Unschedulable): 0/5 nodes are available"
    assert states.line(seen("Unschedulable", "0/6 nodes are available")) is None


@pytest.mark.promise("airflow: … and never floods")
def test_a_job_that_wavers_does_not_flood_the_log() -> None:
    now = [0.0]
    states = StateLines(REFERENCE, clock=lambda: now[0])
    lines = []
    for second in range(180):
        now[0] = float(second)
        lines.append(states.line(seen("Unschedulable" if second % 2 else "ImagePullBackOff")))
    assert len([line for line in lines if line]) == 6


@pytest.mark.promise("airflow: A waiting task's log says why, at each change")
def test_the_last_change_of_a_wavering_job_is_said_in_time() -> None:
    now = [0.0]
    states = StateLines(REFERENCE, clock=lambda: now[0])
    waits, pulls = seen("Unschedulable"), seen("ImagePullBackOff")
    assert states.line(waits)
    now[0] = 10.0
    assert states.line(pulls)
    assert states.due == float("inf")
    now[0] = 20.0
    assert states.line(waits) is None
    assert (states.due, states.late()) == (40.0, None)
    now[0] = 60.0
    assert states.late() == "job-0123456789abcdef is PENDING (Unschedulable)"
    assert (states.due, states.late()) == (float("inf"), None)


def test_what_has_passed_by_then_is_not_said_any_more() -> None:
    now = [0.0]
    states = StateLines(REFERENCE, clock=lambda: now[0])
    for second, reason in enumerate(
        ("Unschedulable", "ImagePullBackOff", "Unschedulable", "ImagePullBackOff")
    ):
        now[0] = float(second)
        states.line(seen(reason))
    assert states.due == float("inf")
    now[0] = 100.0
    assert states.late() is None
