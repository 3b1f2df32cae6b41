"""States of task instances in Airflow, and whether a state means that somebody has ended the task."""

from __future__ import annotations

from collections.abc import Mapping

ENDED = frozenset(("success", "failed", "skipped", "removed", "upstream_failed", "restarting"))
"""States in which a task's worker is over because somebody, or a timeout, has ended or cleared the task. In
any other state, unknown ones included, the task goes on: its next leg or try finds the job."""
CLEARED = "restarting"
"""State after somebody has cleared a task while a worker has it."""
CLEARED_WHILE_DEFERRED = frozenset(("None", "scheduled", "queued"))
"""States after somebody has cleared a task while a trigger has it."""


def task_states(
    dag_id: str, run_id: str, task_ids: list[str], map_index: int | None = None
) -> Mapping[str, object]:
    """Return the states of task instances of a DAG run, as Airflow names them; missing ones are left out."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=task_ids, run_ids=[run_id], map_index=map_index
    )
    found: Mapping[str, object] = states.get(run_id, {})
    return found


def state_of(dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str:
    """Return the state of one task instance, "removed" if it is gone. `map_index`: None or -1 if unmapped."""
    mapped = map_index is not None and map_index >= 0
    states = task_states(dag_id, run_id, [task_id], map_index if mapped else None)
    key = f"{task_id}_{map_index}" if mapped else task_id
    return str(states[key]) if key in states else "removed"
