"""A task whose image has to be built first."""

from __future__ import annotations

from airflow.sdk import dag, task


@task.kinetic(
    accelerator="cpu",
    backend="gke",
    conn_id="kinetic_builds",
    container_image="bundled",
    requirements=["six==1.17.0"],
)
def imported() -> str:
    import time

    import six

    time.sleep(5)  # longer than a worker waits for it
    return six.__version__


@dag(schedule=None, catchup=False)
def building():
    imported()


building()
