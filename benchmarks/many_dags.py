"""The DAGs of `many_inputs.py`: as many inputs as each is named for, and a task that takes all values."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

PATIENT: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}
"""Airflow's scheduler may fail a task that resumes soon after its deferral (airflow#71580)."""


def of(size: int) -> DAG:
    """A DAG with so many mapped jobs."""
    with DAG(f"many_{size}", schedule=None) as dag:

        @task.kinetic(accelerator="cpu", backend="local", **PATIENT)
        def work(number: int) -> int:
            return number + 1

        @task
        def total(numbers: Iterable[int]) -> int:
            return sum(numbers)

        total(work.expand(number=list(range(size))))  # type: ignore[arg-type]  # Airflow passes the values
    return dag


few, many = of(200), of(1000)
