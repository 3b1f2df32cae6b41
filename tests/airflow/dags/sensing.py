"""Jobs that an ordinary task starts, and sensors that wait for them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow.sdk import dag, task

from airflow_provider.hooks.kinetic import KineticHook
from airflow_provider.sensors.kinetic import KineticJobSensor

CONNECTION = "sensed_here"
SIGN = str(Path(os.environ["AIRFLOW_HOME"], "sensed-ends"))


def wait(sign: str, fails: bool) -> int:
    while not Path(sign).exists():
        time.sleep(0.2)
    if fails:
        raise ValueError("no such shard")
    return 7


@dag(schedule=None, catchup=False)
def sensed():
    @task
    def start(fails: bool) -> str:
        return KineticHook(CONNECTION).submit(wait, [SIGN, fails], accelerator="cpu").job_id

    @task
    def value(job_id: str) -> object:
        return KineticHook(CONNECTION).result(job_id, timeout=60)

    job_id = start(fails=False)
    sensor = KineticJobSensor(task_id="sensor", job_id=job_id, conn_id=CONNECTION)
    sensor >> value(job_id)
    KineticJobSensor(
        task_id="failing_sensor",
        job_id=start.override(task_id="start_failing")(fails=True),
        conn_id=CONNECTION,
        retries=1,
    )


sensed()
