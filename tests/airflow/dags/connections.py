"""Tasks whose connection says where they run: nothing else does. Each is long enough to be deferred."""

from __future__ import annotations

import time

from airflow.sdk import dag, task


@task.kinetic(accelerator="cpu")
def where() -> str:
    import os

    print("it runs", flush=True)
    time.sleep(6)
    return os.uname().nodename


@dag(schedule=None, catchup=False)
def connected_here():
    where.override(conn_id="kinetic_here")()


@dag(schedule=None, catchup=False)
def connected_cluster():
    where.override(task_id="kube", conn_id="{{ 'kinetic_kube' }}")()
    where.override(task_id="google", conn_id="kinetic_google")()


connected_here()
connected_cluster()
