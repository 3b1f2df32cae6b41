"""What a failure leaves in the log."""

from __future__ import annotations

import pytest

from airflow_provider.records import evidence
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.jobs.collect import Outcome


def outcome(failure: Failure | None) -> Outcome:
    return Outcome("job-1", 2, False, "none", {}, failure, None, {}, verified=True, may_unpickle=False)


@pytest.mark.promise("airflow: Failure evidence before the exception: class, code, last lines, remedy")
def test_a_death_tells_its_class_code_last_lines_and_what_to_do() -> None:
    failure = Failure(
        FailureClass.OUT_OF_MEMORY, "killed at 2 GiB", exit_code=137, signal=9, last_lines=("one", "two")
    )
    assert list(evidence(outcome(failure))) == [
        "job-1 failed: out of memory: killed at 2 GiB (attempt 3, phase execute, signal 9, exit code 137)",
        "the last lines of its log:\none\ntwo",
        "what to do: ask for more with memory=, or use less",
    ]


def test_a_traceback_stands_for_the_last_lines() -> None:
    failure = Failure(FailureClass.USER_ERROR, "no luck", traceback="Traceback ...\n", last_lines=("one",))
    text = "\n".join(evidence(outcome(failure)))
    assert "traceback in the job:\nTraceback ..." in text
    assert "one" not in text


def test_what_a_function_raised_needs_no_advice() -> None:
    failure = Failure(FailureClass.USER_ERROR, "no luck", traceback="Traceback ...\n")
    assert not any(line.startswith("what to do") for line in evidence(outcome(failure)))


def test_classes_of_a_dag_file_have_the_name_they_were_given() -> None:
    prefix = "unusual_prefix_3f3b6f8d2a9c4e5b7d1f0a8c6e4b2d9f7a5c3e1b_"
    failure = Failure(
        FailureClass.USER_ERROR, "no luck", traceback=f"Traceback ...\n{prefix}sweep.Weird: no\n"
    )
    assert list(evidence(outcome(failure)))[-1] == "traceback in the job:\nTraceback ...\nsweep.Weird: no"


def test_an_instance_of_a_mapped_task_is_named_first() -> None:
    failure = Failure(FailureClass.USER_ERROR, "no luck")
    first = next(evidence(outcome(failure), "train[2] (rate=0.3)"))
    assert first.startswith("train[2] (rate=0.3): job-1 failed: user error: no luck (attempt 3")


@pytest.mark.promise("airflow: Failure evidence before the exception: class, code, last lines, remedy")
@pytest.mark.parametrize("kind", [each for each in FailureClass if each != FailureClass.USER_ERROR])
def test_every_class_has_a_remedy(kind: FailureClass) -> None:
    assert list(evidence(outcome(Failure(kind, "so it was"))))[-1].startswith("what to do: ")


def test_a_class_of_a_newer_runner_is_told_as_it_is() -> None:
    assert list(evidence(outcome(Failure("sunspots", "flare")))) == [
        "job-1 failed: sunspots: flare (attempt 3, phase execute)"
    ]


def test_a_failure_without_a_reason_is_still_one() -> None:
    assert "without a reason" in next(evidence(outcome(None)))
