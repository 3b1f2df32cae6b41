"""The public API as a user's type checker sees it. Checked by mypy --strict, never run."""

from __future__ import annotations

from typing import assert_type

from airflow.sdk import XComArg

import kinetic_core
import kinetic_core.compat as compat
from airflow_provider.decorators.kinetic import kinetic
from airflow_provider.operators.kinetic import KineticOperator


@kinetic_core.run(accelerator="cpu", backend="local", memory="1Gi", retries=2)
def train(steps: int, *, rate: float = 0.1) -> float:
    return steps * rate


class Model:
    @kinetic_core.run(accelerator=["tpu-v6e-8", "cpu"], capacity_timeout=60, budget=2.5)
    def fit(self, epochs: int) -> str:
        return "x" * epochs


assert_type(train(3, rate=0.5), float)
assert_type(train.run_async(3), kinetic_core.JobHandle)
assert_type(train.run_async_map([1, 2]), kinetic_core.BatchHandle)
assert_type(Model().fit(2), str)
assert_type(kinetic_core.attach("job-0123456789abcdef"), kinetic_core.JobHandle)
assert_type(kinetic_core.list_jobs(), list[kinetic_core.JobHandle])


@compat.run(accelerator="cpu", backend="local")
def moved(steps: int, *, rate: float = 0.1) -> float:
    return steps * rate


class MovedModel:
    @compat.run(accelerator="cpu")
    def fit(self, epochs: int) -> str:
        return "x" * epochs


assert_type(moved(3, rate=0.5), float)
assert_type(moved.run_async(3), compat.JobHandle)
assert_type(moved.run_async_map([1, 2]), compat.BatchHandle)
assert_type(MovedModel().fit(2), str)
assert_type(MovedModel().fit.run_async(2), compat.JobHandle)
assert_type(compat.attach("job-0123456789abcdef"), compat.JobHandle)
assert_type(compat.list_jobs(), list[compat.JobHandle])
assert_type(compat.attach_batch("grp-0123456789abcdef"), compat.BatchHandle)
assert_type(compat.collections.map(moved.run_async, [1]), compat.BatchHandle)
assert_type(compat.collections.map(moved.run_async, [1]).jobs, list[compat.JobHandle | None])

moved("three")  # type: ignore[arg-type]
moved.run_async(3, speed=1)  # type: ignore[call-arg]
train("three")  # type: ignore[arg-type]
train.run_async(3, speed=1)  # type: ignore[call-arg]
train.run_async_map([1], max_concurrent="2")  # type: ignore[arg-type]
kinetic_core.run(timeout="{{ params.seconds }}")  # type: ignore[arg-type]
kinetic_core.run(acelerator="cpu")  # type: ignore[call-arg]
kinetic_core.run(8)  # type: ignore[arg-type]


@kinetic(accelerator=["tpu-v6e-8", "cpu"], timeout="{{ params.minutes * 60 }}", labels={"team": "vision"})
def task_train(steps: int, *, rate: float = 0.1) -> float:
    return steps * rate


@kinetic
def task_size() -> int:
    return 16


@kinetic(memory=task_size(), job_retries=2, volumes={"/data": kinetic_core.Data("gs://bucket/{{ ds }}/")})
def task_fit(epochs: int) -> str:
    return "x" * epochs


assert_type(task_train(3, rate=0.5), XComArg)
assert_type(task_train.function(3), float)
assert_type(task_fit.partial().expand(epochs=[1, 2]), XComArg)
KineticOperator(task_id="operator", python_callable=len, op_args=["abc"], requirements=["six"], cpu=0.5)

task_train("three")  # type: ignore[arg-type]
kinetic(accelerator=8)  # type: ignore[call-overload]
kinetic(waiting_alert=30)  # type: ignore[call-overload]
kinetic(volumes={"/data": "gs://bucket/"})  # type: ignore[dict-item]
KineticOperator(task_id="operator", python_callable=len, requirements=3)  # type: ignore[arg-type]
KineticOperator(task_id="operator", python_callable=len, retires=3)  # type: ignore[call-arg]
