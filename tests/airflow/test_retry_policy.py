"""Which failures of a job Airflow tries again, and when."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_core._runner.wire import FailureClass
from kinetic_core.errors import InvalidRequest
from tests.airflow_provider.records_of_jobs import ended, record

pytestmark = pytest.mark.airflow


def decided(rules: dict[str, Any], failure_class: str) -> Any:
    from airflow_provider.operators.kinetic import KineticOperator
    from airflow_provider.retry_policy import FailureRetryPolicy

    task = KineticOperator(task_id="task", python_callable=dict)
    if failure_class:
        task.record = record(end=ended(failure_class=failure_class))
    context: Any = {"task": task}
    found = FailureRetryPolicy(rules).evaluate(ValueError(), 1, 2, context)
    return found.action.value, found.retry_delay, found.reason


@pytest.mark.promise("scale: A retry policy by class of failure (3.3)")
def test_the_class_of_the_failure_decides() -> None:
    rules = {
        "user error": False,
        "control plane": True,
        FailureClass.PREEMPTED: timedelta(seconds=5),
        "deadline": timedelta(0),
    }
    said = "the job's failure is of class {!r}".format
    assert decided(rules, "user error") == ("fail", None, said("user error"))
    assert decided(rules, "control plane") == ("retry", None, said("control plane"))
    lost = "preempted / node lost"
    assert decided(rules, lost) == ("retry", timedelta(seconds=5), said(lost))
    assert decided(rules, "deadline") == ("retry", timedelta(0), said("deadline"))
    assert decided(rules, "out of memory") == decided(rules, "") == ("default", None, None)


def test_other_operators_and_no_context_change_nothing() -> None:
    from airflow_provider.retry_policy import FailureRetryPolicy

    policy = FailureRetryPolicy({"user error": False})
    other: Any = {"task": SimpleNamespace()}
    for context in (None, other):
        assert policy.evaluate(ValueError(), 1, 2, context).action.value == "default"


@pytest.mark.parametrize("rules", [{"image": True}, {"budget": False}, {"user_error": False}], ids=str)
def test_a_class_after_which_nothing_is_tried_again_is_refused(rules: dict[str, bool]) -> None:
    from airflow_provider.retry_policy import FailureRetryPolicy

    with pytest.raises(InvalidRequest, match="is no class of failure after which a task may be tried again"):
        FailureRetryPolicy(rules)


def test_what_says_nothing_is_refused() -> None:
    from airflow_provider.retry_policy import FailureRetryPolicy

    with pytest.raises(InvalidRequest, match="5 must be True, False or a timedelta"):
        FailureRetryPolicy({"user error": 5})  # type: ignore[dict-item]


@pytest.mark.promise("scale: A retry policy by class of failure (3.3)")
def test_airflow_asks_the_policy(cases: Any) -> None:
    assert cases.end("policies") == "failed"
    tries = {name: cases.instance("policies", name)["try_number"] for name in ("hopeless", "slow", "batch")}
    assert tries == {"hopeless": 1, "slow": 2, "batch": 1}
    assert cases.value("policies", "slow") == "at last"
    assert "Retry policy decision" in cases.log("policies", "hopeless")
