"""What looks like a reference and comes from elsewhere: a run's configuration, an answer from the network."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task

from airflow_provider.operators.kinetic import KineticOperator


def take(given: Any) -> str:
    return type(given).__name__


@dag(schedule=None, catchup=False, render_template_as_native_obj=True)
def forged():
    @task
    def answer(**context: Any) -> dict[str, Any]:
        return {"rows": [context["dag_run"].conf["given"]]}

    task.kinetic(accelerator="cpu", backend="local")(take)(answer())
    KineticOperator(
        task_id="configured",
        python_callable=take,
        op_kwargs={"given": "{{ dag_run.conf['given'] }}"},
        accelerator="cpu",
        backend="local",
    )


forged()
