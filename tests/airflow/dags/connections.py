"""Tasks whose connection says where they run: nothing else does. Each is long enough to be deferred."""

from __future__ import annotations

import time

from airflow.sdk import dag, task

CANARIES = [f"CANARY_{number}" for number in range(50)]
"""Environment variables, and the keys of the Secret `canaries` that they are of."""


@task.kinetic(accelerator="cpu")
def where() -> str:
    import os

    print("it runs", flush=True)
    time.sleep(20)  # long enough to be looked at while the task is deferred
    return os.uname().nodename


@task.kinetic(accelerator="cpu", secrets={name: f"canaries/{name}" for name in CANARIES})
def digest() -> str:
    import hashlib
    import os

    return hashlib.sha256("".join(os.environ[name] for name in CANARIES).encode()).hexdigest()


@task.kinetic(accelerator="cpu", secrets={name: f"canaries/{name}" for name in CANARIES})
def fail() -> None:
    import os

    held = [os.environ[name] for name in CANARIES]
    raise ValueError(f"{len(held)} secrets are held here")


@dag(schedule=None, catchup=False)
def connected_here():
    where.override(conn_id="kinetic_here")()


@dag(schedule=None, catchup=False)
def connected_cluster():
    where.override(task_id="kube", conn_id="{{ 'kinetic_kube' }}")()
    where.override(task_id="google", conn_id="kinetic_google")()
    digest.override(conn_id="kinetic_kube")()


@dag(schedule=None, catchup=False)
def connected_failing():
    fail.override(conn_id="kinetic_kube")()
    where.override(task_id="refused", conn_id="kinetic_refused")()


@dag(schedule=None, catchup=False)
def connected_named():
    where.override(conn_id="kinetic_plain", gcp_conn_id="google_theirs")()


connected_here()
connected_cluster()
connected_failing()
connected_named()
