"""Tasks that run where their connection says. On a cluster, they run until a test lets them go."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

CANARIES = [f"CANARY_{number}" for number in range(50)]
"""Environment variables, and the keys of the Secret `canaries` that they are of."""


BUCKET, _, PREFIX = os.environ.get("KINETIC_BUCKET", "").partition("/")
LET_GO = f"/storage/v1/b/{BUCKET}/o/{PREFIX}%2Flet-go"
"""Path of an object of the stand-in for Cloud Storage. Once it is there, jobs end that wait for it."""

LET_GO_HERE = str(Path(os.environ["AIRFLOW_HOME"], "let-go"))
"""A file of this machine for which the job of `connected_here` waits."""


@task.kinetic(accelerator="cpu")
def where(until: str = "") -> str:
    import os
    import time
    import urllib.error
    import urllib.request

    print("it runs", flush=True)
    while until:
        try:
            urllib.request.urlopen(os.environ["STORAGE_EMULATOR_HOST"] + until, timeout=10).close()
            break
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            time.sleep(0.5)
    return os.uname().nodename


@task.kinetic(accelerator="cpu")
def where_here(until: str) -> str:
    import os
    import time
    from pathlib import Path

    while not Path(until).exists():
        time.sleep(0.1)
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
    where_here.override(task_id="where", conn_id="kinetic_here")(LET_GO_HERE)


@dag(schedule=None, catchup=False)
def connected_cluster():
    where.override(task_id="kube", conn_id="{{ 'kinetic_kube' }}")(LET_GO)
    where.override(task_id="google", conn_id="kinetic_google")(LET_GO)
    digest.override(conn_id="kinetic_kube")()


@dag(schedule=None, catchup=False)
def connected_failing():
    fail.override(conn_id="kinetic_kube")()
    where.override(task_id="refused", conn_id="kinetic_refused")()


@dag(schedule=None, catchup=False)
def connected_named():
    where.override(conn_id="kinetic_plain", gcp_conn_id="google_theirs")(LET_GO)


connected_here()
connected_cluster()
connected_failing()
connected_named()
