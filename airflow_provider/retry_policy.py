"""`FailureRetryPolicy`: whether and when Airflow tries a task again, by the class of its job's failure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from kinetic_core._runner.wire import FailureClass
from kinetic_core.errors import InvalidRequest

try:
    from airflow.sdk import RetryDecision, RetryPolicy
except ImportError as exc:
    raise ImportError(
        "FailureRetryPolicy needs Airflow 3.3, the first version with retry_policy=. Leave it out: where "
        "another try cannot help, no version of Airflow tries a Kinetic task again"
    ) from exc

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

Again: TypeAlias = bool | timedelta
"""Whether to try again; a time says when, instead of the task's `retry_delay`."""

CLASSES = (
    FailureClass.USER_ERROR,
    FailureClass.OUT_OF_MEMORY,
    FailureClass.OUT_OF_DISK,
    FailureClass.PREEMPTED,
    FailureClass.CONTROL_PLANE,
    FailureClass.DEADLINE,
)
"""Classes of failures after which a task may be tried again; after all others it fails at once."""


class FailureRetryPolicy(RetryPolicy):
    """Policy for a Kinetic task's `retry_policy`: what follows a failure of the job, by the failure's class.

        FailureRetryPolicy({"user error": False, "preempted / node lost": timedelta(seconds=10)})

    False fails the task at once, True tries it again after its `retry_delay`, a timedelta after that time.
    Airflow decides as without a policy after a failure of a class that is not named, and where no job has
    failed. A policy allows no more tries than the task's `retries`. A batch has the class of the commonest
    failure of its inputs. Raises InvalidRequest for a class after which no task is tried again.
    """

    def __init__(self, rules: Mapping[str, Again]) -> None:
        for name, again in rules.items():
            if name not in CLASSES:
                known = ", ".join(repr(str(each)) for each in CLASSES)
                raise InvalidRequest(
                    f"FailureRetryPolicy: {name!r} is no class of failure after which a task may be tried "
                    f"again; there are {known}"
                )
            if not isinstance(again, bool | timedelta):
                raise InvalidRequest(
                    f"FailureRetryPolicy: {name!r}: {again!r} must be True, False or a timedelta"
                )
        self.rules = dict(rules)

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decide by the failure that the task's operator has met in this process."""
        del exception, try_number, max_tries
        failure_class = getattr(context["task"], "failure_class", "") if context else ""
        again = self.rules.get(failure_class)
        reason = f"the job's failure is of class {failure_class!r}"
        if again is None:
            return RetryDecision.default()
        if again is False:
            return RetryDecision.fail(reason)
        return RetryDecision.retry(None if again is True else again, reason)
