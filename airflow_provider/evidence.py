"""What a task's log says of a job that failed, before the exception: whose fault it was, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider.mapped import named
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.lifecycle.outcome import Outcome

_REMEDIES = {
    FailureClass.USER_ERROR: "the function itself failed: its traceback, or the end of its log, says where",
    FailureClass.OUT_OF_MEMORY: "ask for more with memory=, or use less",
    FailureClass.OUT_OF_DISK: "ask for more with disk=, or write large files to KINETIC_OUTPUT_DIR",
    FailureClass.PREEMPTED: "not the function's fault: retries= starts it again, infrastructure_retries= "
    "allows more losses within a job, and spot=False avoids preemption",
    FailureClass.IMAGE: "look at the image's name, and at whether the cluster's nodes may pull it",
    FailureClass.CONFIGURATION: "correct what the message names; trying again would not help",
    FailureClass.IMPOSSIBLE_REQUEST: "ask for hardware the cluster has, or give it a node pool that has this",
    FailureClass.QUOTA: "ask for less, for more quota, or in another zone",
    FailureClass.DEADLINE: "raise timeout=, which counts waiting too, or do less in one job",
    FailureClass.BUDGET: "raise budget=, if it is worth it; with checkpoints a new job goes on from here",
    FailureClass.CANCELLED: "somebody cancelled the job, or Airflow did when the task was killed",
    FailureClass.CONTROL_PLANE: "a service did not answer: retries= starts it again",
}


def evidence(outcome: Outcome, name: str = "") -> Iterator[str]:
    """Lines for the log: class, message, exit code, the traceback or else the last lines, and what to do.

    `name`: that of the instance of a mapped task.
    """
    failure = outcome.failure or Failure(FailureClass.CONTROL_PLANE, "the job failed without a reason")
    where = f"attempt {outcome.attempt}, phase {failure.phase}"
    if failure.signal is not None:
        where += f", signal {failure.signal}"
    if failure.exit_code is not None:
        where += f", exit code {failure.exit_code}"
    yield named(name, f"{outcome.job_id} failed: {failure.failure_class}: {failure.message} ({where})")
    if failure.traceback:
        yield f"traceback in the job:\n{failure.traceback.rstrip()}"
    elif failure.last_lines:
        yield "the last lines of its log:\n" + "\n".join(failure.last_lines)
    remedies = {str(each): text for each, text in _REMEDIES.items()}
    if remedy := remedies.get(failure.failure_class):
        yield f"what to do: {remedy}"
