"""What a person or a clock does to one task: through Airflow's public API, or by waiting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError

from matrix.cells import BY_TRIGGER
from matrix.stage import Stage

_GRACE_SECONDS = 3.0
"""Between the signals to a pod that is drained. Its worker stands still meanwhile."""


def clear(stage: Stage) -> None:
    body = {"dry_run": False, "dag_run_id": stage.run_id, "task_ids": ["work"], "only_failed": False}
    stage.api.call("POST", f"/dags/{stage.dag_id}/clearTaskInstances", body)


def mark_success(stage: Stage) -> None:
    stage.api.call("PATCH", f"{stage.run_path}/taskInstances/work", {"new_state": "success"})


def mark_failed(stage: Stage) -> None:
    stage.api.call("PATCH", f"{stage.run_path}/taskInstances/work", {"new_state": "failed"})


def fail_run(stage: Stage) -> None:
    stage.api.call("PATCH", stage.run_path, {"state": "failed"})


def delete_run(stage: Stage) -> None:
    """Airflow refuses to delete a run that goes on; so it is failed and deleted at once."""
    try:
        stage.api.call("DELETE", stage.run_path)
    except HTTPError as error:
        stage.note = f"deleting a run that goes on is refused (HTTP {error.code})"
    fail_run(stage)
    stage.api.call("DELETE", stage.run_path)


def cancel_job(stage: Stage) -> None:
    stage.jobs.cancel()


def pause(stage: Stage) -> None:
    """Paused until the job has ended, or the task with it."""
    stage.api.call("PATCH", f"/dags/{stage.dag_id}", {"is_paused": True})
    stage.release()
    stage.jobs.put("go")
    stage.until(lambda: stage.state() in ("scheduled", "success"), "scheduled but not started")
    stage.note = f"while paused: {stage.state()}"
    stage.api.call("PATCH", f"/dags/{stage.dag_id}", {"is_paused": False})


def start_backfill(stage: Stage) -> None:
    """Instead of a run of its own."""
    stage.until(lambda: stage.api.find(f"/dags/{stage.dag_id}"), "to be parsed")
    stage.put("backfill", str(stage.until(lambda: _new_backfill(stage), "its backfill")))
    runs = stage.until(
        lambda: stage.api.call("GET", f"/dags/{stage.dag_id}/dagRuns")["dag_runs"], "its backfilled run"
    )
    stage.run_id = runs[0]["dag_run_id"]


def _new_backfill(stage: Stage) -> int | None:
    """Its id. None if Airflow found SQLite locked when it made the run; then there is no backfill either."""
    day = "2024-01-01T00:00:00Z"
    body = {"dag_id": stage.dag_id, "from_date": day, "to_date": day}
    try:
        return int(stage.api.call("POST", "/backfills", body)["id"])
    except HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
    for made in stage.api.call("GET", f"/backfills?dag_id={stage.dag_id}")["backfills"]:
        if not made["completed_at"]:
            stage.api.call("PUT", f"/backfills/{made['id']}/cancel")
    return None


def cancel_backfill(stage: Stage) -> None:
    stage.api.call("PUT", f"/backfills/{(stage.folder / 'backfill').read_text()}/cancel")


def fail_leg(stage: Stage) -> None:
    """The worker raises where it stands; its next try stands in nobody's way."""
    stage.put("raise")
    stage.release()
    stage.until(lambda: stage.has("raised"), "the leg to fail")


def fail_job(stage: Stage) -> None:
    stage.jobs.put("fail")
    stage.jobs.put("go")
    stage.until(lambda: stage.jobs.journal("end"), "the first execution to fail")
    stage.jobs.drop("go")


def edit(stage: Stage) -> None:
    """The function says something else from now on."""
    (path,) = (stage.airflow.home / "dags" / stage.dag_id).glob("cells_*.py")
    path.write_text(path.read_text().replace('f"execution {number}"', 'f"edited {number}"'))


def kill_worker(stage: Stage) -> None:
    os.kill(stage.worker, signal.SIGKILL)


def stop_worker(stage: Stage) -> None:
    os.kill(stage.worker, signal.SIGTERM)
    stage.until(lambda: stage.has("told"), "its worker to be told")


def drain(stage: Stage) -> None:
    """As Kubernetes does, with a worker that makes nothing of its grace."""
    worker = stage.worker
    supervisor = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    for process in (supervisor, worker):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def delete_pod(stage: Stage) -> None:
    """Delete the pod of its worker, which stands still until its grace is over."""
    workers = stage.airflow.workers
    pod = workers.worker(stage.dag_id)["metadata"]["name"]
    workers.api.delete("Pod", workers.namespace, pod, grace=int(_GRACE_SECONDS))
    stage.until(lambda: not stage.is_held(), "its worker to be gone")


def evict_pod(stage: Stage) -> None:
    """As `kubectl drain` does with its worker's node, sparing the pods of others."""
    workers = stage.airflow.workers
    pod = workers.worker(stage.dag_id)
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    workers.api.patch("Node", "", node, {"spec": {"unschedulable": True}})
    try:
        workers.evict(name, int(_GRACE_SECONDS))
        stage.until(lambda: not stage.is_held(), "its worker to be gone")
    finally:
        workers.api.patch("Node", "", node, {"spec": {"unschedulable": None}})


def lose_store(stage: Stage) -> None:
    """It gives no answer for a while, as its name leads in a circle; the worker that was stopped goes on."""
    store = stage.folder / "kinetic" / "store"
    away = store.with_name("away")
    store.rename(away)
    store.symlink_to(store)
    stage.release()
    try:
        time.sleep(stage.cell.action.dag["seconds"])
        stage.note = f"while the store was away: {stage.state()}"
    finally:
        store.unlink()
        away.rename(store)


def wait_for_the_clock(stage: Stage) -> None:
    """What has been set in the DAG ends it; a stopped worker stays so."""
    stage.until(lambda: stage.state() in stage.cell.action.states, "its time to be up")
    stage.acted = time.time()


DO: dict[str, Callable[[Stage], object]] = {
    "clear": clear,
    "clear_held": clear,
    "mark_success": mark_success,
    "mark_failed": mark_failed,
    "mark_failed_held": mark_failed,
    "fail_run": fail_run,
    "delete_run": delete_run,
    "task_timeout": wait_for_the_clock,
    "run_timeout": wait_for_the_clock,
    "cancel": cancel_job,
    "pause": pause,
    "backfill": cancel_backfill,
    "retry": fail_leg,
    "retry_job": fail_job,
    "edit": edit,
    "worker_killed": kill_worker,
    "worker_told": stop_worker,
    "worker_told_held": stop_worker,
    "drained": drain,
    "pod_deleted": delete_pod,
    "pod_evicted": evict_pod,
    "store_lost": lose_store,
    "store_lost_held": lose_store,
}
DO |= {f"{name}{BY_TRIGGER}": do for name, do in DO.items()}
"""What happens to one task only, by the action's name."""
